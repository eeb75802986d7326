"""Find the first cause of failure in the log of a failed engine.

vLLM reports a failure several times: the worker prints it, the engine core wraps it, the API server
wraps that. Wrappers are skipped; a consequence, such as a dead worker, counts only if no cause is
found; an exception without a row is still named.

`search.py` finds the lines that may be the cause. Errors shortly before the first wrapper, or
later, take precedence over older ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from caovand.core.healing.failure import Failure, Finding
from caovand.engines.common.logs.callers import IMPORTS, MISMATCH, caller, importer
from caovand.engines.common.logs.conflicts import CONFLICT, whole_conflict
from caovand.engines.common.logs.hit import best_cause, explain_lost_process, shorten
from caovand.engines.common.logs.rows import toolkit
from caovand.engines.common.logs.rows.binaries import NUMPY, numpy_user
from caovand.engines.common.logs.rows.kernel_owners import with_owner
from caovand.engines.common.logs.rows.python import UNSURE_ROWS, as_raised_by_reader
from caovand.engines.common.logs.rows.raised import (
    BUILDING,
    REFUSED_VALUE,
    family_of,
    packages,
)
from caovand.engines.common.logs.signature import MAX_LINE, Signature, first
from caovand.engines.vllm.log.component import (
    UNNAMED,
    PossibleCause,
    component_of,
    failure_of_unnamed,
    raised_by_reader,
)
from caovand.engines.vllm.log.handled import WRAPPERS, is_wrapper
from caovand.engines.vllm.log.line import take_apart
from caovand.engines.vllm.log.rows.ends import ALONE
from caovand.engines.vllm.log.rows.model import CODE_AGAIN
from caovand.engines.vllm.log.search import UNEVEN, CauseSearch
from caovand.engines.vllm.log.signatures import BY_ID
from caovand.engines.vllm.log.vanished import SILENT_ROWS, is_unexplained

MAX_LINES_BEFORE = 60  # lines before the first wrapper that may contain its cause
_CHAIN = 400  # lines after a generic cause within which a better one must follow
_TEXT = 500  # characters kept of a causing line


_RUNS = re.compile(r"EngineCore|(?:Vllm|Ray)?Worker")

_INSTALLATION_ROWS = frozenset(
    {
        "engine.broken",
        "engine.loader",
        "engine.cuda",
        "engine.import",
        "engine.absent",
        "python.part",
        "args.uneven",
    }
)
"""Rows that blame the engine's installation or the split, unless a component is to blame."""
_COMPONENT_FAILURES: Mapping[str, Failure] = {"plugin": "plugin-error", "drafter": "unknown"}

# Rows of imports that fail where a compiled part is not loaded.
_IMPORTED = frozenset(
    {IMPORTS, "engine.broken", "engine.import", "engine.absent", "torch.operator"}
)
_UNLINKED = frozenset({"engine.unlinked", "engine.loader"})
_SYMBOL = "undefined symbol: "
_LOADERS_TEXT = re.compile(r"ImportError\(['\"](.{1,400})['\"]\)")

# Only these rows explain those better, whatever their kind; other generic rows yield to any cause.
_EXPLAINED_BY: Mapping[str, frozenset[str]] = {
    "oom.cuda": frozenset({"oom.sampler", "oom.load", "oom.kv.none"}),
    "cublas.failed": frozenset({"cuda.illegal", "cuda.launch", "gpu.lost"}),
    "jit.cc": frozenset({"jit.python", "jit.header", "jit.link"}),
}

# A line of the API server, before the traceback whose exception says what is wrong.
_ANNOUNCED = re.compile(r"Error in applying chat template")
_REPORT = 100  # lines of such a traceback

