"""Which texts can be an API key.

It is sent in an HTTP header, which allows no line end, nothing outside ASCII, and no blank at
either end. No message repeats a key.
"""

from __future__ import annotations

RULE = "must be one line of plain ASCII, without a blank at either end"


def is_usable(key: str) -> bool:
    """Whether a client can send this key."""
    return bool(key) and key.isascii() and key.isprintable() and key == key.strip()
