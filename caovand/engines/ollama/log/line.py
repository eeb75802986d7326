"""Split a line of `ollama serve` into level, source and message.

Server and runners write `time=... level=INFO source=routes.go:1297 msg="text" key=value`; lines
that their libraries print have none of it. Some of these end without a newline, and the logger's
line follows in the same one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from caovand.engines.common.logs.signature import MAX_LINE

_SHAPE = re.compile(
    r"(?:time=(?P<time>\S{1,40}) )?level=(?P<level>[A-Z]{1,8}) "
    r"source=(?P<source>[\w./-]{1,100}):\d{1,6} msg="
)
_GLUED = re.compile(r"(?<=[^\s\"'])(?=time=\d{4}-\d\d-\d\dT)")
_CLOCK = re.compile(r"\d{4}-\d\d-(\d\d)T(\d\d):(\d\d):(\d\d(?:\.\d{1,9})?)")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class OllamaLine:
    """A line's parts, empty if missing: `message` is its text, `rest` the text after it.

    `at_s` are seconds since the month began, None without a time.
    """

    at_s: float | None
    level: str
    source: str
    message: str
    rest: str = ""


def apart(line: str) -> tuple[str, ...]:
    """A printed line as the lines that it should have been: a library's text, then the logger's."""
    glued = None if _SHAPE.match(line) else _GLUED.search(line[:MAX_LINE])
    return (line[: glued.start()], line[glued.start() :]) if glued else (line,)


def take_apart(line: str) -> OllamaLine:
    """The parts of one line, without colours and newlines; of the logger's, if two are in it."""
    line = apart(line)[-1]
    shape = _SHAPE.match(line)
    if shape is None:
        return OllamaLine(None, "", "", line)
    text = line[shape.end() :]
    quoted = _QUOTED.match(text)
    if quoted is not None:
        message, rest = quoted[1], text[quoted.end() :]
    else:
        message, _, rest = text.partition(" ")
    return OllamaLine(
        _seconds(shape["time"] or ""), shape["level"], shape["source"], message, rest.strip()
    )


def _seconds(text: str) -> float | None:
    clock = _CLOCK.match(text)
    if clock is None:
        return None
    day, hour, minute = (int(clock[group]) for group in (1, 2, 3))
    return ((day * 24 + hour) * 60 + minute) * 60 + float(clock[4])