_UNLOADED = re.compile(
    r"^.{0,200}\bFailed to import from vllm\._\w{1,20} with ImportError\(['\"]"
    r"(?P<library>[^\s:]{1,200}): undefined symbol"
)
"""A warning, which says why an operator is missing later."""
_LOGS_END = re.compile(r"(?:^|/)(?:core|multiproc_executor)\.py$")
_SAMPLES = re.compile(
    r"/flashinfer/sampling\.py:|/vllm/(?:v1/(?:worker/gpu/)?sample/(?:\w{1,40}/){0,3}\w{1,60}"
    r"|model_executor/layers/sampler)\.py:(?!compute_logprobs)"
)
"""Code that samples, outside weights and KV cache; a prompt's log-probabilities are not sampled."""
_LOOPBACK = re.compile(
    r"\b(?:remote=\[(?P<address>127\.[\d.]{5,11}|::1)\]|hostname to a \(local\) address)"
)
"""Gloo's address of another rank, which is one of this machine alone, or its warning of that."""
_FIRST_PHASE = "resolve"
_NO_PLATFORM = re.compile(r"No platform detected, vLLM is running on UnspecifiedPlatform")
_PARSES = re.compile(r"/tool_parsers/[^:]{1,80}:extract_tool_calls")
"""Code that reads a model's answer as JSON, not a file of the model."""
_NOWHERE = re.compile(r"^.{0,100}(?:No platform detected|Failed to infer device type)")
_ALONE = "Started a local Ray instance"
_WHOLE_CONFIG = re.compile(r"validation error for VllmConfig$")
"""What refuses after the model's own configuration has been read."""
_REFUSAL = 3  # lines from that line to the reason
# A worker on another node than the engine: `(RayWorkerWrapper pid=3, ip=10.0.0.2) ERROR ...`.
_OTHER_NODE = re.compile(r".{0,80}\bpid=\d{1,10}, ip=(?P<node>[\d.]{7,15}|[\da-f:]{3,45})\)")
# How a process ended, as its parent reports it: `exit code: -4`, `{'EngineCore': -4}`.
_ENDED = re.compile(r"(?:\(exit code: |Failed core proc\(s\): \{'\w{1,40}': )-(\d{1,2})[)}]")
_KILLED = re.compile(r"\(exit code: -9\)|Failed core proc\(s\): \{'\w{1,40}': -9\}")
# Signals that the CPU raises, not another process.
_FAULTS: Mapping[str, str] = {
    "4": "SIGILL, an illegal instruction",
    "7": "SIGBUS, a bad memory access",
    "8": "SIGFPE, an arithmetic error",
    "11": "SIGSEGV, a bad memory access",
}


def find_cause(
    lines: Sequence[str], phase: str = "serving", *, alive: bool = False
) -> Finding | None:
    """The cause of the engine's failure in its log; None without evidence.

    `phase` is the engine's phase, for logs that do not show it. If the engine is `alive`, a cause
    counts only if one of its processes reports it.
    """
    search = CauseSearch(lines, phase)
    hits = search.hits
    wrapper = next((hit for hit in hits if hit.row.kind == "wrapper"), None)
    if alive and wrapper is None:
        return None
    hit = _first_cause(hits, wrapper)
    hit = _unlinked(hits, hit) or hit
    if hit is None and not alive:
        hit = _first_symptom(hits, wrapper)
        if hit is not None and search.stopped and _is_end(hit):
            return None
    if hit is None and not alive and not search.stopped and phase == _FIRST_PHASE:
        return _without_platform(lines) if search.reached in ("", _FIRST_PHASE) else None
    return _finding(hit, hits, lines) if hit else None


def _without_platform(lines: Sequence[str]) -> Finding | None:
    """The finding for a log that ends without a failure, and whose start found no card: what
    follows then is always the same refusal."""
    for number, line in enumerate(lines, 1):
        if found := _NO_PLATFORM.search(line[:MAX_LINE]):
            captures = {"platform": "UnspecifiedPlatform"}
            return Finding("gpu-absent", found[0], _FIRST_PHASE, captures, "gpu.absent", number)
    return None


def announces_failure(line: str) -> bool:
    """Whether a line is a wrapper: the cause is near it."""
    if "ERROR" not in line:
        return False
    parts = take_apart(line)
    return parts.level == "ERROR" and is_wrapper(parts.message)


