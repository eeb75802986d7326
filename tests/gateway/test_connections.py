"""When connections may begin their requests."""

from __future__ import annotations

import asyncio

from caovand.core.gateway.requests import ConnectionLimits
from caovand.gateway.connections import BEGUN_AT_ONCE, Connections
from caovand.gateway.survivor import Marks


class Library(asyncio.Protocol):
    """What the HTTP library is behind a connection."""

    def __init__(self, begun: list[bytes]) -> None:
        self._begun = begun

    def data_received(self, data: bytes) -> None:
        self._begun.append(data)


class Transport(asyncio.Transport):
    """Counts pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.paused, self.pauses = False, 0

    def pause_reading(self) -> None:
        self.paused, self.pauses = True, self.pauses + 1

    def resume_reading(self) -> None:
        self.paused = False


def connect(connections: Connections, begun: list[bytes]) -> tuple[asyncio.Protocol, Transport]:
    """A connection that has asked for nothing yet."""
    protocol, transport = connections.connection(lambda: Library(begun)), Transport()
    protocol.connection_made(transport)
    return protocol, transport


def test_a_request_alone_begins_without_another_turn_of_the_loop() -> None:
    async def test() -> None:
        begun: list[bytes] = []
        protocol, transport = connect(Connections(ConnectionLimits, Marks()), begun)
        protocol.data_received(b"one")
        assert begun == [b"one"]
        assert transport.pauses == 0

    asyncio.run(test())


def test_those_of_a_crowd_begin_in_order_and_in_turns() -> None:
    async def test() -> None:
        begun: list[bytes] = []
        connections = Connections(ConnectionLimits, Marks())
        crowd = [connect(connections, begun) for _ in range(2 * BEGUN_AT_ONCE + 3)]
        sent = [b"%d" % number for number in range(len(crowd))]
        for (protocol, _), data in zip(crowd, sent, strict=True):
            protocol.data_received(data)
        late, _ = connect(connections, begun)
        for many in (BEGUN_AT_ONCE, 2 * BEGUN_AT_ONCE, len(crowd)):
            assert begun == sent[:many]
            assert [transport.paused for _, transport in crowd] == [
                number >= many for number in range(len(crowd))
            ]
            await asyncio.sleep(0)
        late.data_received(b"late")
        assert begun == [*sent, b"late"]

    asyncio.run(test())
