"""Finds which message of a conversation changed, so that the engine must read the rest again.

Engines cache what they have read, and continue from the first token that differs. A client that
changes an early message, such as a clock in its system prompt, pays for the whole conversation each
time. Only digests and sizes are kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from caovand.core.gateway.usage import BYTES_PER_TOKEN

MAX_CLIENTS = 200
MAX_CONVERSATIONS = 16
"""The number of conversations kept for each client."""
MAX_PARTS = 1000
MAX_BODY_BYTES = 4 << 20
"""Maximum size of a body that is compared: a longer one would keep others waiting."""
MIN_TOKENS = 500
"""Minimum number of tokens read again that is worth a report."""
_CACHE_CONTROL = re.compile(rb',?\s{0,9}"cache_control"\s{0,9}:\s{0,9}\{[^{}]{0,99}\}')


@dataclass(frozen=True)
class PrefixPart:
    """A part of a prompt, in order; `name` is its title, such as "message 3"."""

    name: str
    digest: bytes
    size: int


def prefix_parts(body: bytes, spans: Sequence[tuple[str, int, int]]) -> Iterator[PrefixPart]:
    """The parts of a body: those before the messages, then each message."""
    if len(body) > MAX_BODY_BYTES or len(spans) > MAX_PARTS:
        return
    number = 0
    for field, begin, end in sorted(spans, key=lambda span: _ORDER.get(span[0], len(_ORDER))):
        number += field not in _ORDER
        text = body[begin:end]
        if b'"cache_control"' in text:  # which is found far sooner than the pattern
            # Clients of Anthropic's API move this mark on with each turn; no engine reads it.
            text = _CACHE_CONTROL.sub(b"", text)
        digest = hashlib.blake2b(text, digest_size=8).digest()
        yield PrefixPart(_NAMES.get(field, f"message {number}"), digest, len(text))


_ORDER = {"tools": 0, "system": 1, "instructions": 1}
_NAMES: Mapping[str, str] = {
    "tools": "the list of tools", "system": "the system prompt", "instructions": "the instructions",
}  # fmt: skip

Conversation = tuple[PrefixPart, ...]


class Prefixes:
    """The latest conversations of each client."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Conversation]] = {}

    def take(self, client: str, now: Conversation, reading_rate: float | None) -> str:
        """Describe what changed since the conversation's last request; "" if nothing did, or if it
        is new.

        It says how many tokens the engine read again, and how long that took if its `reading_rate`,
        in tokens per second, is known.
        """
        kept = self._kept.pop(client, [])
        self._kept[client] = kept  # the latest client is the last
        while len(self._kept) > MAX_CLIENTS:
            del self._kept[next(iter(self._kept))]
        before = max(kept, key=lambda parts: _shared_bytes(parts, now), default=())
        if not now or not before or not _shared_bytes(before, now):
            kept.append(now)
            del kept[:-MAX_CONVERSATIONS]
            return ""
        same = _count_same(before, now)
        if same == len(now):  # a repeated request, or a return to an earlier turn
            return ""
        again = _bytes_read_again(before, now, same)
        if same == len(before) or again:
            kept.remove(before)
        kept.append(now)
        del kept[:-MAX_CONVERSATIONS]
        tokens = again // BYTES_PER_TOKEN
        if same == len(before) or tokens < MIN_TOKENS:
            return ""
        took = f", about {_seconds(tokens / reading_rate)} s" if reading_rate else ""
        return f"{_change(before, now, same)}: about {tokens:,} tokens read again{took}"


def _count_same(before: Conversation, now: Conversation) -> int:
    """The number of equal parts at the beginning."""
    pairs = zip(before, now, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one.digest != other.digest),
                min(len(before), len(now)))  # fmt: skip


def _bytes_read_again(before: Conversation, now: Conversation, same: int) -> int:
    """Bytes after the first `same` parts that were read before, and come again."""
    known = {part.digest for part in before[same:]}
    return sum(part.size for part in now[same:] if part.digest in known)


def _shared_bytes(before: Conversation, now: Conversation) -> int:
    """The number of bytes common to both."""
    same = _count_same(before, now)
    return sum(part.size for part in now[:same]) + _bytes_read_again(before, now, same)


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 1 else f"{seconds:.1g}"


def _change(before: Conversation, now: Conversation, at: int) -> str:
    old, new = before[at], now[at]
    if any(part.digest == new.digest for part in before[at + 1 :]):
        return f"{old.name} was removed"
    if any(part.digest == old.digest for part in now[at + 1 :]):
        return f"{new.name} was inserted"
    return f"{new.name} changed"
