"""All listeners on a port, with address and owner."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from caovand.adapters.network import sock_diag
from caovand.adapters.network.ports import Listener, ends, listeners, parse


class Sockets:
    """Listening sockets that are closed with the test."""

    def __init__(self) -> None:
        self.made: list[socket.socket] = []

    def listen(self, host: str, port: int = 0, family: int = socket.AF_INET) -> int:
        made = socket.socket(family, socket.SOCK_STREAM)
        self.made.append(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
        made.listen()
        return int(made.getsockname()[1])


@pytest.fixture(params=["sock_diag", "/proc/net"])
def sockets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sockets]:
    """Sockets, looked for in both ways."""
    if request.param != "sock_diag":
        monkeypatch.setattr(sock_diag, "_SOCK_DIAG", 31)  # a protocol that no kernel has
    sockets = Sockets()
    yield sockets
    for made in sockets.made:
        made.close()


def test_a_listener_is_found_with_its_owner(sockets: Sockets) -> None:
    port = sockets.listen("127.0.0.1")
    (found,) = listeners(port)
    assert (found.address, found.port, found.uid) == ("127.0.0.1", port, os.getuid())
    assert found.pid == os.getpid()
    assert found.name
    assert str(found) == (
        f"{found.name} (pid {os.getpid()}) of uid {os.getuid()} on 127.0.0.1:{port}"
    )


def test_twins_that_share_a_port_are_both_found(sockets: Sockets) -> None:
    port = sockets.listen("127.0.0.1")
    sockets.listen("127.0.0.1", port)
    found = listeners(port)
    assert len({item.inode for item in found}) == 2


def test_every_address_counts(sockets: Sockets) -> None:
    port = sockets.listen("0.0.0.0")
    assert [item.address for item in listeners(port)] == ["0.0.0.0"]


def test_ipv6_counts_too(sockets: Sockets) -> None:
    try:
        port = sockets.listen("::1", family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    assert [item.address for item in listeners(port)] == ["::1"]


def test_a_closed_port_has_no_listener(sockets: Sockets) -> None:
    port = sockets.listen("127.0.0.1")
    sockets.made[0].close()
    assert listeners(port) == []


def test_connections_are_no_listeners(sockets: Sockets) -> None:
    port = sockets.listen("127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)) as client:
        assert len(listeners(port)) == 1
        assert listeners(client.getsockname()[1]) == []


def test_the_other_end_of_a_connection_is_told_from_before_it_is_accepted_until_it_is_closed(
    sockets: Sockets,
) -> None:
    port = sockets.listen("127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)) as client:
        (listener,) = ends(client).listeners
        waiting = ends(client).server
        assert waiting is not None
        assert waiting.inode == 0
        server = sockets.made[0].accept()[0]
        accepted = ends(client).server
        assert accepted is not None
        assert accepted.inode == os.fstat(server.fileno()).st_ino != listener.inode
        server.close()
        assert ends(client).server is None
        assert [one.inode for one in ends(client).listeners] == [listener.inode]


def test_a_client_of_ipv4_is_found_at_a_listener_for_both(sockets: Sockets) -> None:
    try:
        port = sockets.listen("::", family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with socket.create_connection(("127.0.0.1", port)) as client:
        server = sockets.made[0].accept()[0]
        found = ends(client).server
        server.close()
    assert found is not None
    assert found.inode


def test_a_listener_whose_name_is_no_text_is_found_all_the_same() -> None:
    script = (
        "import ctypes, socket, sys; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
        "ctypes.CDLL(None).prctl(15, b'\\xff\\xfe', 0, 0, 0);"
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        (found,) = listeners(int(process.stdout.readline()))
        assert (found.pid, found.name) == (process.pid, "\ufffd\ufffd")
        process.kill()


def test_a_listener_that_cannot_be_read_is_told_with_what_is_known() -> None:
    rows = [
        "  0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998 0 4711 1",
        "  1: 0100007F:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998 0 4712 1",
        "  2: 0100007F:1F40 0100007F:9999 01 00000000:00000000 00:00000000 00000000   998 0 4713 1",
    ]
    (found,) = parse(rows, 8000)
    assert found == Listener("127.0.0.1", 8000, 998, 4711)
    assert str(found) == "an unreadable process of uid 998 on 127.0.0.1:8000"
