"""Read vLLM's log line by line, and keep the lines that may be the cause of a failure.

Many logged errors were handled: retries of the hub, a bad request, anything before the engine
served or resumed generating. Those do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from caovand.engines.common.logs.compiled import REASON, SOURCE, kernel_before
from caovand.engines.common.logs.signature import Signature
from caovand.engines.vllm.log.component import (
    UNNAMED,
    PossibleCause,
    Tracebacks,
    keeps_drafted_states,
    phase_behind,
    raised_where,
)
from caovand.engines.vllm.log.handled import CALL_FAILED, HandledErrors
from caovand.engines.vllm.log.line import VllmLine, take_apart
from caovand.engines.vllm.log.phases import phase_of, read_figures
from caovand.engines.vllm.log.refused import asks_wrongly, is_of_serving
from caovand.engines.vllm.log.signatures import BY_ID, is_evidence, is_exception, match_text

_EARLY = ("resolve", "engine")
"""Phases that old releases mark, which then load, measure and capture without a mark of ours."""
WENT_ON = 2  # statistics in a row with new tokens: a single one may still count older tokens
_CALL = 400  # lines in which workers report a failed call, before the engine core does
_ANSWERED = re.compile(r'.{0,60}"POST /\S{1,100} HTTP/[\d.]{1,3}" 200\b')
_WORKER = re.compile(r"(?:Vllm)?Worker")
_CALLED = re.compile(r"while processing method (\w{1,60})")
MAX_CALL = 200
# Xinference's actors add their address to messages that they pass on.
_ACTOR_PREFIX = re.compile(
    r"^(\w{1,60}(?:Error|Exception): )\[address=[^\]]{1,60}, pid=\d{1,10}\] "
)
_IN_REQUESTS = frozenset(
    {"python.locale", "python.database", "hub.streamer", "args.parser", "args.token"}
)
"""Causes that code which answers a request also raises for that request alone."""
_HANDLER = re.compile(
    r"/(?:starlette|fastapi)/|/vllm/entrypoints/(?:openai/|serve/|pooling/)?(?:\w{1,30}/){0,3}"
    r"(?:serving|chat_utils)\w{0,30}\.py:|/vllm/multimodal/(?:media|utils|image|audio|video)"
)
_ENGINE = re.compile(
    r"/vllm/(?:v1/(?:engine/core|executor|worker)|executor|worker|engine/\w{0,9}llm)"
)
# How the engine loop before 0.9 reports the error that ended it.
_WRITTEN = re.compile(r"([A-Z]\w{1,60}(?:Error|Exception))\((['\"])(.{1,2000})\2,?\)$")
UNEVEN = BY_ID["drafts.uneven"]
_STOPPED = re.compile(r"(?:KeyboardInterrupt|SystemExit|asyncio\.\S*CancelledError)\b")
_STOPPING = re.compile(
    r"Shutdown initiated|\[shutdown\] API server: shutdown triggered|(?:\^C)?KeyboardInterrupt\b"
)


class CauseSearch:
    """Reads a log line by line, and keeps the lines that may be the cause as `hits`.

    `stopped`: the engine was asked to stop.
    """

    def __init__(self, lines: Sequence[str], phase: str) -> None:
        self.hits: list[PossibleCause] = []
        self.stopped = False
        self._phase, self._shown_phase = phase, ""
        self._aside, self._traces, self._texts = HandledErrors(), Tracebacks(), _Texts(lines)
        self._last_message = self._called = ""
        self._generating, self._answered = 0, True
        for index, line in enumerate(lines):
            self._read(index, line)

    @property
    def reached(self) -> str:
        """The last phase that the log shows; "" for none."""
        return self._shown_phase

    def _read(self, index: int, line: str) -> None:
        parts = take_apart(line)
        self._follow_phase(line)
        generates = _counts_new_tokens(parts, line)
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
                _drop_failed_call(self.hits, index)
        elif not self._traces.feed(parts) and (quotes_cause or is_evidence(parts)):
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

    def _add(self, index: int, parts: VllmLine) -> None:
        """Keep a line with a known text or an exception, unless it concerns a single request."""
        match = self._texts.match(index, parts)
        if match is None:
            return
        text, row, captures = match
        phase, behind = self._shown_phase or self._phase, self._traces.of(parts)
        if row is UNEVEN and not keeps_drafted_states(behind):
            row, captures = None, {}
        if row is not None and is_of_serving(parts) and asks_wrongly(row):
            return
        if phase == "serving" and (_is_of_request(parts, row) or _in_handler(parts, row, behind)):
            return
        self._generating = 0
        if self._shown_phase in _EARLY:
            phase = phase_behind(behind, "") or phase
        if not self._shown_phase:
            answers = row is not None and is_of_serving(parts)
            written = _WRITTEN.match(parts.message) and REASON not in text
            running = "serving" if answers or written else phase
            phase = phase_behind(behind, self._called) or running
        self.hits.append(
            PossibleCause(
                index, text, phase, row or UNNAMED, captures, parts, behind, not self._answered
            )
        )


class _Texts:
    """The texts of lines that are evidence. Each pending request of a dead engine repeats one."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._known: dict[str, tuple[Signature, Mapping[str, str]] | None] = {}

    def match(
        self, index: int, parts: VllmLine
    ) -> tuple[str, Signature | None, Mapping[str, str]] | None:
        """The text, its row and the captures; no row for an unknown exception."""
        text = _plain(parts.message)
        if _STOPPED.match(text):
            return None
        if text.isidentifier():  # alone it says nothing
            text = f"{text}{raised_where(index, parts, self._lines)}"
        elif REASON in text:
            text = f"{text}{kernel_before(_messages_before(index, parts, self._lines))}"
        if text not in self._known:
            self._known[text] = match_text(text)
        found = self._known[text]
        if found is not None:
            return (text, *found)
        return (text, None, {}) if is_exception(text) else None