def _first_cause(
    hits: Sequence[PossibleCause], wrapper: PossibleCause | None
) -> PossibleCause | None:
    """The first cause near the first wrapper; an older one only if there is no other."""
    causes = [hit for hit in hits if hit.row.kind in ("cause", "generic")]
    if wrapper is not None:
        near = [hit for hit in causes if hit.index >= wrapper.index - MAX_LINES_BEFORE]
        named = any(hit.row is UNNAMED and hit.index > wrapper.index for hit in hits)
        causes = near or ([] if named else causes[-1:])
    return best_cause(causes, _EXPLAINED_BY, _CHAIN) if causes else None


def _unlinked(hits: Sequence[PossibleCause], chosen: PossibleCause | None) -> PossibleCause | None:
    """The compiled part that did not load for a missing symbol, if another import is blamed.

    Without that part vLLM does not import completely, and programs that ask it for names fail.
    """
    if chosen is not None and chosen.row.id not in _IMPORTED:
        return None
    unlinked = (hit for hit in hits if hit.row.id in _UNLINKED and _SYMBOL in hit.text)
    hit = next(unlinked, None)
    if hit is None or (quoted := _LOADERS_TEXT.search(hit.text)) is None:
        return hit
    match = first([BY_ID["engine.loader"]], quoted[1])
    return replace(hit, row=match[0], captures=match[1]) if match else hit


def _first_symptom(
    hits: Sequence[PossibleCause], wrapper: PossibleCause | None
) -> PossibleCause | None:
    """Without a known cause: the first exception or consequence.

    Exceptions before the engine reports its failure were handled, and do not count.
    """
    symptoms = _without_announcements(
        [
            hit
            for hit in hits
            if hit.row.kind == "consequence" or (hit.row is UNNAMED and _after(hit, wrapper))
        ]
    )
    telling = [hit for hit in symptoms if hit.row is not UNNAMED or ": " in hit.parts.message]
    reported = [hit for hit in hits if hit.row is BY_ID["engine.dead"]]
    return next(iter(telling or symptoms or reported), wrapper)


def _without_announcements(hits: list[PossibleCause]) -> list[PossibleCause]:
    """The hits, without the lines that only announce the exception after them."""
    return [
        hit
        for place, hit in enumerate(hits)
        if not _ANNOUNCED.match(hit.text)
        or not any(later.index <= hit.index + _REPORT for later in hits[place + 1 :])
    ]


def _is_end(hit: PossibleCause) -> bool:
    """Whether it only reports that a process is gone, as at every stop, but not why."""
    return hit.row.id in SILENT_ROWS or hit.row.kind == "wrapper"


def _after(hit: PossibleCause, wrapper: PossibleCause | None) -> bool:
    """Whether it is of the engine's end: after the wrapper, or by the code that logs that end."""
    of_end = hit.parts.level == "ERROR" and _LOGS_END.search(hit.parts.source) is not None
    return of_end or wrapper is None or hit.index > wrapper.index


def _finding(hit: PossibleCause, hits: Sequence[PossibleCause], lines: Sequence[str]) -> Finding:
    hit = _with_exact_row(hit, lines)
    component = "drafter" if hit.row is UNEVEN else component_of(hit)
    captures = {**hit.captures, **_circumstances(hit, lines)}
    if component:
        captures["component"] = component
    rows = {other.row.id for other in hits}
    if "silent" in captures or is_unexplained(hit.row.id, captures, hit.phase, rows, lines):
        captures["silent"] = "yes"
    row, failure, raised_by = _meaning(hit, component)
    if row in WRAPPERS and hit.phase != "serving" and "silent" not in captures:
        failure = "unknown"
    captures |= raised_by
    captures |= _package(hit, row, captures, lines)
    if "silent" in captures and hit.phase != "serving" and any(map(_KILLED.search, lines)):
        captures["killed"] = "SIGKILL"
    text = shorten(hit.text, _TEXT)
    ended = _ENDED.search(text)
    if ended and ended[1] in _FAULTS and hit.row.kind in ("consequence", "wrapper"):
        captures.update(fault=_FAULTS[ended[1]], silent="yes")
        failure, text = "engine-died", f"{text} [{captures['fault']}]"
    elif "silent" in captures:
        text = explain_lost_process(text)
    return Finding(failure, text, hit.phase, captures, row.id, hit.index + 1)


