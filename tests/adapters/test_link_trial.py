"""A connection that is tried: who is let in, why it fails, what it brings, that nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from caovand.adapters import link_trial
from caovand.adapters.link_trial import Door, Failed, connect, receive, send
from tests.daemon_process import ROOT, free_port
from tests.descriptors import descriptors, run
from tests.patience import PATIENCE_S, soon, turns
from tests.two_nodes import TwoNodes, two_nodes

ASKS, ANSWERS = b"a" * 32, b"b" * 32
HERE = "127.0.0.1"


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[tuple[Door, asyncio.Task[tuple[socket.socket, str]]]]:
    """A door that waits for the word, and who came."""
    door = Door(HERE)
    admitting = asyncio.ensure_future(door.admit(ASKS, ANSWERS))
    try:
        yield door, admitting
    finally:
        admitting.cancel()
        door.close()
        if admitting.done() and not admitting.cancelled():
            admitting.result()[0].close()


async def failure(host: str, port: int) -> str:
    try:
        link, _ = await connect(host, port, ASKS, ANSWERS)
    except Failed as problem:
        return str(problem)
    link.close()
    return ""


def test_what_comes_over_a_connection_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_trial, "MAX_BYTES", 32 << 20)

    async def work() -> None:
        async with opened() as (door, admitting):
            link, took_s = await connect(HERE, door.port, ASKS, ANSWERS)
            other, seen = await admitting
            assert seen == HERE
            assert 0 < took_s < link_trial.CONNECT_S
            _, reached = await asyncio.gather(send(link), receive(other))
            assert reached > 1e6

    run(work)


def test_strangers_get_nothing_and_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with opened() as (door, admitting):
            strangers = [socket.create_connection((HERE, door.port)) for _ in range(100)]
            words = (b"", b"GET / HTTP/1.1\r\n\r\n", ANSWERS, os.urandom(1 << 16), ASKS[:-1])
            for number, stranger in enumerate(strangers):
                with contextlib.suppress(OSError):  # it was closed already
                    stranger.sendall(words[number % len(words)])
            most = descriptors()
            link, _ = await connect(HERE, door.port, ASKS, ANSWERS)
            assert descriptors() - most < link_trial.MAX_GUESTS + 4
            other, _ = await admitting
            for stranger in strangers:
                stranger.settimeout(PATIENCE_S)
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.to_thread(stranger.recv, 1) == b""
                stranger.close()
            link.close()
            other.close()

    run(work)


def test_a_door_waits_while_there_are_no_descriptors() -> None:
    async def work() -> None:
        async with opened() as (door, admitting):
            client = socket.socket()
            client.setblocking(False)
            await turns()  # it listens
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            spare = os.dup(client.fileno())
            os.close(spare)  # the lowest number that is free
            resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
            try:
                await asyncio.get_running_loop().sock_connect(client, (HERE, door.port))
                await soon(lambda: door._paused is not None)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await asyncio.get_running_loop().sock_sendall(client, ASKS)
            other, _ = await admitting
            assert await asyncio.get_running_loop().sock_recv(client, 64) == ANSWERS
            client.close()
            other.close()

    run(work)


def test_a_guest_that_sends_nothing_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_trial, "ANSWER_S", 0.05)

    async def work() -> None:
        async with opened() as (door, _):
            silent = socket.create_connection((HERE, door.port))
            silent.settimeout(PATIENCE_S)
            assert await asyncio.to_thread(silent.recv, 1) == b""
            silent.close()

    run(work)


def test_a_door_for_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        Door("192.0.2.1")


def test_a_port_that_is_taken_is_refused() -> None:
    door = Door(HERE)
    assert door.address == HERE
    with pytest.raises(OSError, match="in use"):
        Door(HERE, door.port)
    door.close()
    Door(HERE, door.port).close()


# -- why it fails ---


def test_a_closed_port_refuses() -> None:
    async def work() -> None:
        port = free_port()
        assert await failure(HERE, port) == "Connection refused"
        assert await failure("localhost", port) in (
            "localhost is 127.0.0.1 there: Connection refused",
            "localhost is ::1 there: Connection refused",
        )

    run(work)


def test_a_name_that_means_nothing_is_named() -> None:
    async def work() -> None:
        assert (await failure("no.such.host.invalid", 1)).startswith("no.such.host.invalid: ")
        assert "a..b" in await failure("a..b", 1)

    run(work)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "the connection was closed"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\nno", "something else than caovan answers there"),
        (ASKS, "something else than caovan answers there"),
        (None, "no answer within 0 s"),
    ],
)
def test_another_program_at_the_port_is_named(
    answer: bytes | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is None:
        monkeypatch.setattr(link_trial, "ANSWER_S", 0.05)

    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(ASKS))
            writer.write(answer or b"")
            if answer is None:
                await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, HERE, 0)
        port = server.sockets[0].getsockname()[1]
        assert await failure(HERE, port) == text
        server.close()
        await server.wait_closed()

    run(work)


@pytest.fixture(scope="module")
def nodes() -> Iterator[TwoNodes]:
    with two_nodes() as made:
        # Nobody has this address, though its neighbours know where it is: all is dropped.
        made.run(0, "ip", "neigh", "add", "10.77.0.9", "lladdr", "02:00:00:00:00:09", "dev", "eth0")
        made.run(0, "ip", "route", "add", "unreachable", "10.77.8.0/24")
        yield made


ASKING = """
import asyncio, sys
from caovand.adapters.link_trial import Failed, connect
async def main():
    for host in sys.argv[1:]:
        try:
            await connect(host, 7071, b"a" * 32, b"b" * 32)
        except Failed as problem:
            print(problem)
