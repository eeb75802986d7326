"""Requests that an engine may have died of, by the digests of their bodies.

Clients send what broke off again as a request of its own: it is the same by its digest.
"""

from __future__ import annotations

MAX_KEPT = 512
KEPT_S = 3600.0


class Suspects:
    """The latest digests that were at an engine when it died; a killer was alone there."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[float, bool]] = {}

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
