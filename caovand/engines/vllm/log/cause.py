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
from collections.abc import Mapping, Sequence

from caovand.core.healing.failure import Failure, Finding
from caovand.engines.common.hit import explain_lost_process
from caovand.engines.common.python import UNSURE_ROWS, sure
from caovand.engines.common.raised import BUILDING, REFUSED_VALUE, family_of
from caovand.engines.common.signature import Signature
from caovand.engines.vllm.log.component import (
    Hit,
    Traces,
    component_of,
    failure_of_unnamed,
    keeps_drafted_states,
    phase_behind,
    place,
    raised_by_reader,
)
from caovand.engines.vllm.log.handled import CALL_FAILED, WRAPPERS, Aside, is_wrapper
from caovand.engines.vllm.log.line import Parts, take_apart
from caovand.engines.vllm.log.lost import SILENT, says_nothing
from caovand.engines.vllm.log.phases import figures, phase_of
from caovand.engines.vllm.log.signatures import (
    BY_ID,
    is_evidence,
    is_exception,
    match_text,
)

NEAR = 60  # lines before the first wrapper that may contain its cause
UNNAMED = "exception"  # the signature of an exception no row knows
WENT_ON = 2  # statistics in a row with new tokens: a single one may still count older tokens
_CHAIN = 400  # lines after a generic cause within which a better one must follow
_CALL = 400  # lines in which workers report a failed call, before the engine core does
_TEXT = 500  # characters kept of a causing line


_ANSWERED = re.compile(r'.{0,60}"POST /\S{1,100} HTTP/[\d.]{1,3}" 200\b')
_WORKER = re.compile(r"(?:Vllm)?Worker")
_RUNS = re.compile(r"EngineCore|(?:Vllm|Ray)?Worker")
_CALLED = re.compile(r"while processing method (\w{1,60})")
MAX_CALL = 200
# Xinference's actors add their address to what they pass on.
_OF_ACTOR = re.compile(r"^(\w{1,60}(?:Error|Exception): )\[address=[^\]]{1,60}, pid=\d{1,10}\] ")
# How the engine loop before 0.9 reports what ended it.
_WRITTEN = re.compile(r"([A-Z]\w{1,60}(?:Error|Exception))\((['\"])(.{1,2000})\2,?\)$")
_UNEVEN = BY_ID["drafts.uneven"]
_STOPPED = re.compile(r"(?:KeyboardInterrupt|SystemExit|asyncio\.\S*CancelledError)\b")
_STOPPING = re.compile(
    r"Shutdown initiated|\[shutdown\] API server: shutdown triggered|(?:\^C)?KeyboardInterrupt\b"
)

# Failures blamed on a component, instead of on the engine's installation or the split.
_NOT_OPERATORS: Mapping[str, Failure] = {"plugin": "plugin-error", "drafter": "unknown"}
_OPERATORS = frozenset(
    {"engine.broken", "engine.loader", "engine.import", "engine.absent", "args.uneven"}
)

