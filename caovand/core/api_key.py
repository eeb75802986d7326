"""Validate API keys.

A key travels in an HTTP header, which allows neither line breaks nor non-ASCII characters nor
blanks at either end. No message repeats a key.
"""

from __future__ import annotations

RULE = "must be one line of plain ASCII, without a blank at either end"


def is_usable(key: str) -> bool:
    """Whether a client can send this key."""
    return bool(key) and key.isascii() and key.isprintable() and key == key.strip()
