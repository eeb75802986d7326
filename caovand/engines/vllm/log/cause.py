"""Finds the first cause of failure in the log of a failed engine.

vLLM reports a failure several times: the worker prints it, the engine core wraps it, the API server
wraps that. Wrappers are skipped; a consequence, such as a dead worker, counts only if no cause is
found; an exception that no row knows is still named.

Many logged errors were handled: retries of the hub, a bad request, anything before it served or
before it resumed generating. Those do not count. Errors from shortly before the first wrapper on
take precedence over older ones.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caovand.core.healing.failure import Failure, Finding
from caovand.engines.common.hit import vanished
from caovand.engines.common.signature import LONGEST, Signature
from caovand.engines.vllm.log.component import component, keeps_drafted_states
from caovand.engines.vllm.log.line import Parts, take_apart
from caovand.engines.vllm.log.lost import SILENT, says_nothing
from caovand.engines.vllm.log.phases import figures, phase_of
from caovand.engines.vllm.log.signatures import (
    BY_ID,
    is_crash,
    is_evidence,
    is_exception,
    match,
)

NEAR = 60  # lines before the first wrapper that may contain its cause
UNNAMED = "exception"  # the signature of an exception no row knows
WENT_ON = 2  # statistics in a row with new tokens: a single one may still count older tokens
_CHAIN = 400  # lines after a generic cause within which a better one must follow
_CALL = 400  # lines in which workers report a failed call, before the engine core does
_TEXT = 500  # characters kept of a causing line
_FRAMES = 200  # last frames kept of a traceback; compilers have a hundred

# How that code fails if checkpoint and configuration do not match.
_MISFIT = re.compile(
    r"(?:KeyError|AssertionError|ValueError|IndexError)\b"
    r"|RuntimeError: (?:The size of tensor a|start \(\d+\) \+ length)"
)
_FRAME = re.compile(r'\s*File "([^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
_RAISED = 8  # lines before an exception in which the frame that raised it is

_CALL_FAILED = re.compile(r"^Invocation of \w+ method failed")
# Errors that the engine handled: such a line and the traceback after it are not evidence.
# Several contain a request's name, which clients choose.
_DEALT_WITH = re.compile(
    r"retrying \d+ of \d+|^Error retrieving |\[Autotuner\]|^Failed to load plugin (?!caovan)"
    r"|^Unexpected error pre-processing request|^Error in preprocessing prompt"
    r"|^Failed to advance FSM for request|Exception in ASGI|^Exception ignored in"
    r"|^(?:Task|Future) exception was never retrieved"
    r"|^Exception in thread \S+ \(_report_usage_worker\)"
    rf"|{_CALL_FAILED.pattern}"
)
_WORKER = re.compile(r"(?:Vllm)?Worker")
_UNEVEN = BY_ID["drafts.uneven"]
_WRAPPERS = (BY_ID["engine.dead"], BY_ID["engine.lost"])
_CHAINED = ("The above exception was", "During handling of the above exception")
_STOPPED = re.compile(r"(?:KeyboardInterrupt|SystemExit|asyncio\.\S*CancelledError)\b")
_STOPPING = re.compile(r"Shutdown initiated|(?:\^C)?KeyboardInterrupt\b")

# Failures blamed on a component, instead of on the engine's installation or the split.
_NOT_OPERATORS: Mapping[str, Failure] = {"plugin": "plugin-error", "drafter": "unknown"}
_OPERATORS = frozenset({"engine.broken", "args.uneven"})

# Only these rows explain those better; other generic rows yield to any cause.
_BETTER: Mapping[str, frozenset[str]] = {
    "oom.cuda": frozenset({"oom.sampler", "oom.load", "oom.kv.none"}),
    "cublas.failed": frozenset({"cuda.illegal", "cuda.launch", "gpu.lost"}),
}

# How a process ended, as its parent reports it: `exit code: -4`, `{'EngineCore': -4}`.
_ENDED = re.compile(r"(?:\(exit code: |Failed core proc\(s\): \{'\w{1,40}': )-(\d{1,2})[)}]")
# Signals that the processor raises, not another process.
_FAULTS: Mapping[str, str] = {
    "4": "SIGILL, an illegal instruction",
    "7": "SIGBUS, a bad memory access",
    "8": "SIGFPE, an arithmetic error",
    "11": "SIGSEGV, a bad memory access",
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


def find_cause(
    lines: Sequence[str], phase: str = "serving", *, alive: bool = False
) -> Finding | None:
    """The cause of the engine's failure in its log; None without evidence.

    `phase` is the engine's phase, for logs that do not show it. If the engine is `alive`, a cause
    counts only if one of its processes reports it.
    """
    hits, stopped = _hits(lines, phase)
    wrapper = next((hit for hit in hits if hit.is_kind("wrapper")), None)
    if alive and wrapper is None:
        return None
    hit = _first_cause(hits, wrapper)
    if hit is None and not alive:
        hit = _first_symptom(hits, wrapper)
        if hit is not None and stopped and _is_an_end(hit):
            return None
    return _finding(hit, hits, lines) if hit else None


def announces(line: str) -> bool:
    """Whether a line is a wrapper: the cause is near it."""
    if "ERROR" not in line:
        return False
    parts = take_apart(line)
    return parts.level == "ERROR" and _is_wrapper(parts.message)


def _is_wrapper(message: str) -> bool:
    return any(row.pattern.match(message) for row in _WRAPPERS)


def _hits(lines: Sequence[str], phase: str) -> tuple[list[_Hit], bool]:
    """Lines that may be the cause; and whether the engine was asked to stop."""
    hits: list[_Hit] = []
    frames: dict[tuple[str, str, bool], deque[str]] = {}
    known: dict[str, tuple[Signature, Mapping[str, str]] | None] = {}
    aside = _Aside()
    shown = ""  # the phase that the log has shown so far
    stopped = False
    went_on = 0
    for index, line in enumerate(lines):
        parts = take_apart(line)
        before, shown = shown, _phase_at(line, shown)
        if shown == "serving" != before:
            # It recovered from all of these.
            hits, stopped = [], False
        lives = _generates(parts, line)
        if lives is not None:
            went_on = went_on + 1 if lives else 0
            if went_on >= WENT_ON:
                hits = []
            continue
        here = shown or phase
        message = parts.message
        stopped = stopped or bool(_STOPPING.match(message))
        if aside.holds(parts):
            if _CALL_FAILED.match(message):
                _drop_call(hits, index)
            continue
        writer = (parts.process, parts.pid, bool(parts.level))
        frame = _FRAME.match(message)
        if frame:
            seen = frames.setdefault(writer, deque(maxlen=_FRAMES))
            seen.append(f"{frame[1]}:{frame['function'] or ''}")
        elif message.startswith("Traceback (most recent call last)"):
            frames.pop(writer, None)
        elif is_evidence(parts) and not _STOPPED.match(message):
            # Every pending request of a dead engine repeats it.
            if message not in known:
                known[message] = match(parts)
            found = known[message]
            if found is None and not is_exception(message):
                continue
            row, captures = found or (None, {})
            behind = tuple(frames.get(writer, ()))
            if row is _UNEVEN and not keeps_drafted_states(behind):
                row, captures = None, {}
            if here == "serving" and _is_a_requests(parts, row):
                continue
            went_on = 0
            hits.append(_Hit(index, parts, here, row, captures, behind))
    return hits, stopped


def _drop_call(hits: list[_Hit], index: int) -> None:
    """Drop the workers' lines about a failed call that the engine core, at `index`, survives.

    Workers report it in the same words as a failure that ends them.
    """
    first = len(hits)
    while first and hits[first - 1].index >= index - _CALL:
        first -= 1
    hits[first:] = [hit for hit in hits[first:] if not _WORKER.match(hit.parts.process)]


def _generates(parts: Parts, line: str) -> bool | None:
    """Whether vLLM's line of statistics counts new tokens; None for another line."""
    if not parts.source.endswith("loggers.py"):
        return None
    told = figures(line).get("generation_tps")
    return None if told is None else bool(told)