asyncio.run(main())
"""


def test_what_is_dropped_and_what_has_no_way_differ(nodes: TwoNodes) -> None:
    hosts = ("10.77.0.9", "10.77.8.1", "10.99.0.1", "10.77.0.2")
    done = nodes.run(0, "env", f"PYTHONPATH={ROOT}", sys.executable, "-c", ASKING, *hosts)
    assert done.stdout.splitlines() == [
        "no answer within 4 s", "No route to host", "Network is unreachable", "Connection refused",
    ], done.stderr  # fmt: skip


# -- a transfer ---


async def pair(door: Door) -> tuple[socket.socket, socket.socket]:
    """Both ends of an admitted connection."""
    admitting = asyncio.ensure_future(door.admit(ASKS, ANSWERS))
    link, _ = await connect(HERE, door.port, ASKS, ANSWERS)
    return link, (await admitting)[0]


def test_where_nothing_comes_the_rate_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_trial, "FIRST_S", 0.05)
    monkeypatch.setattr(link_trial, "TRANSFER_S", 0.05)

    async def work() -> None:
        door = Door(HERE)
        link, other = await pair(door)
        assert await receive(link) == 0
        other.close()
        door.close()

    run(work)


def test_a_peer_that_sends_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_trial, "TRANSFER_S", 0.1)

    async def work() -> None:
        door = Door(HERE)
        link, other = await pair(door)
        other.setblocking(True)

        def flood() -> None:
            with other, contextlib.suppress(OSError):
                while True:
                    other.sendall(bytes(1 << 16))

        flooding = asyncio.ensure_future(asyncio.to_thread(flood))
        assert await receive(link) > 0
        await flooding  # it was closed there
        door.close()

    run(work)


def test_no_more_is_sent_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_trial, "MAX_BYTES", 3 << 20)
    monkeypatch.setattr(link_trial, "TRANSFER_S", PATIENCE_S)

    async def work() -> None:
        door = Door(HERE)
        link, other = await pair(door)
        other.setblocking(True)

        def drain() -> int:
            with other:
                count = 0
                while data := other.recv(1 << 20):
                    count += len(data)
                return count

        draining = asyncio.ensure_future(asyncio.to_thread(drain))
        await send(link)
        assert (3 << 20) <= await draining < (5 << 20)
        door.close()

    run(work)


def test_a_transfer_that_is_given_up_ends_at_once() -> None:
    async def work() -> None:
        door = Door(HERE)
        link, other = await pair(door)
        began = time.monotonic()
        moving = asyncio.ensure_future(receive(link))
        await turns()  # it begins
        moving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await moving
        await soon(lambda: link.fileno() == -1)
        assert time.monotonic() - began < link_trial.FIRST_S
        other.close()
        door.close()

    run(work)


def test_without_a_thread_it_fails_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "to_thread", none)

    async def work() -> None:
        door = Door(HERE)
        link, other = await pair(door)
        with pytest.raises(Failed, match="can't start new thread"):
            await send(link)
        assert link.fileno() == -1
        other.close()
        door.close()

    asyncio.run(work())
