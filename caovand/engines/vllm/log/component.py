"""Whose code a traceback in vLLM's log runs through."""

from __future__ import annotations

import re
from collections.abc import Sequence

# By a piece of `file:function`.
_PLUGIN = re.compile(r"/caovan_vllm_sm75|/vllm/plugins/__init__\.py:")
_DRAFTER = "/spec_decode/"
_DRAFTED_STATES = "/mamba/ops/cpu/gdn_attention.py:"
_PREFIX_CACHE = "/worker/mamba_utils.py"
_COMPILER = re.compile(
    r"/torch/_(?:dynamo/symbolic_convert|inductor/(?:compile_fx|codecache|scheduler|graph))\.py"
)
_LOADERS = re.compile(r"load_weights|weight_loader|load_\w{0,60}weight")


def component(frames: Sequence[str], phase: str, *, known: bool) -> str:
    """The component whose code is in the traceback, "" for none.

    An asynchronous CUDA error, which is `known`, surfaces anywhere, so any frame of the plugin
    counts for it; for an exception only nearby frames do.
    """
    near = frames if known else frames[-4:]
    if any(_PLUGIN.search(frame) for frame in near):
        return "plugin"
    if any(_COMPILER.search(frame) for frame in frames):
        return "compiler"
    if any(_PREFIX_CACHE in frame for frame in frames):
        return "prefix-cache"
    if phase == "load" and any(map(_loads_weights, near)):
        return "weights"
    return "drafter" if any(_DRAFTER in frame for frame in frames) else ""


def keeps_drafted_states(frames: Sequence[str]) -> bool:
    """Whether the CPU build's Gated DeltaNet is there, which keeps a state for each draft."""
    return any(_DRAFTED_STATES in frame for frame in frames)


def _loads_weights(frame: str) -> bool:
    file, _, function = frame.rpartition(":")
    return "/vllm/model_executor/" in file and _LOADERS.search(function) is not None