class _Aside:
    """Knows which lines belong to a handled error.

    A record of vLLM's logger has the same process, time and file on all its lines. Raw output ends
    at the next line with a prefix, or at the end of the traceback.
    """

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], tuple[str, str]] = {}
        self._raw: dict[str, str] = {}  # by process: "open", or "ended" after the exception

    def holds(self, parts: Parts) -> bool:
        """Whether this line, the log's next, belongs to such an error."""
        message = parts.message
        if not parts.level or parts.uvicorn:
            return self._holds_raw(parts.process, message, bool(parts.level))
        self._raw.pop("", None)
        self._raw.pop(parts.process, None)
        process, record = (parts.process, parts.pid), (parts.time, parts.source)
        if parts.level in ("ERROR", "CRITICAL") and _DEALT_WITH.search(message[:LONGEST]):
            self._logged[process] = record
            return True
        if self._logged.get(process) != record:
            return False
        # The engine's end may be logged in the same second from the same file.
        if _is_wrapper(message):
            del self._logged[process]
            return False
        return True

    def _holds_raw(self, process: str, message: str, proper: bool) -> bool:
        if _DEALT_WITH.search(message[:LONGEST]):
            self._raw[process] = "open"
            return True
        state = self._raw.get(process)
        if state is None:
            if proper:
                self._raw.pop("", None)
            return False
        again = state == "ended" and message.startswith("Traceback (most recent")
        if proper or again or is_crash(message) or message.startswith("Process "):
            self._raw.pop(process, None)
            return False
        if is_exception(message):
            self._raw[process] = "ended"
        elif message.startswith(_CHAINED):
            self._raw[process] = "open"
        return True


def _phase_at(line: str, before: str) -> str:
    """The phase after a line. Once it serves, no line is a start: a prompt may look like one."""
    if before == "serving":
        return before
    mark = phase_of(line)
    if mark is None or mark.phase is None:
        return before
    return "serving" if mark.phase == "http" and mark.progress == 1.0 else mark.phase


