"""Find the component in which a failure happened, from its traceback."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from caovand.core.healing.failure import Failure
from caovand.core.healing.ladder import CONFIGURATION
from caovand.engines.common.logs.hit import Hit
from caovand.engines.common.logs.rows.python import RAISED, REFUSES, frame_of, raised_at
from caovand.engines.common.logs.signature import signature
from caovand.engines.vllm.log.line import VllmLine, take_apart
from caovand.engines.vllm.log.rows.by_phase import LOADING

_FRAMES = 200  # last frames kept of a traceback; compilers have a hundred
# Components in a traceback, by a piece of `file:function`.
_PLUGIN = re.compile(r"/caovan_vllm_sm75|/vllm/plugins/__init__\.py:")
_PLATFORMS = re.compile(r"/vllm/(?:platforms/|_custom_ops\.py)")
"""vLLM's own code, which reading plugins imports first."""
_DRAFTER = "/spec_decode/"
_DRAFTED_STATES = "/mamba/ops/cpu/gdn_attention.py:"
_PREFIX_CACHE = "/worker/mamba_utils.py"
_COMPILER = re.compile(
    r"/torch/_(?:dynamo/symbolic_convert|inductor/(?:compile_fx|codecache|scheduler|graph))\.py"
)
_CONFIGURING = re.compile(
    r"/vllm/(?:engine/arg_utils\.py|config[./]|transformers_utils/)"
    r"|/transformers/(?:models/auto/|configuration_utils\.py)"
)
_READING = re.compile(
    r"/vllm/(?:engine/arg_utils\.py|config[./]|transformers_utils/|model_executor/model_loader/)"
    r"|/transformers/(?:models/auto/|\w{1,60}_utils\.py)"
    r"|/quantization/[^/:]{1,80}:(?:from_config|get_from_keys\w*|override_quantization_method)$"
)
"""Code that reads arguments, configuration or the model's files."""
# How the first request after a start fails if a split leaves a layer with the wrong size.
_SHAPE = re.compile(
    r"ZeroDivisionError|(?:Runtime|Value|Assertion|Index)Error: .{0,200}(?:size of tensor"
    r"|\bshapes?\b"
    r"|mat1 and mat2|invalid for input of size|divisible by)"
)
_LOADERS = re.compile(r"load_weights|weight_loader|load_\w{0,60}weight")
# How that code fails if checkpoint and configuration do not match.
_MISFIT = re.compile(
    r"(?:KeyError|AssertionError|ValueError|IndexError)\b"
    r"|RuntimeError: (?:The size of tensor a|start \(\d+\) \+ length)"
)


# Functions of vLLM's workers that belong to only one phase of a start.
_PHASE_OF = {
    "profile_num_available_blocks": "profile",
    "load_model": "load", "determine_num_available_blocks": "profile",
    "determine_available_memory": "profile", "profile_run": "profile",
    "capture_model": "capture", "compile_or_warm_up_model": "warmup",
    "initialize_model": "load", "process_weights_after_loading": "load", "_dummy_run": "profile",
    "create_weights": "load",
    "initialize_kv_cache": "kv", "initialize_cache": "kv", "initialize_from_config": "kv",
}  # fmt: skip
_BUILT = re.compile(
    r"/vllm/model_executor/(?:models|layers)/[^:]{1,100}:(?:__init__|create_weights)$"
)
"""Code that allocates a model's weights."""
_GRAPHS = "/torch/cuda/graphs.py:"
_SERVES = frozenset({"run_busy_loop", "run_engine_loop", "engine_step", "_process_engine_step"})
"""Functions that run requests; none runs during a start."""


class Tracebacks:
    """The frames of each process's latest traceback."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, str, bool], deque[str]] = {}

    def feed(self, parts: VllmLine) -> bool:
        """Whether this next line of the log is a frame or a traceback's first line."""
        frame = frame_of(parts.message)
        if frame:
            seen = self._frames.setdefault(_writer(parts), deque(maxlen=_FRAMES))
            seen.append(f"{frame[1]}:{frame['function'] or ''}")
            return True
        if not parts.message.startswith("Traceback (most recent call last)"):
            return False
        self._frames.pop(_writer(parts), None)
        return True

    def of(self, parts: VllmLine) -> tuple[str, ...]:
        """The frames before this line."""
        return tuple(self._frames.get(_writer(parts), ()))


