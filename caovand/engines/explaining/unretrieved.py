"""The exception of an asyncio task that nobody awaited, as its representation quotes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from caovand.engines.common.logs.signature import MAX_LINE

_FINISHED = re.compile(
    r"(?:future|task): <(?:Future|Task) finished .{0,600}?exception=(\w{1,60}(?:Error|Exception))"
    r"\(['\"](.{1,1000}?)['\"],?\)(?: created at .{1,300})?>$"
)
_NAMED = re.compile(r"(?:\[[^\]]{1,40}\] ?)?[\w.]{0,100}(?:Error|Exception)\b(?:: |$)")


def unretrieved(lines: Sequence[str]) -> str:
    """The exception of a task whose traceback is cut off or missing; "" if a line names one."""
    for n in range(len(lines) - 1, -1, -1):
        line = lines[n][:MAX_LINE]
        if _NAMED.match(line):
            return ""
        if task := _FINISHED.match(line):
            return f"{task[1]}: {task[2]}"
    return ""
