"""Split a line of vLLM's log into process, level, source and message.

vLLM writes `(EngineCore pid=31) ERROR 11-20 09:13:16 [core.py:1140] text`. Up to 0.21 every line of
a child begins with the process, tracebacks and C++ included; from 0.22 on only lines from its
logger. Before 0.8.3 there is no `[` before the file. People remove the time and the line number
from what they paste. Uvicorn writes `INFO: text`. A newline inside a logged message repeats the
whole prefix, so that no text from a client can begin its own line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SHAPE = re.compile(
    r"(?:\((?P<bare>(?:APIServer|EngineCore|Worker)\w{0,20})\)\ )?"
    r"(?:\(?(?P<process>[A-Za-z][\w.-]{0,40})[^()]{0,60}?\ ?pid=(?P<pid>\d{1,10})"
    r"(?:,\ ip=[^()\s]{1,45})?\)\ ?){0,4}(?:\[[A-Z][\w-]{1,20}\]\ (?=[A-Z]{4,8}\ ))?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r"(?:(?:\ +(?:\d{4}-)?(?P<time>\d\d-\d\d\ \d\d:\d\d:\d\d)(?:[.,]\d{1,6})?\ \[?"
    r"|\ {1,3}\[(?=[\w./-]{1,80}\.py[:\]]))(?P<source>[^\]\s:]+)(?::\d+)?\]"
    r"(?:\ {1,2}(?=\S)|\ |$)|:\ +))?"
)
_TAG = re.compile(r"\[\w+\] ")
_STAGE = re.compile(r"Worker(?:_[A-Z]+\d+){0,4}?_PP(\d{1,3})(?:_|$)")


@dataclass(frozen=True)
class VllmLine:
    """A line's parts, empty if missing. `source` is the name of a file."""

    process: str
    pid: str
    level: str
    time: str
    source: str
    message: str

    @property
    def uvicorn(self) -> bool:
        """Whether the HTTP server wrote it, not vLLM's own logger."""
        return bool(self.level) and not self.source


def take_apart(line: str) -> VllmLine:
    """The parts of one line, without colours and newlines."""
    shape = _SHAPE.match(line)
    assert shape is not None  # every part is optional
    bare, process, pid, level, time, source = shape.groups(default="")
    return VllmLine(process or bare, pid, level, time, source, line[shape.end() :])


def stage_of(line: str) -> str:
    """The number of the pipeline stage whose worker wrote the line; "" without stages.

    A worker is named after its ranks, such as Worker_PP1_TP0.
    """
    stage = _STAGE.match(take_apart(line).process)
    return stage[1] if stage else ""


def message_of(line: str) -> str:
    """The message alone, for callers that read every line.

    Newer versions put a tag such as `[backbone] ` before compiler messages; it is dropped.
    """
    shape = _SHAPE.match(line)
    message = line[shape.end() :] if shape else line
    tag = _TAG.match(message) if message[:1] == "[" else None
    return message[tag.end() :] if tag else message


def as_error(line: str) -> str:
    """Another program's line that quotes vLLM, as vLLM's logger prints an error."""
    parts = take_apart(line)
    return line if parts.level else f"ERROR 00-00 00:00:00 [quoted.py:0] {parts.message}"