def _with_exact_row(hit: PossibleCause, lines: Sequence[str]) -> PossibleCause:
    """The hit with the row that the lines before it or its traceback make of a general one."""
    if hit.row is BY_ID["ray.short"] and any(_ALONE in line for line in lines[: hit.index]):
        return replace(hit, row=ALONE)
    if hit.row is BY_ID["model.code"]:
        before = lines[max(hit.index - _REFUSAL, 0) : hit.index]
        return replace(hit, row=CODE_AGAIN) if any(map(_WHOLE_CONFIG.search, before)) else hit
    if (
        hit.row.id == "oom.cuda"
        and hit.phase != "serving"
        and any(map(_SAMPLES.search, hit.frames))
    ):
        return replace(hit, row=BY_ID["oom.sampler"])
    if hit.row.id == CONFLICT:
        row, captures = whole_conflict(hit.row, hit.captures, lines)
        return replace(hit, row=row, captures=captures)
    if hit.row is BY_ID["cuda.arch"]:
        row, captures = with_owner(hit.row, dict(hit.captures), hit.frames)
        return replace(hit, row=row, captures=captures)
    return hit


def _circumstances(hit: PossibleCause, lines: Sequence[str]) -> Mapping[str, str]:
    """Facts from other lines that the answer needs: the node, the platform, an unloaded library,
    the toolkit."""
    facts: dict[str, str] = {}
    if elsewhere := _OTHER_NODE.match(lines[hit.index]):
        facts["node"] = elsewhere["node"]
    if hit.row.id == "engine.cuda" and any(map(_NOWHERE.search, lines)):
        facts["nowhere"] = "no platform was detected"
    if hit.row.id == toolkit.TOOLKIT:
        facts |= toolkit.picked_up(lines)
    if hit.row.id == "nccl.network":
        loopback = next(filter(None, map(_LOOPBACK.search, lines)), None)
        facts |= {"loopback": loopback["address"] or "127.0.0.1"} if loopback else {}
    unloaded = map(_UNLOADED.match, lines[: hit.index] if "operator" in hit.captures else ())
    if match := next(filter(None, unloaded), None):
        facts["unloaded"] = match["library"]
    return facts


def _meaning(hit: PossibleCause, component: str) -> tuple[Signature, Failure, Mapping[str, str]]:
    """The row that explains the hit, its failure, and the packages that raised it."""
    row, raised_by = hit.row, dict[str, str]()
    if row.id == "model.json" and any(map(_PARSES.search, hit.frames)):
        row = BY_ID["args.call"]
    reads = raised_by_reader(hit) and row is not UNNAMED
    failure = (as_raised_by_reader(row) if reads else row).means(hit.phase)
    if row is UNNAMED or (failure == "unknown" and row.id in UNSURE_ROWS):
        failure = failure_of_unnamed(hit, component)
        family = family_of(hit.frames, hit.text) if failure == "unknown" and not component else None
        if family is REFUSED_VALUE and _RUNS.match(hit.parts.process):
            family = None
        if family is not None and row is UNNAMED:
            row, failure = family, family.means(hit.phase)
            raised_by = dict(packages(hit.frames))
        elif family is not None and family.id in BUILDING:
            failure = as_raised_by_reader(row).means(hit.phase)
    if row.id in _INSTALLATION_ROWS and hit.phase != "serving":
        failure = _COMPONENT_FAILURES.get(component, failure)
    return row, failure, raised_by


def _package(
    hit: PossibleCause, row: Signature, captures: Mapping[str, str], lines: Sequence[str]
) -> Mapping[str, str]:
    """The package that failed, by the traceback, as captures of the row."""
    if row.id == IMPORTS:
        return importer(hit.frames, captures)
    if row.id == NUMPY:
        return numpy_user(lines, hit.index)
    return caller(hit.frames, captures) if row.id == MISMATCH else {}
