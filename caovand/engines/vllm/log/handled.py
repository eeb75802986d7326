"""Errors that vLLM handled: such a line and the traceback after it are not evidence."""

from __future__ import annotations

import re

from caovand.engines.common.logs.signature import MAX_LINE
from caovand.engines.vllm.log.line import VllmLine
from caovand.engines.vllm.log.signatures import BY_ID, is_crash, is_exception

WRAPPERS = (BY_ID["engine.dead"], BY_ID["engine.lost"])
_CHAINED = ("The above exception was", "During handling of the above exception")
CALL_FAILED = re.compile(r"^Invocation of \w+ method failed")
_NOBODY_AWAITED = re.compile(r"(?:Task|Future) exception was never retrieved")
# Several contain a request's name, which clients choose.
_DEALT_WITH = re.compile(
    r"retrying \d+ of \d+|^Error retrieving |\[Autotuner\]|^Failed to load plugin (?!caovan)"
    r"|^Unexpected error pre-processing request|^Error in preprocessing prompt"
    r"|^Failed to advance FSM for request|Exception in ASGI|^Exception ignored in"
    rf"|^{_NOBODY_AWAITED.pattern}"
    r"|^Exception in thread \S+ \(_report_usage_worker\)"
    rf"|{CALL_FAILED.pattern}"
)
_LOOP_FRAME = re.compile(
    r' {2}File ".{1,300}/vllm/engine/async_llm_engine\.py", line \d{1,6}, in '
    r"(?:_raise_exception_on_finish|_log_task_completion|run_engine_loop)$"
)
"""The engine's own loop, which nobody awaits: it ended."""


def is_wrapper(message: str) -> bool:
    """Whether a message announces that something else failed."""
    return any(row.pattern.match(message) for row in WRAPPERS)


class HandledErrors:
    """Knows which lines belong to a handled error.

    A record of vLLM's logger has the same process, time and file on all its lines. Raw output ends
    at the next line with a prefix, or at the end of the traceback.
    """

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], tuple[str, str]] = {}
        self._raw: dict[str, str] = {}  # by process: "announced", "open", or "ended"

    def holds(self, parts: VllmLine) -> bool:
        """Whether the next line of the log belongs to a handled error."""
        message = parts.message
        if not parts.level or parts.uvicorn:
            return self._holds_raw(parts.process, message, bool(parts.level))
        self._raw.pop("", None)
        self._raw.pop(parts.process, None)
        process, record = (parts.process, parts.pid), (parts.time, parts.source)
        if parts.level in ("ERROR", "CRITICAL") and _DEALT_WITH.search(message[:MAX_LINE]):
            self._logged[process] = record
            return True
        if self._logged.get(process) != record:
            return False
        # The engine's end may be logged in the same second from the same file.
        if is_wrapper(message):
            del self._logged[process]
            return False
        return True

    def _holds_raw(self, process: str, message: str, proper: bool) -> bool:
        if _DEALT_WITH.search(message[:MAX_LINE]):
            self._raw[process] = "announced" if _NOBODY_AWAITED.match(message) else "open"
            return True
        state = self._raw.get(process)
        if state is None:
            if proper:
                self._raw.pop("", None)
            return False
        bare = state == "announced" and is_exception(message)
        if bare or _LOOP_FRAME.match(message[:MAX_LINE]):
            del self._raw[process]
            return False
        again = state == "ended" and message.startswith("Traceback (most recent")
        if proper or again or is_crash(message) or message.startswith("Process "):
            self._raw.pop(process, None)
            return False
        if is_exception(message):
            self._raw[process] = "ended"
        elif message.startswith((*_CHAINED, "Traceback (most recent")):
            self._raw[process] = "open"
        return True
