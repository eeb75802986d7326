"""A connection whose callbacks reach the protocol behind it once the connection is admitted.

The page and the gateway put it in front of the HTTP library's protocol, which has no limits of its
own.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable


class Admitted(asyncio.Protocol):
    """Forward everything but data to the protocol behind it; subclasses handle data.

    `make` creates that protocol on the first data: connections without a request cost little.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol]) -> None:
        self._make = make
        self._behind: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None  # None before and after

    @property
    def _inside(self) -> asyncio.Protocol:
        """The protocol behind, while the connection is admitted."""
        if self._behind is None:
            assert self._transport is not None
            self._behind = self._make()
            self._behind.connection_made(self._transport)
        return self._behind

    @abstractmethod
    def admit(self, transport: asyncio.Transport) -> bool:
        """Decide whether the connection may stay."""

    @abstractmethod
    def on_lost(self, transport: asyncio.Transport) -> None:
        """Called when an admitted connection is lost."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self.admit(transport):
            transport.abort()
            return
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            transport, self._transport = self._transport, None
            self.on_lost(transport)
            if self._behind is not None:
                self._behind.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self._behind.eof_received() if self._behind is not None else None

    def pause_writing(self) -> None:
        if self._behind is not None:
            self._behind.pause_writing()

    def resume_writing(self) -> None:
        if self._behind is not None:
            self._behind.resume_writing()


def abort(transport: asyncio.BaseTransport) -> None:
    """End a connection at once, discarding unsent data."""
    assert isinstance(transport, asyncio.Transport)
    transport.abort()
