"""Requests reach only the engine, and no other process sees its key."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from caovand.adapters.network import ports
from caovand.adapters.network.http import Endpoint, Stranger, Unanswered, call
from caovand.adapters.privileges import engine_user
from caovand.core import limits
from caovand.daemon.engine.peers import Peers
from tests.patience import eventually
from tests.ports import free_port

KEY = "sk-hunter2"
LONG_S = 60.0
SERVER = """
import os, socket, sys
family, host, port, how, heard = sys.argv[1:]
server = socket.socket(socket.AF_INET6 if family == "6" else socket.AF_INET)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
if family == "6":
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind((host, int(port)))
server.listen()
print(server.getsockname()[1], flush=True)
if how == "deaf":
    sys.stdin.read()
if how == "forks" and os.fork():
    os.wait()
while True:
    client, _ = server.accept()
    if how == "closes":
        client.close()
        continue
    text = client.recv(65536)
    open(heard, "ab").write(text)
    if text:
        client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
    client.close()
"""


class Server:
    """A process that listens, and writes all that it hears to a file."""

    def __init__(
        self, heard: Path, port: int = 0, how: str = "answers", host: str = "127.0.0.1"
    ) -> None:
        family = "6" if ":" in host else "4"
        argv = [sys.executable, "-S", "-c", SERVER, family, host, str(port), how, str(heard)]
        self._heard = heard
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline() or 0)
        self.pid = self.process.pid

    @property
    def heard(self) -> bytes:
        return self._heard.read_bytes() if self._heard.exists() else b""

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.communicate()


Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[Server] = []

    def make(*arguments: object, **named: object) -> Server:
        servers.append(Server(tmp_path / f"heard-{len(servers)}", *arguments, **named))  # type: ignore[arg-type]
        return servers[-1]

    yield make
    for server in servers:
        server.kill()


def members(*servers: Server) -> Callable[[], Collection[int]]:
    """The processes of these servers' sessions, as they are when asked."""
    sessions = {server.pid for server in servers}

    def look() -> list[int]:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(ProcessLookupError):
                found += [int(name)] if os.getsid(int(name)) in sessions else []
        return found

    return look


def endpoint(port: int, peers: Peers, host: str = "127.0.0.1") -> Endpoint:
    return Endpoint(host, port, KEY, vet=peers.vet)


def test_the_engine_is_asked_with_the_key(serve: Serve) -> None:
    server = serve()
    peers = Peers(members(server))
    assert peers.listening(server.port)
    for _ in range(3):
        assert call(endpoint(server.port, peers), "/", LONG_S).body == "ok"
    assert server.heard.count(KEY.encode()) == 3


def test_who_took_the_port_of_an_engine_that_is_gone_hears_nothing(serve: Serve) -> None:
    engine = serve()
    peers = Peers(members(engine))
    assert call(endpoint(engine.port, peers), "/", LONG_S).body == "ok"
    engine.kill()
    thief = serve(engine.port)
    with pytest.raises(Stranger, match=rf"cannot share port .*\(pid {thief.pid}\) .*: stop it, or"):
        call(endpoint(engine.port, peers), "/", LONG_S)
    with pytest.raises(Stranger):
        peers.listening(engine.port)
    assert thief.heard == b""


@pytest.mark.parametrize("attempt", range(4))  # the kernel chooses which of both is connected to
def test_of_two_that_share_a_port_none_is_asked(serve: Serve, attempt: int) -> None:
    engine = serve()
    peers = Peers(members(engine))
    assert call(endpoint(engine.port, peers), "/", LONG_S).body == "ok"
    before = engine.heard
    thief = serve(engine.port)
    with pytest.raises(Stranger, match=f"pid {thief.pid}"):
        call(endpoint(engine.port, peers), "/", LONG_S)
    assert (engine.heard, thief.heard) == (before, b"")


def test_a_stranger_s_listener_on_another_address_counts(serve: Serve) -> None:
    engine = serve()
    serve(engine.port, host="127.0.0.2")
    with pytest.raises(Stranger):
        call(endpoint(engine.port, Peers(members(engine))), "/", LONG_S)