def _is_a_requests(parts: Parts, row: Signature | None) -> bool:
    """While serving, only the engine's end and exceptions in its own processes are the engine's.

    The API server's errors belong to requests. Any text may contain a request's name, which clients
    choose; only a text's beginning is safe.
    """
    ends = row is not None and row.kind in ("wrapper", "consequence")
    # Newer versions begin with a tag such as `[shutdown] `.
    message = re.sub(r"^\[\w+\] ", "", parts.message)
    if ends and row is not None and row.pattern.match(message):
        return False
    if parts.process.lower().startswith("apiserver") and not ends:
        return True
    return bool(parts.level) and not is_exception(parts.message)


def _first_cause(hits: Sequence[_Hit], wrapper: _Hit | None) -> _Hit | None:
    """The first cause near the first wrapper; an older one only if there is no other."""
    causes = [hit for hit in hits if hit.is_kind("cause", "generic")]
    if wrapper is None:
        return _better(causes[0], causes) if causes else None
    near = [hit for hit in causes if hit.index >= wrapper.index - NEAR]
    if near:
        return _better(near[0], near)
    named = any(hit.signature is None and hit.index > wrapper.index for hit in hits)
    return _better(causes[-1], causes) if causes and not named else None


def _better(first: _Hit, causes: Sequence[_Hit]) -> _Hit:
    """A later cause that explains a generic one better, else the generic one."""
    if first.signature is None or first.signature.kind == "cause":
        return first
    better = _BETTER.get(first.signature.id)
    for hit in causes:
        if hit.signature is None or not first.index < hit.index <= first.index + _CHAIN:
            continue
        if hit.signature.kind == "cause" and (better is None or hit.signature.id in better):
            return hit
    return first


def _first_symptom(hits: Sequence[_Hit], wrapper: _Hit | None) -> _Hit | None:
    """Without a known cause: the first of an exception and a consequence.

    Exceptions before the engine reports its failure were handled, and do not count.
    """
    rest = [
        hit
        for hit in hits
        if hit.is_kind("consequence") or (hit.signature is None and _after(hit, wrapper))
    ]
    told = [hit for hit in rest if hit.signature or ": " in hit.parts.message]
    reported = [hit for hit in hits if hit.signature is BY_ID["engine.dead"]]
    return next(iter(told or rest or reported), wrapper)


def _is_an_end(hit: _Hit) -> bool:
    """Whether it only reports that a process is gone, as in every stop, but not why."""
    row = hit.signature
    return row is not None and (row.id in SILENT or row.kind == "wrapper")


def _after(hit: _Hit, wrapper: _Hit | None) -> bool:
    return wrapper is None or hit.index > wrapper.index


def _finding(hit: _Hit, hits: Sequence[_Hit], lines: Sequence[str]) -> Finding:
    captures = dict(hit.captures)
    row, rows = hit.signature, {one.signature.id for one in hits if one.signature}
    blamed = component(hit.frames, hit.phase, known=row is not None)
    blamed = "drafter" if row is _UNEVEN else blamed
    if blamed:
        captures["component"] = blamed
    silent = row is not None and says_nothing(row.id, captures, hit.phase, rows, lines)
    silent = silent or "silent" in captures
    if silent:
        captures["silent"] = "yes"
    failure = row.means(hit.phase) if row else _unnamed(hit, blamed)
    if row and row.id in _OPERATORS and hit.phase != "serving":
        failure = _NOT_OPERATORS.get(blamed, failure)
    if row in _WRAPPERS and hit.phase != "serving" and not silent:
        failure = "unknown"
    text = _short(hit.parts.message)
    if row is None and text.isidentifier():
        text = _short(f"{text}{_place(hit, lines)}")
    ended = _ENDED.search(text)
    if ended and ended[1] in _FAULTS and hit.is_kind("consequence", "wrapper"):
        captures.update(fault=_FAULTS[ended[1]], silent="yes")
        failure, text = "engine-died", f"{text} [{captures['fault']}]"
    elif silent:
        text = vanished(text)
    return Finding(failure, text, hit.phase, captures, row.id if row else UNNAMED, hit.index + 1)


def _place(hit: _Hit, lines: Sequence[str]) -> str:
    """Where an exception without a message was raised, and by which code; else it tells nothing."""
    code = ""
    for line in reversed(lines[max(hit.index - _RAISED, 0) : hit.index]):
        parts = take_apart(line)
        if (parts.process, parts.pid) != (hit.parts.process, hit.parts.pid):
            continue
        if frame := _FRAME.match(parts.message):
            file = "/".join(frame[1].split("/")[-2:])
            return f" at {file}:{frame['line']}: {code}"
        code = parts.message.strip() if parts.message.strip(" ^~") else code
    return ""


def _unnamed(hit: _Hit, blamed: str) -> Failure:
    if blamed == "plugin":
        return "plugin-error"
    # Python 3.10.0 fails like this on code that the compiler generates.
    if blamed == "weights" and _MISFIT.match(hit.parts.message):
        return "model-missing"
    index = hit.phase == "compile" and hit.parts.message.startswith("IndexError: tuple index out")
    if blamed == "compiler" or index:
        return "compile-failed"
    return "engine-died" if hit.phase == "serving" else "unknown"


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."
