"""Validate, send and hide API keys.

A key travels in an HTTP header, which allows neither line breaks nor non-ASCII characters nor
blanks at either end. No message repeats a key.
"""

from __future__ import annotations

from caovand.core.printable import one_line

RULE = "must be one line of plain ASCII, without leading or trailing spaces"
QUOTED = 300  # characters of an answer that a message quotes


def is_usable(key: str) -> bool:
    """Whether a client can send this key."""
    return bool(key) and key.isascii() and key.isprintable() and key == key.strip()


def bearer_headers(key: str) -> dict[str, str]:
    """The headers of a request that needs this key; none without one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def redact(key: str, text: str) -> str:
    """Remove the key from the beginning of an answer, so that a message can quote it."""
    return one_line((text.replace(key, "[secret]") if key else text)[:QUOTED])
