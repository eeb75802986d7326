"""Text of strangers made safe to print: process names, HTTP answers, log lines, model names.

A terminal obeys control characters, and a log takes a newline for the end of an entry; so both are
shown as Python would write them (`\\x1b`). Everything a person can read stays as it is.
"""

from __future__ import annotations

import re

# C0 and C1 controls, and what turns the direction of writing or ends a line in Unicode.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_IN_LINES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """The text with control characters but newline and tab written as escapes."""
    return text if text.isprintable() else _CONTROL_IN_LINES.sub(_escape, text)


def one_line(text: str) -> str:
    """The text with every control character written as an escape."""
    return text if text.isprintable() else _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]
