"""From the log of a failed engine to the first cause in the failing process.

vLLM says everything several times: the worker prints what happened, the engine core wraps it, the
API server wraps that. Wrappers are looked through; a consequence, such as a worker that is gone,
counts only where no cause is found; an exception no row knows is still named.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from caovand.core.failure import Failure, Finding
from caovand.engines.vllm.line import Parts, take_apart
from caovand.engines.vllm.phases import phase_of
from caovand.engines.vllm.signatures import BY_ID, Signature, is_evidence, is_exception, match

RING = 2000  # lines looked at, from the end
UNNAMED = "exception"  # the signature of an exception no row knows
_CHAIN = 400  # lines after a generic cause in which the better one must follow
_TEXT = 500  # characters of a causing line that are kept

# Where a traceback has been, by a piece of a file's path.
_PLUGIN = re.compile(r"/caovan_vllm_sm75|/vllm/plugins/__init__\.py$")
_DRAFTER = "/spec_decode/"
_PREFIX_CACHE = "/worker/mamba_utils.py"
_COMPILER = re.compile(
    r"/torch/_(?:dynamo/symbolic_convert|inductor/(?:compile_fx|codecache|scheduler|graph))\.py"
)
_XID_PID = re.compile(r"\bpid='?(\d+)")
_FRAME = re.compile(r'\s*File "([^"]+)", line \d+')

# These say that a process is gone and not why: it was killed, by someone else perhaps.
_SILENT = frozenset({"worker.died", "engine.exited"})

# A torch OOM is explained better only by these; other generic rows by any cause.
_BETTER: Mapping[str, frozenset[str]] = {
    "oom.cuda": frozenset({"oom.sampler", "oom.load", "oom.kv.none"}),
}


@dataclass(frozen=True)
class _Hit:
    """A line that may be the cause; `signature` is None for an exception no row knows."""

    index: int
    parts: Parts
    phase: str
    signature: Signature | None
    captures: Mapping[str, str]
    frames: tuple[str, ...]

    def is_kind(self, *kinds: str) -> bool:
        return self.signature is not None and self.signature.kind in kinds


def find_cause(lines: Sequence[str], phase: str = "serving") -> Finding | None:
    """What made the engine fail, as far as its log tells; None where nothing in it does.

    `phase` is where the engine stood, for logs that do not show it themselves.
    """
    skipped = max(0, len(lines) - RING)
    hits = _hits(lines[skipped:], phase)
    hit = _first_cause(hits) or _first_symptom(hits)
    return _finding(hit, skipped) if hit else None


def find_in_kernel(lines: Sequence[str], pids: Collection[int]) -> Finding | None:
    """A GPU fault, or an out-of-memory kill of one of `pids`, in lines of the kernel log."""
    symptom: Finding | None = None
    for index, line in enumerate(lines):
        parts = take_apart(line)
        found = match(parts)
        if found is None:
            continue
        row, captures = found
        if row.id == "host.killed" and int(captures["pid"]) not in pids:
            continue
        # Another program's fault on the same card; where none is named the engine's log tells.
        blamed = _XID_PID.search(line)
        if row.id == "xid.app" and (blamed is None or int(blamed[1]) not in pids):
            continue
        if row.id in ("xid.lost", "gpu.lost", "host.killed"):
            return Finding(row.failure, _short(line), "", captures, row.id, index + 1)
        if row.id == "xid.app" and symptom is None:
            symptom = Finding(row.failure, _short(line), "", captures, row.id, index + 1)
    return symptom


def _hits(lines: Sequence[str], phase: str) -> list[_Hit]:
    hits: list[_Hit] = []
    frames: dict[tuple[str, str, bool], list[str]] = {}
    shown = ""  # by the log so far
    in_request = False
    for index, line in enumerate(lines):
        parts = take_apart(line)
        shown = _phase_at(line, shown)
        here = shown or phase
        if parts.level:
            # A failed request's traceback follows this line raw, up to the next proper one.
            in_request = parts.uvicorn and "Exception in ASGI" in parts.message
        elif in_request and not parts.process:
            continue
        writer = (parts.process, parts.pid, bool(parts.level))
        message = parts.message
        frame = _FRAME.match(message)
        if frame:
            frames.setdefault(writer, []).append(frame.group(1))
        elif message.startswith("Traceback (most recent call last)"):
            frames[writer] = []
        elif is_evidence(parts):
            found = match(parts)
            if found is None and not is_exception(message):
                continue
            row, captures = found or (None, {})
            if here == "serving" and _is_a_requests(parts, row):
                continue
            seen = tuple(frames.get(writer, ()))
            hits.append(_Hit(index, parts, here, row, captures, seen))
    return hits


def _phase_at(line: str, before: str) -> str:
    """The phase after a line; what is compiled or captured while serving is no new start."""
    mark = phase_of(line)
    if mark is None or mark.phase is None or (before == "serving" and mark.phase != "resolve"):
        return before
    return "serving" if mark.phase == "http" and mark.progress == 1.0 else mark.phase


def _is_a_requests(parts: Parts, row: Signature | None) -> bool:
    """While serving, the API server's errors are those of requests, but for the engine's end."""
    ends = row is not None and row.kind in ("wrapper", "consequence")
    return parts.process.lower().startswith("apiserver") and not ends


def _first_cause(hits: Sequence[_Hit]) -> _Hit | None:
    first = next((hit for hit in hits if hit.is_kind("cause", "generic")), None)
    if first is None or first.signature is None or first.signature.kind == "cause":
        return first
    better = _BETTER.get(first.signature.id)
    for hit in hits:
        if hit.signature is None or not first.index < hit.index <= first.index + _CHAIN:
            continue
        if hit.signature.kind == "cause" and (better is None or hit.signature.id in better):
            return hit
    return first


def _first_symptom(hits: Sequence[_Hit]) -> _Hit | None:
    """Without a known cause: what comes first of an exception and a consequence.

    Exceptions before the engine says that it fails were dealt with, and do not count.
    """
    wrapper = next((hit for hit in hits if hit.is_kind("wrapper")), None)
    rest = [
        hit
        for hit in hits
        if hit.is_kind("consequence") or (hit.signature is None and _after(hit, wrapper))
    ]
    told = [hit for hit in rest if hit.signature or ": " in hit.parts.message]
    return next(iter(told or rest), wrapper)


def _after(hit: _Hit, wrapper: _Hit | None) -> bool:
    return wrapper is None or hit.index > wrapper.index


def _finding(hit: _Hit, skipped: int) -> Finding:
    captures = dict(hit.captures)
    component = _component(hit)
    if component:
        captures["component"] = component
    if hit.signature and hit.signature.id in _SILENT:
        captures["silent"] = "yes"
    row = hit.signature
    failure = row.means(hit.phase) if row else _unnamed(hit, component)
    if row is BY_ID["engine.dead"] and hit.phase != "serving":
        failure = "unknown"
    return Finding(
        failure, _short(hit.parts.message), hit.phase, captures, row.id if row else UNNAMED,
        skipped + hit.index + 1,
    )  # fmt: skip


def _component(hit: _Hit) -> str:
    """Whose code the traceback went through.

    An asynchronous CUDA error surfaces anywhere, so any frame of the plugin counts for it; for an
    exception only the frames near it do.
    """
    near = hit.frames if hit.signature else hit.frames[-4:]
    if any(_PLUGIN.search(frame) for frame in near):
        return "plugin"
    if any(_COMPILER.search(frame) for frame in hit.frames):
        return "compiler"
    if any(_PREFIX_CACHE in frame for frame in hit.frames):
        return "prefix-cache"
    return "drafter" if any(_DRAFTER in frame for frame in hit.frames) else ""


def _unnamed(hit: _Hit, component: str) -> Failure:
    if component == "plugin":
        return "plugin-error"
    if component == "compiler":
        return "compile-failed"
    return "engine-died" if hit.phase == "serving" else "unknown"


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."
