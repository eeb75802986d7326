"""Requests that may have killed an engine, by the digests of their bodies. Clients resend a request
that broke off: the digest identifies it.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_KEPT = 512
KEPT_S = 3600.0
CUT_S = 30.0
"""The time the daemon has to report the death of an engine that cut off a begun answer."""


@dataclass(frozen=True)
class Cut:
    """An answer that the engine cut off, until it is known whether that request killed it."""

    digest: bytes
    at: float
    alone: bool


class Suspects:
    """The latest digests that were at an engine when it died. A request that was there alone is a
    killer.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[float, bool]] = {}
        self._cut: list[Cut] = []

    def cut_off(self, digest: bytes, at: float, *, alone: bool) -> None:
        """Note that the engine broke off a begun answer: if the engine ends, this request may be
        why."""
        self._cut.append(Cut(digest, at, alone))

    def engine_ended(self, at: float, *, planned: bool) -> None:
        """Suspect the requests that the engine had cut off, unless its end was planned."""
        cut, self._cut = self._cut, []
        for answer in () if planned else cut:
            self.add(answer.digest, at, killer=answer.alone)

    def forget(self, at: float) -> None:
        """Forget old cuts of an engine that is still reported alive: they did not kill it."""
        self._cut = [answer for answer in self._cut if at - answer.at < CUT_S]

    def add(self, digest: bytes, at: float, *, killer: bool) -> None:
        """Add a suspect; a killer stays a killer."""
        _, before = self._kept.pop(digest, (0.0, False))
        self._kept[digest] = (at, killer or before)
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def clear(self, digest: bytes) -> None:
        """Clear a request that was alone at an engine that survived."""
        self._kept.pop(digest, None)

    def is_suspect(self, digest: bytes, at: float) -> bool:
        """Whether this request must be tried alone."""
        return digest in self._kept and at - self._kept[digest][0] <= KEPT_S

    def is_killer(self, digest: bytes, at: float) -> bool:
        """Whether an engine died while this request was alone at it."""
        return self.is_suspect(digest, at) and self._kept[digest][1]