def _messages_before(index: int, whose: VllmLine, lines: Sequence[str]) -> Iterator[str]:
    """The messages of the process that printed this line, the last one first."""
    before = map(take_apart, reversed(lines[max(index - SOURCE, 0) : index]))
    return (
        other.message
        for other in before
        if (other.process, other.pid) == (whose.process, whose.pid)
    )


def _plain(message: str) -> str:
    """An exception in the form that ends a traceback, for programs that print the object as Python
    does."""
    written = _WRITTEN.match(message)
    return f"{written[1]}: {written[3]}" if written else _ACTOR_PREFIX.sub(r"\1", message)


def _drop_failed_call(hits: list[PossibleCause], index: int) -> None:
    """Drop the workers' lines about a failed call that the engine core, at `index`, survives.

    Workers report it in the same words as a failure that ends them.
    """
    first = len(hits)
    while first and hits[first - 1].index >= index - _CALL:
        first -= 1
    hits[first:] = [hit for hit in hits[first:] if not _WORKER.match(hit.parts.process)]


def _counts_new_tokens(parts: VllmLine, line: str) -> bool | None:
    """Whether vLLM's line of statistics counts new tokens; None for another line."""
    if not parts.source.endswith("loggers.py"):
        return None
    tokens_s = read_figures(line).get("generation_tps")
    return None if tokens_s is None else bool(tokens_s)


def _phase_at(line: str, before: str) -> str:
    """The phase after a line. Once the engine serves, no line is a start: a prompt may resemble
    one."""
    if before == "serving":
        return before
    mark = phase_of(line)
    if mark is None or mark.phase is None:
        return before
    return "serving" if mark.phase == "http" and mark.progress == 1.0 else mark.phase


def _in_handler(parts: VllmLine, row: Signature | None, frames: Sequence[str]) -> bool:
    """Whether the API server's code that answers a request raised it, by its raw traceback.

    From 0.22 on such lines have no process; the engine core's tracebacks show its own loop.
    """
    if parts.level or parts.process:
        return False
    if row is not None and row.kind != "generic" and row.id not in _IN_REQUESTS:
        return False
    handles = any(map(_HANDLER.search, frames))
    return handles and not any(map(_ENGINE.search, frames))


def _is_of_request(parts: VllmLine, row: Signature | None) -> bool:
    """Whether a line belongs to a request: while serving, only the engine's end and exceptions in
    its own processes are the engine's.

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
