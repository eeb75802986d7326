"""Choose the next request: bands share an engine by their weights, keys within a band equally.

Tokens count: a key pays an estimate for each of its requests when it goes to the engine, and the
difference once it is known. The key that has paid least is next. A key that returns after a pause
starts level with the others: pauses earn no credit.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

WEIGHTS = {"interactive": 8.0, "background": 1.0}
BANDS = tuple(WEIGHTS)


@dataclass(frozen=True)
class Lane:
    """The requests of one key; requests without a key share one without a name."""

    key: str = ""
    band: str = BANDS[0]


SHARED_LANE = Lane()


@dataclass
class _Share:
    """The amount that a lane or band has paid, and that the member served last had paid."""

    paid: float = 0.0
    level: float = 0.0
    waiting: list[int] = field(default_factory=list)  # in the order of arrival

    def join(self, level: float) -> None:
        """Rejoin after a pause, at the level of the others."""
        self.paid = max(self.paid, level)


class FairQueue:
    """A queue of waiting requests, by number, each with its lane and its expected cost in
    tokens."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, _Share] = {}
        self._bands = {band: _Share() for band in WEIGHTS}
        self._level = 0.0
        self._known: dict[int, tuple[Lane, float]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[int]:
        """All waiting requests, in the order of arrival."""
        return iter(sorted(self._known))

    def push(self, number: int, lane: Lane, tokens: float) -> None:
        """Enqueue a request."""
        band, share = self._bands[lane.band], self._lanes.setdefault(lane, _Share())
        if not band.waiting:
            band.join(self._level)
        if not share.waiting:
            share.join(band.level)
        for part in (band, share):
            bisect.insort(part.waiting, number)
        self._known[number] = (lane, tokens)

    def first(self) -> int | None:
        """The number whose turn it is."""
        bands = [band for band in self._bands.values() if band.waiting]
        if not bands:
            return None
        chosen = min(bands, key=lambda band: (band.paid, band.waiting[0]))
        lanes = (
            share
            for lane, share in self._lanes.items()
            if share.waiting and self._bands[lane.band] is chosen
        )
        return min(lanes, key=lambda share: (share.paid, share.waiting[0])).waiting[0]

    def take(self, number: int) -> None:
        """Dequeue a request for the engine, and charge its lane."""
        lane, tokens = self._known[number]
        band, share = self._bands[lane.band], self._lanes[lane]
        self._level, band.level = band.paid, share.paid
        self.remove(number)
        self.charge(lane, tokens)

    def remove(self, number: int) -> None:
        """Remove a request that no longer waits."""
        lane, _ = self._known.pop(number)
        for part in (self._bands[lane.band], self._lanes[lane]):
            part.waiting.remove(number)

    def charge(self, lane: Lane, tokens: float) -> None:
        """Charge a lane more tokens; a negative number is a refund."""
        band = self._bands[lane.band]
        share = self._lanes.setdefault(lane, _Share(band.level))
        band.paid += tokens / WEIGHTS[lane.band]
        share.paid += tokens
        for known, state in [*self._lanes.items()]:
            # It would begin there anyway.
            if not state.waiting and state.paid <= self._bands[known.band].level:
                del self._lanes[known]
