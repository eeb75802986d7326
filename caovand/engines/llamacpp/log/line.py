"""Split a line of llama-server's log into time, level, source and message.

It writes `0.00.010.603 E srv llama_server: text`: minutes, seconds, milliseconds and microseconds
since its start, a level, and in some lines a component and a truncated function name. Lines that
its libraries print have none of this, and before b6900 no line has time or level.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SHAPE = re.compile(
    r"(?P<minutes>\d{1,6})\.(?P<seconds>\d\d)\.(?P<millis>\d{3})\.\d{3} (?P<level>[DIWE]) "
)
_SOURCE = re.compile(
    r"(?:(?P<component>srv|slot|cmn|que|spec|res|main) +)?(?P<function>[\w()~]+): "
)
_RAW_SOURCE = re.compile(
    r"(?:(?P<component>srv|slot|cmn|que|spec|res) +)?(?P<function>main|\w{1,60}_\w{0,60}"
    r"|~\w{1,60}): "
)


@dataclass(frozen=True)
class LlamaCppLine:
    """A line's parts, empty if missing; `at_s` are seconds since the start, None without a time.

    Lines of the server have a `component`, those of its libraries none.
    """

    at_s: float | None
    level: str
    source: str
    message: str
    component: str = ""


def take_apart(line: str) -> LlamaCppLine:
    """The parts of one line, without colours and newlines."""
    shape = _SHAPE.match(line)
    if shape is None:
        return _parts(None, "", line, _RAW_SOURCE.match(line))
    at_s = int(shape["minutes"]) * 60 + int(shape["seconds"]) + int(shape["millis"]) / 1000
    rest = line[shape.end() :]
    return _parts(at_s, shape["level"], rest, _SOURCE.match(rest))


def _parts(at_s: float | None, level: str, rest: str, source: re.Match[str] | None) -> LlamaCppLine:
    if source is None:
        return LlamaCppLine(at_s, level, "", rest)
    message = rest[source.end() :]
    return LlamaCppLine(at_s, level, source["function"], message, source["component"] or "")
