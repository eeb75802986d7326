"""Requests that an engine may have died of, by the digests of their bodies.

Clients send what broke off again as a request of its own: it is the same by its digest.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_KEPT = 512
KEPT_S = 3600.0
CUT_S = 30.0
"""How long the daemon has to report the death of an engine that cut off a begun answer."""


@dataclass(frozen=True)
class Cut:
    """An answer that the engine cut off, until it is known whether that request killed it."""

    digest: bytes
    at: float
    alone: bool


class Suspects:
    """The latest digests that were at an engine when it died; a killer was alone there."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[float, bool]] = {}
        self._cut: list[Cut] = []

    def cut_off(self, digest: bytes, at: float, *, alone: bool) -> None:
        """The engine broke off a begun answer: an end that follows may be due to this request."""
        self._cut.append(Cut(digest, at, alone))

    def engine_ended(self, at: float, *, planned: bool) -> None:
        """Suspect what the engine had cut off, unless it was to end."""
        cut, self._cut = self._cut, []
        for one in () if planned else cut:
            self.add(one.digest, at, killer=one.alone)

    def forget(self, at: float) -> None:
        """An engine that is still reported alive did not die of what it cut off long ago."""
        self._cut = [one for one in self._cut if at - one.at < CUT_S]

    def add(self, digest: bytes, at: float, *, killer: bool) -> None:
        """Remember one; a killer stays one."""
        _, before = self._kept.pop(digest, (0.0, False))
        self._kept[digest] = (at, killer or before)
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def clear(self, digest: bytes) -> None:
        """It was at an engine alone, and the engine lived on."""
        self._kept.pop(digest, None)

    def is_suspect(self, digest: bytes, at: float) -> bool:
        """Whether it must be tried alone."""
        return digest in self._kept and at - self._kept[digest][0] <= KEPT_S

    def is_killer(self, digest: bytes, at: float) -> bool:
        """Whether an engine died while it was there alone."""
        return self.is_suspect(digest, at) and self._kept[digest][1]
