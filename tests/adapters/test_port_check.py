"""The port check: who is answered, why a port is unreachable, and that nothing is left open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Iterator

import pytest

from caovand.adapters.network import port_check
from caovand.adapters.network.port_check import connect, kernel_reason, listening
from caovand.core.cluster.link import LARGE_PACKETS_LOST
from tests.daemon_process import ROOT
from tests.descriptors import descriptors, run
from tests.patience import PATIENCE_S, soon
from tests.ports import free_port
from tests.two_nodes import TwoNodes, two_nodes

ASKS, ANSWERS = b"a" * 64, b"b" * 64
HERE = "127.0.0.1"


async def failure(host: str, port: int) -> str:
    return (await connect(host, port, ASKS, ANSWERS)).failure


def test_a_port_that_is_reached_is_known_by_both_addresses() -> None:
    async def work() -> None:
        async with listening(HERE, 0, ASKS, ANSWERS) as (_, port):
            made = await connect(HERE, port, ASKS, ANSWERS)
            assert (made.failure, made.own, made.seen) == ("", HERE, HERE)
            assert 0 < made.connect_s < port_check.CONNECT_S

    run(work)


def test_strangers_get_nothing_and_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_check, "MAX_CLIENTS", 32)

    async def work() -> None:
        async with listening(HERE, 0, ASKS, ANSWERS) as (_, port):
            strangers = [socket.create_connection((HERE, port)) for _ in range(100)]
            words = (b"", b"GET / HTTP/1.1\r\n\r\n", ANSWERS, os.urandom(1 << 16), ASKS[:-1])
            for number, stranger in enumerate(strangers):
                with contextlib.suppress(OSError):  # it was closed already
                    stranger.sendall(words[number % len(words)])
            most = descriptors()
            assert await failure(HERE, port) == ""
            await soon(lambda: descriptors() - most <= 32)
        for stranger in strangers:
            stranger.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(stranger.recv, 1) == b""
            stranger.close()

    run(work)


def test_a_client_that_sends_nothing_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_check, "ANSWER_S", 0.05)

    async def work() -> None:
        async with listening(HERE, 0, ASKS, ANSWERS) as (_, port):
            silent = socket.create_connection((HERE, port))
            silent.settimeout(PATIENCE_S)
            assert await asyncio.to_thread(silent.recv, 1) == b""
            silent.close()

    run(work)


def test_an_address_of_another_machine_and_a_port_that_is_taken_are_refused() -> None:
    async def refused(host: str, port: int) -> str:
        try:
            async with listening(host, port, ASKS, ANSWERS):
                return ""
        except OSError as problem:
            return kernel_reason(problem)

    async def work() -> None:
        assert await refused("192.0.2.1", 0) == "Cannot assign requested address"
        async with listening(HERE, 0, ASKS, ANSWERS) as (address, port):
            assert address == HERE
            assert await refused(HERE, port) == "Address already in use"
        async with listening(HERE, port, ASKS, ANSWERS):
            assert await failure(HERE, port) == ""

    run(work)


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
        (b"HTTP/1.1 400 Bad Request\r\n\r\nno", "something other than caovan answers there"),
        (bytes(1 << 12), "something other than caovan answers there"),
        (ASKS, "something other than caovan answers there"),
        (None, "no answer within 0 s"),
        (ANSWERS + b" 10.0.0.2\n", LARGE_PACKETS_LOST),
    ],
)
def test_another_program_at_the_port_is_named(
    answer: bytes | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is None:
        monkeypatch.setattr(port_check, "ANSWER_S", 0.05)

    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil()
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
from caovand.adapters.network.port_check import connect
async def main():
    for host in sys.argv[1:]:
        print((await connect(host, 7071, b"a" * 64, b"b" * 64)).failure)
asyncio.run(main())
"""


def test_what_is_dropped_and_what_has_no_way_differ(nodes: TwoNodes) -> None:
    hosts = ("10.77.0.9", "10.77.8.1", "10.99.0.1", "10.77.0.2")
    done = nodes.run(0, "env", f"PYTHONPATH={ROOT}", sys.executable, "-c", ASKING, *hosts)
    assert done.stdout.splitlines() == [
        "no answer within 4 s", "No route to host", "Network is unreachable", "Connection refused",
    ], done.stderr  # fmt: skip
