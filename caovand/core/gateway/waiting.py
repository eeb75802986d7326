"""The requests that wait for an engine: suspects in the order of arrival, the others in a fair
order (`fair`)."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from caovand.core.gateway.fair import FairQueue, Lane
from caovand.core.gateway.requests import OpenRequest


class WaitingRequests:
    """The numbers of the requests that wait."""

    def __init__(self) -> None:
        self._queue = FairQueue()
        self._suspects: list[int] = []

    def __len__(self) -> int:
        return len(self._queue) + len(self._suspects)

    def __iter__(self) -> Iterator[int]:
        """All of them, suspects first, even if some leave meanwhile."""
        return iter([*self._suspects, *self._queue])

    @property
    def first_suspect(self) -> int | None:
        """The suspect that has waited longest; None if there is none."""
        return self._suspects[0] if self._suspects else None

    def first(self) -> int | None:
        """The next request that is no suspect; None if there is none."""
        return self._queue.first()

    def add(self, request: OpenRequest) -> None:
        """Let a request wait."""
        if request.suspect:
            bisect.insort(self._suspects, request.number)
        else:
            self._queue.push(request.number, request.lane, request.tokens)

    def suspect(self, request: OpenRequest) -> None:
        """Make a request that waits a suspect."""
        self.remove(request)
        request.suspect = True
        self.add(request)

    def remove(self, request: OpenRequest) -> None:
        """Drop a request that no longer waits."""
        (self._suspects if request.suspect else self._queue).remove(request.number)

    def take(self, request: OpenRequest) -> None:
        """Let a request go to the engine, charged to its lane."""
        if request.suspect:
            self.remove(request)
            self.charge(request.lane, request.tokens)
        else:
            self._queue.take(request.number)

    def charge(self, lane: Lane, tokens: float) -> None:
        """Charge a lane more tokens; a negative number is a refund."""
        self._queue.charge(lane, tokens)