# Only these rows explain those better; other generic rows yield to any cause.
_BETTER: Mapping[str, frozenset[str]] = {
    "oom.cuda": frozenset({"oom.sampler", "oom.load", "oom.kv.none"}),
    "model.uninspected": frozenset(
        {
            "engine.broken",
            "engine.loader",
            "engine.transformers",
            "engine.libc",
            "engine.package",
        }
    ),
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


def find_cause(
    lines: Sequence[str], phase: str = "serving", *, alive: bool = False
) -> Finding | None:
    """The cause of the engine's failure in its log; None without evidence.

    `phase` is the engine's phase, for logs that do not show it. If the engine is `alive`, a cause
    counts only if one of its processes reports it.
    """
    search = _Search(lines, phase)
    hits = search.hits
    wrapper = next((hit for hit in hits if hit.is_kind("wrapper")), None)
    if alive and wrapper is None:
        return None
    hit = _first_cause(hits, wrapper)
    if hit is None and not alive:
        hit = _first_symptom(hits, wrapper)
        if hit is not None and search.stopped and _is_an_end(hit):
            return None
    return _finding(hit, hits, lines) if hit else None


def announces_failure(line: str) -> bool:
    """Whether a line is a wrapper: the cause is near it."""
    if "ERROR" not in line:
        return False
    parts = take_apart(line)
    return parts.level == "ERROR" and is_wrapper(parts.message)


class _Search:
    """Reads a log line by line, and keeps the lines that may be the cause as `hits`.

    `stopped`: the engine was asked to stop.
    """

    def __init__(self, lines: Sequence[str], phase: str) -> None:
        self.hits: list[Hit] = []
        self.stopped = False
        self._phase, self._shown_phase = phase, ""
        self._aside, self._traces, self._texts = Aside(), Traces(), _Texts(lines)
        self._last_message = self._called = ""
        self._generating, self._answered = 0, True
        for index, line in enumerate(lines):
            self._read(index, line)

    def _read(self, index: int, line: str) -> None:
        parts = take_apart(line)
        self._follow_phase(line)
        generates = _generates(parts, line)
        if generates is not None:
            self._note_statistics(generates)
            return
        message = parts.message
        if called := _CALLED.search(message[:MAX_CALL]):
            self._called = called[1]
        quotes_cause = self._last_message.startswith("Last error:")
        self._last_message = message
        self.stopped = self.stopped or bool(_STOPPING.match(message))
        self._answered = self._answered or bool(parts.uvicorn and _ANSWERED.match(message))
        if self._aside.holds(parts):
            if CALL_FAILED.match(message):
                _drop_call(self.hits, index)
        elif not self._traces.take(parts) and (quotes_cause or is_evidence(parts)):
            self._add(index, parts)

    def _follow_phase(self, line: str) -> None:
        before, self._shown_phase = self._shown_phase, _phase_at(line, self._shown_phase)
        if self._shown_phase == "serving" != before:
            # It recovered from everything so far.
            self.hits, self.stopped, self._answered = [], False, False

    def _note_statistics(self, generates: bool) -> None:
        self._generating = self._generating + 1 if generates else 0
        self._answered = self._answered or generates
        if self._generating >= WENT_ON:
            self.hits = []

    def _add(self, index: int, parts: Parts) -> None:
        """Keep the line if its text is known, or an exception, and not that of one request."""
        found = self._texts.match(index, parts)
        if found is None:
            return
        text, row, captures = found
        phase, behind = self._shown_phase or self._phase, self._traces.of(parts)
        if row is _UNEVEN and not keeps_drafted_states(behind):
            row, captures = None, {}
        if phase == "serving" and _is_a_requests(parts, row):
            return
        self._generating = 0
        if not self._shown_phase:
            running = "serving" if _WRITTEN.match(parts.message) else phase
            phase = phase_behind(behind, self._called) or running
        self.hits.append(Hit(index, parts, phase, text, row, captures, behind, not self._answered))


class _Texts:
    """The texts of lines that are evidence. Each pending request of a dead engine repeats one."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._known: dict[str, tuple[Signature, Mapping[str, str]] | None] = {}

    def match(
        self, index: int, parts: Parts
    ) -> tuple[str, Signature | None, Mapping[str, str]] | None:
        """The text, its row and the captures; no row for an exception that no row knows."""
        text = _plain(parts.message)
        if _STOPPED.match(text):
            return None
        if text.isidentifier():  # alone it tells nothing
            text = f"{text}{place(index, parts, self._lines)}"
        if text not in self._known:
            self._known[text] = match_text(text)
        found = self._known[text]
        if found is not None:
            return (text, *found)
        return (text, None, {}) if is_exception(text) else None


def _plain(message: str) -> str:
    """An exception as a traceback ends with it, where it is printed as Python writes the object."""
    found = _WRITTEN.match(message)
    return f"{found[1]}: {found[3]}" if found else _OF_ACTOR.sub(r"\1", message)


def _drop_call(hits: list[Hit], index: int) -> None:
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
    tokens_s = figures(line).get("generation_tps")
    return None if tokens_s is None else bool(tokens_s)


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
    return bool(parts.level) and not is_exception(_plain(parts.message))


def _first_cause(hits: Sequence[Hit], wrapper: Hit | None) -> Hit | None:
    """The first cause near the first wrapper; an older one only if there is no other."""
    causes = [hit for hit in hits if hit.is_kind("cause", "generic")]
    if wrapper is None:
        return _better(causes[0], causes) if causes else None
    near = [hit for hit in causes if hit.index >= wrapper.index - NEAR]
    if near:
        return _better(near[0], near)
    named = any(hit.signature is None and hit.index > wrapper.index for hit in hits)
    return _better(causes[-1], causes) if causes and not named else None


def _better(first: Hit, causes: Sequence[Hit]) -> Hit:
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


def _first_symptom(hits: Sequence[Hit], wrapper: Hit | None) -> Hit | None:
    """Without a known cause: the first of an exception and a consequence.

    Exceptions before the engine reports its failure were handled, and do not count.
    """
    rest = [
        hit
        for hit in hits
        if hit.is_kind("consequence") or (hit.signature is None and _after(hit, wrapper))
    ]
    with_message = [hit for hit in rest if hit.signature or ": " in hit.parts.message]
    reported = [hit for hit in hits if hit.signature is BY_ID["engine.dead"]]
    return next(iter(with_message or rest or reported), wrapper)


def _is_an_end(hit: Hit) -> bool:
    """Whether it only reports that a process is gone, as in every stop, but not why."""
    row = hit.signature
    return row is not None and (row.id in SILENT or row.kind == "wrapper")


def _after(hit: Hit, wrapper: Hit | None) -> bool:
    return wrapper is None or hit.index > wrapper.index


def _finding(hit: Hit, hits: Sequence[Hit], lines: Sequence[str]) -> Finding:
    captures = dict(hit.captures)
    row, rows = hit.signature, {one.signature.id for one in hits if one.signature}
    blamed = "drafter" if row is _UNEVEN else component_of(hit)
    if blamed:
        captures["component"] = blamed
    silent = row is not None and says_nothing(row.id, captures, hit.phase, rows, lines)
    silent = silent or "silent" in captures
    if silent:
        captures["silent"] = "yes"
    read = row and sure(row) if raised_by_reader(hit) else row
    failure = read.means(hit.phase) if read else "unknown"
    if row is None or (failure == "unknown" and row.id in UNSURE_ROWS):
        failure = failure_of_unnamed(hit, blamed)
        family = family_of(hit.frames, hit.text) if failure == "unknown" and not blamed else None
        if family is REFUSED_VALUE and _RUNS.match(hit.parts.process):
            family = None
        if family is not None and row is None:
            row, failure = family, family.means(hit.phase)
        elif family is not None and row is not None and family.id in BUILDING:
            failure = sure(row).means(hit.phase)
    if row and row.id in _OPERATORS and hit.phase != "serving":
        failure = _NOT_OPERATORS.get(blamed, failure)
    if row in WRAPPERS and hit.phase != "serving" and not silent:
        failure = "unknown"
    text = _short(hit.text)
    ended = _ENDED.search(text)
    if ended and ended[1] in _FAULTS and hit.is_kind("consequence", "wrapper"):
        captures.update(fault=_FAULTS[ended[1]], silent="yes")
        failure, text = "engine-died", f"{text} [{captures['fault']}]"
    elif silent:
        text = explain_lost_process(text)
    return Finding(failure, text, hit.phase, captures, row.id if row else UNNAMED, hit.index + 1)


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."
