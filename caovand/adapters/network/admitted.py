"""A connection whose callbacks reach the protocol behind it once the connection is admitted.

The page and the gateway put it in front of the HTTP library's protocol, which has no limits of its
own.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod


class Admitted(asyncio.Protocol):
    """Forward everything but data to `inside`; subclasses handle data."""

    def __init__(self, inside: asyncio.Protocol) -> None:
        self._inside = inside
        self._transport: asyncio.Transport | None = None  # None before and after

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
        self._inside.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            transport, self._transport = self._transport, None
            self.on_lost(transport)
            self._inside.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self._inside.eof_received() if self._transport is not None else None

    def pause_writing(self) -> None:
        self._inside.pause_writing()

    def resume_writing(self) -> None:
        self._inside.resume_writing()


def abort(transport: asyncio.BaseTransport) -> None:
    """End a connection at once, discarding unsent data."""
    assert isinstance(transport, asyncio.Transport)
    transport.abort()
