"""Make untrusted text safe to print: process names, HTTP responses, log lines, model names.

A terminal obeys control characters, and in a log a newline ends an entry; so both are printed as
Python escapes (`\\x1b`). Readable characters stay.
"""

from __future__ import annotations

import re

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 and C1 controls, and Unicode's line separators and bidirectional controls."""
_CONTROL_IN_LINES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Escape control characters, except newline and tab."""
    return text if text.isprintable() else _CONTROL_IN_LINES.sub(_escape, text)


def one_line(text: str) -> str:
    """Escape every control character."""
    return text if text.isprintable() else _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]