def _writer(parts: VllmLine) -> tuple[str, str, bool]:
    return parts.process, parts.pid, bool(parts.level)


UNNAMED = signature("exception", "unnamed", "unknown", "")
"""The row of an exception that no other row matches."""


@dataclass(frozen=True)
class PossibleCause(Hit):
    """A line that may be the cause, its parts, and the frames of the traceback before it.

    `first`: the engine started in this log, and has answered nothing yet.
    """

    parts: VllmLine
    frames: tuple[str, ...]
    first: bool = False


def raised_where(index: int, whose: VllmLine, lines: Sequence[str]) -> str:
    """The place and code that raised an exception without a message, which alone says nothing."""
    before = map(take_apart, reversed(lines[max(index - RAISED, 0) : index]))
    mine = (whose.process, whose.pid)
    return raised_at(
        line_before.message
        for line_before in before
        if (line_before.process, line_before.pid) == mine
    )


def phase_behind(frames: Sequence[str], call: str) -> str:
    """The phase of a start whose code runs: by the frames, else by the worker's call.

    "" if neither shows it. For excerpts, which often begin with the failure.
    """
    if any(_GRAPHS in frame for frame in frames):
        return "capture"
    names = (*(frame.rpartition(":")[2] for frame in reversed(frames)), call)
    started = next((_PHASE_OF[name] for name in names if name in _PHASE_OF), "")
    if not started and any(map(_BUILT.search, frames)):
        return "load"
    return started or ("serving" if _SERVES.intersection(names) else "")


def keeps_drafted_states(frames: Sequence[str]) -> bool:
    """Whether the traceback includes the CPU build's Gated DeltaNet, which keeps a state for each
    draft."""
    return any(_DRAFTED_STATES in frame for frame in frames)


def component_of(hit: PossibleCause) -> str:
    """The component whose code is in the traceback.

    An asynchronous CUDA error surfaces anywhere, so any frame of the plugin counts for it; for an
    exception only nearby frames do.
    """
    near = hit.frames if hit.row is not UNNAMED else hit.frames[-4:]
    if _blames_plugin(near):
        return "plugin"
    if any(_COMPILER.search(frame) for frame in hit.frames):
        return "compiler"
    if hit.first and hit.phase == "serving" and _SHAPE.match(hit.text):
        return "shape"
    if hit.phase == "resolve" and _is_refused(hit):
        return CONFIGURATION
    if any(_PREFIX_CACHE in frame for frame in hit.frames):
        return "prefix-cache"
    if hit.phase in LOADING and any(map(_loads_weights, near)):
        return "weights"
    return "drafter" if any(_DRAFTER in frame for frame in hit.frames) else ""


def _blames_plugin(frames: Sequence[str]) -> bool:
    """Whether a plugin's code ran, and not only vLLM's own imports before it."""
    last = next((n for n in reversed(range(len(frames))) if _PLUGIN.search(frames[n])), None)
    return last is not None and not any(map(_PLATFORMS.search, frames[last + 1 :]))


def _is_refused(hit: PossibleCause) -> bool:
    """Whether the exception, with its own message, came from code that reads arguments and
    configuration."""
    refused = hit.row is UNNAMED and REFUSES.match(hit.text)
    return bool(refused) and any(map(_CONFIGURING.search, hit.frames))


def raised_by_reader(hit: PossibleCause) -> bool:
    """Whether the exception came from code that reads arguments, configuration or the model's
    files."""
    return bool(hit.frames) and _READING.search(hit.frames[-1]) is not None


def _loads_weights(frame: str) -> bool:
    file, _, function = frame.rpartition(":")
    return "/vllm/model_executor/" in file and _LOADERS.search(function) is not None


def failure_of_unnamed(hit: PossibleCause, component: str) -> Failure:
    """The failure that an exception without a row means where this component raised it."""
    if component == "plugin":
        return "plugin-error"
    if component == CONFIGURATION:
        return "bad-arguments"
    # Python 3.10.0 fails like this on code that the compiler generates.
    if component == "weights" and _MISFIT.match(hit.parts.message):
        return "model-missing"
    index = hit.phase == "compile" and hit.parts.message.startswith("IndexError: tuple index out")
    if component == "compiler" or index:
        return "compile-failed"
    return "engine-died" if hit.phase == "serving" else "unknown"