def test_who_accepts_counts_and_not_who_listens(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener may be gone again when it is looked for."""
    engine, thief = serve(), serve()
    peers = Peers(members(engine))
    real = ports.ends
    monkeypatch.setattr(ports, "ends", lambda link: ports.ConnectionEnds((), real(link).server))
    with pytest.raises(Stranger, match=f"pid {thief.pid}"):
        call(endpoint(thief.port, peers), "/", LONG_S)
    assert thief.heard == b""
    assert call(endpoint(engine.port, peers), "/", LONG_S).body == "ok"


def test_a_child_of_the_engine_may_accept(serve: Serve) -> None:
    server = serve(how="forks")
    assert call(endpoint(server.port, Peers(members(server))), "/", LONG_S).body == "ok"


def test_a_process_that_was_started_since_is_the_engine_too(serve: Serve) -> None:
    first = serve()
    ours = [first]

    def look() -> Collection[int]:
        return members(*ours)()

    peers = Peers(look)
    assert call(endpoint(first.port, peers), "/", LONG_S).body == "ok"
    ours.append(serve(first.port))
    for _ in range(6):
        assert call(endpoint(first.port, peers), "/", LONG_S).body == "ok"


def test_an_engine_that_accepts_nothing_is_no_stranger_and_hears_nothing(serve: Serve) -> None:
    server = serve(how="deaf")
    with pytest.raises(Unanswered, match="no complete answer within") as caught:
        call(endpoint(server.port, Peers(members(server))), "/", 0.3)
    assert not isinstance(caught.value, Stranger)


def test_an_engine_that_closes_at_once_is_no_stranger(serve: Serve) -> None:
    server = serve(how="closes")
    with pytest.raises(Unanswered) as caught:
        call(endpoint(server.port, Peers(members(server))), "/", LONG_S)
    assert not isinstance(caught.value, Stranger)


@pytest.mark.parametrize(("listens", "asked"), [("::1", "::1"), ("::", "127.0.0.1"), ("::", "::")])
def test_an_engine_on_ipv6_is_known_by_either_kind_of_address(
    serve: Serve, listens: str, asked: str
) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    server = serve(host=listens)
    peers = Peers(members(server))
    assert call(endpoint(server.port, peers, asked), "/", LONG_S).body == "ok"
    with pytest.raises(Stranger):
        call(endpoint(server.port, Peers(list), asked), "/", LONG_S)


def test_a_port_nobody_has_is_not_listened_on() -> None:
    assert not Peers(list).listening(free_port())


def test_a_known_listener_is_looked_up_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of /proc is walked for sockets not seen before, and for a stranger's only."""
    server = serve()
    walks: list[int] = []
    ours = members(server)

    def look() -> Collection[int]:
        walks.append(1)
        return ours()

    peers = Peers(look)
    for _ in range(5):
        assert call(endpoint(server.port, peers), "/", LONG_S).body == "ok"
    assert len(walks) == 1


def test_who_cannot_be_asked_is_no_stranger(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def unanswered(*_: object) -> None:
        raise TimeoutError("it took too long")

    server = serve()
    monkeypatch.setattr(engine_user, "as_engine", unanswered)
    with pytest.raises(Unanswered, match="cannot determine which process") as caught:
        call(endpoint(server.port, Peers(members(server))), "/", LONG_S)
    assert not isinstance(caught.value, Stranger)
    assert limits.limit_reached(caught.value), "the check is made again"
    assert server.heard == b""


def test_many_threads_may_ask(serve: Serve) -> None:
    server = serve()
    peers = Peers(members(server))
    bodies: list[str] = []

    def ask() -> None:
        bodies.append(call(endpoint(server.port, peers), "/", LONG_S).body)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(bodies) == 8)


def test_a_socket_that_is_closed_while_it_is_looked_up_is_no_stranger_s(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    real, closed = ports.ends, iter([False, True])

    def ends(link: socket.socket) -> ports.ConnectionEnds:
        seen = real(link)
        while not (seen.server and seen.server.inode):  # not accepted yet
            seen = real(link)
        gone = ports.Listener("127.0.0.1", server.port, 0, 1)
        return ports.ConnectionEnds((gone,), None if next(closed) else gone)

    monkeypatch.setattr(ports, "ends", ends)
    with pytest.raises(Unanswered, match="the peer closed") as caught:
        call(endpoint(server.port, Peers(members(server))), "/", LONG_S)
    assert not isinstance(caught.value, Stranger)
    assert server.heard == b""
