"""Clients' use: tokens counted in answers, and the limits of keys."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caovand.core.gateway.keys import ClientKey
from caovand.core.units import DAY_S

MINUTE_S = 60.0
TAIL_BYTES = 4096
BYTES_PER_TOKEN = 4
ASSUMED_ANSWER_TOKENS = 256
"""Tokens an answer is expected to have, unless its request allows fewer."""
_PROMPT_TOKENS = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})')
_ANSWER_TOKENS = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,12})')


@dataclass(frozen=True)
class KeyUsage:
    """Tokens of one request; `estimated` if the answer did not contain the engine's own count."""

    read: int
    written: int
    estimated: bool

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.read + self.written


def expected_tokens(body_bytes: int, max_tokens: int | None) -> float:
    """The tokens that a request with such a body is expected to cost."""
    assumed = ASSUMED_ANSWER_TOKENS
    written = assumed if max_tokens is None else min(max_tokens, assumed)
    return body_bytes / BYTES_PER_TOKEN + written


class Meter:
    """Counts an answer's tokens as it streams: from its `usage`, else estimated from its size."""

    def __init__(self) -> None:
        self._events, self._bytes = 0, 0
        # Pieces, because joining them for each chunk costs more than all else here.
        self._tail, self._tail_bytes = deque[bytes](), 0

    def take(self, chunk: bytes) -> None:
        """Process another piece of the answer."""
        self._events += chunk.count(b"data: {")
        self._bytes += len(chunk)
        last = chunk[-TAIL_BYTES:]
        self._tail.append(last)
        self._tail_bytes += len(last)
        while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
            self._tail_bytes -= len(self._tail.popleft())

    def usage(self, body_bytes: int) -> KeyUsage:
        """The token usage of a request whose body had this size."""
        tail = b"".join(self._tail)[-TAIL_BYTES:]
        read, written = _PROMPT_TOKENS.findall(tail), _ANSWER_TOKENS.findall(tail)
        if read:  # an embedding writes nothing
            return KeyUsage(int(read[-1]), int(written[-1]) if written else 0, False)
        by_size = self._events or math.ceil(self._bytes / BYTES_PER_TOKEN)
        return KeyUsage(math.ceil(body_bytes / BYTES_PER_TOKEN), by_size, True)


@dataclass(frozen=True)
class LimitReached:
    """A limit of a key that a request would exceed, as a fact, and when it no longer would."""

    fact: str
    retry_after_s: int


class Quotas:
    """The requests of each key in the last minute, and its tokens of the day, by UTC."""

    def __init__(self) -> None:
        self._minutes: dict[str, deque[float]] = {}
        self._day, self._tokens = 0, dict[str, int]()

    def admit(self, key: ClientKey, at: float, unix: float) -> LimitReached | None:
        """Count a request of this key, unless one of its limits is reached."""
        self._turn(unix)
        recent = self._minutes.setdefault(key.name, deque())
        while recent and at - recent[0] >= MINUTE_S:
            recent.popleft()
        if key.rpm is not None and len(recent) >= key.rpm:
            fact = f"the key {key.name} is limited to {key.rpm} requests per minute"
            return LimitReached(fact, max(math.ceil(recent[-key.rpm] + MINUTE_S - at), 1))
        limit = key.tokens_per_day
        if limit is not None and self._tokens.get(key.name, 0) >= limit:
            fact = f"the key {key.name} has used its {limit} tokens for today (UTC)"
            return LimitReached(fact, max(math.ceil(DAY_S - unix % DAY_S), 1))
        if key.rpm is not None:
            recent.append(at)
        return None

    def spend(self, name: str, tokens: int, unix: float) -> None:
        """Count what a request has used."""
        self._turn(unix)
        self._tokens[name] = self._tokens.get(name, 0) + tokens

    def know(self, day: int, tokens: Mapping[str, int]) -> None:
        """Add the use that was counted before this process started."""
        if day >= self._day:
            self._turn(day * DAY_S)
            for name, count in tokens.items():
                self._tokens[name] = max(self._tokens.get(name, 0), count)

    def _turn(self, unix: float) -> None:
        day = int(unix // DAY_S)
        if day != self._day:
            self._day, self._tokens = day, {}


class Ledger:
    """Use of each key by day, kept until the daemon has confirmed it."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str], list[int]] = {}

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def add(self, name: str, used: KeyUsage, unix: float) -> None:
        """Count a request."""
        self.put_back([[int(unix // DAY_S), name, 1, used.read, used.written]])

    def take(self, most: int) -> list[list[Any]]:
        """Remove and return up to `most` rows: day, name, requests, input and output tokens."""
        keys = list(self._rows)[:most]
        return [[*key, *self._rows.pop(key)] for key in keys]

    def put_back(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add these rows."""
        for day, name, *counts in rows:
            known = self._rows.setdefault((day, name), [0, 0, 0])
            known[:] = [old + new for old, new in zip(known, counts, strict=True)]
