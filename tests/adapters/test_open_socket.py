"""One line each way, bounded whatever is sent: the socket for everybody, and the others."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from caovand.adapters.admission import door
from caovand.adapters.admission.zmtp import GREETS
from caovand.adapters.control import lines, sockets
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Reply, Request
from caovand.daemon.requests import verbs
from tests.adapters.served import ODD, folder, run, serving
from tests.patience import LIMIT_S, soon, turns

__all__ = ["folder"]

READING = {
    "status", "version", "recent", "plan", "events", "logs", "incidents", "incident", "history",
    "endpoint", "cluster", "requests",
}  # fmt: skip


async def say(path: Path, data: bytes, *, end: bool = False) -> bytes:
    """Everything that comes back for these bytes; `end` closes the sending side after them."""
    loop, got = asyncio.get_running_loop(), b""
    with socket.socket(socket.AF_UNIX) as link:
        link.setblocking(False)
        await loop.sock_connect(link, str(path))
        # Who is turned away may find the other side closed before all was sent or read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            with contextlib.suppress(BrokenPipeError):
                await asyncio.wait_for(loop.sock_sendall(link, data), LIMIT_S)
            if end:
                link.shutdown(socket.SHUT_WR)
            while more := await asyncio.wait_for(loop.sock_recv(link, 1 << 16), LIMIT_S):
                got += more
    return got


async def ask(path: Path, op: str) -> Reply:
    got = await say(path, wire.encode_request(Request(op, {}, "1")) + b"\n")
    assert got.count(b"\n") == 1
    return wire.decode_reply(got)


async def served(path: Path) -> bool:
    """Whether a request is answered, and not refused for too many."""
    return (await ask(path, "status")).code != "busy"


@pytest.mark.parametrize("op", ["start", "stop", "mode", "reload", "logs", "events", "plan", "x"])
def test_it_takes_nothing_that_changes_or_shows_prompts(folder: Path, op: str) -> None:
    async def test() -> None:
        async with serving(folder):
            assert (await ask(folder / "status", op)).code == "not-permitted"

    run(test)


@pytest.mark.parametrize("op", ["status", "version", "wait"])
def test_it_takes_what_is_harmless(folder: Path, op: str) -> None:
    async def test() -> None:
        async with serving(folder):
            assert (await ask(folder / "status", op)).ok

    run(test)


@pytest.mark.parametrize(("name", "trusted"), [("status", False), ("control", True)])
def test_the_socket_alone_decides_who_is_trusted(folder: Path, name: str, trusted: bool) -> None:
    asked: list[Request] = []

    async def handler(request: Request) -> Reply:
        asked.append(request)
        return Reply(request.id, {})

    async def test() -> None:
        async with serving(folder, handler):
            for word in ("true", "false"):
                frame = f'{{"v":1,"id":"1","op":"status","args":{{}},"trusted":{word}}}\n'
                assert json.loads(await say(folder / name, frame.encode()))["ok"]
        assert [request.trusted for request in asked] == [trusted, trusted]

    run(test)


@pytest.mark.parametrize("op", ["start", "stop", "logs", "endpoint"])
def test_a_line_to_the_control_socket_is_for_short_questions(folder: Path, op: str) -> None:
    async def test() -> None:
        async with serving(folder):
            reply = await ask(folder / "control", op)
            assert (reply.code, "over ZeroMQ" in reply.hint) == ("not-permitted", True)

    run(test)


def test_a_line_to_the_control_socket_may_come_in_pieces(folder: Path) -> None:
    async def test() -> None:
        async with serving(folder):
            reader, writer = await asyncio.open_unix_connection(str(folder / "control"))
            for piece in (b"{", b'"v":1,"id":"1","op":"status"', b"}\n"):
                writer.write(piece)
                await turns()
            got = await asyncio.wait_for(reader.read(), LIMIT_S)
            assert wire.decode_reply(got).ok
            writer.close()

    run(test)


def test_the_page_s_own_socket_takes_what_reads_and_nothing_else(folder: Path) -> None:
    asked: list[Request] = []

    async def handler(request: Request) -> Reply:
        asked.append(request)
        return Reply(request.id, {})

    async def test() -> None:
        async with serving(folder, handler):
            for op in verbs.VERBS:
                reply = await ask(folder / "page", op)
                assert reply.ok == (op in READING), op
                assert reply.ok or reply.code == "not-permitted"
        assert {request.op for request in asked} == READING
        assert all(request.trusted for request in asked)

    run(test)


def test_nothing_that_the_page_may_ask_changes_anything() -> None:
    """A new op has to be put into one of these lists."""
    changing = {"mode", "reload", "reset", "restart", "retry", "start", "stop"}
    changing |= {"key_add", "key_revoke"}
    not_for_it = {"keys", "wait"}
    assert {*verbs.VERBS} == {*changing, *not_for_it, *READING, *lines.GATEWAY_REQUESTS}
    assert lines.PAGE_REQUESTS == READING


def test_a_request_needs_no_line_end_where_the_sender_stops(folder: Path) -> None:
    """As `echo -n ... | socat - UNIX-CONNECT:...` sends it."""

    async def test() -> None:
        async with serving(folder):
            frame = wire.encode_request(Request("status", {}, "1"))
            assert wire.decode_reply(await say(folder / "status", frame, end=True)).ok

    run(test)


@pytest.mark.parametrize("name", ["status", "control"])
@pytest.mark.parametrize("line", ODD, ids=range(len(ODD)))
def test_a_malformed_line_gets_an_error_and_the_next_client_is_served(
    folder: Path, line: bytes, name: str
) -> None:
    async def test() -> None:
        async with serving(folder):
            got = await say(folder / name, line, end=True)
            # Whoever begins as ZeroMQ does may be greeted by it.
            greeted = got[:1] == line[:1] == bytes([GREETS])
            assert not got or greeted or not wire.decode_reply(got).ok
            assert (await ask(folder / name, "status")).ok

    run(test)


def test_a_line_that_is_too_long_is_refused_before_it_is_all_there(folder: Path) -> None:
    async def test() -> None:
        async with serving(folder):
            got = await say(folder / "status", b"x" * (lines.MAX_LINE + 1))
            assert wire.decode_reply(got).code == "too-large"

    run(test)


def test_only_one_request_is_answered(folder: Path) -> None:
    async def test() -> None:
        async with serving(folder):
            frame = wire.encode_request(Request("status", {}, "1")) + b"\n"
            assert (await say(folder / "status", frame * 5)).count(b"\n") == 1

    run(test)


def test_who_says_nothing_is_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "READ_S", 0.01)

    async def test() -> None:
        async with serving(folder):
            assert await say(folder / "status", b'{"v":1,') == b""

    run(test)


def test_who_does_not_read_is_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "WRITE_S", 0.01)
    monkeypatch.setattr(sockets, "STRANGERS_EACH", 1)

    async def handler(request: Request) -> Reply:
        # "wait" gets more than a socket's buffer takes.
        return Reply(request.id, {"text": "x" * 2_000_000 if request.op == "wait" else ""})

    async def test() -> None:
        async with serving(folder, handler):
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(str(folder / "status"))
                link.sendall(wire.encode_request(Request("wait", {}, "1")) + b"\n")
                await soon(lambda: served(folder / "status"))

    run(test)


def test_a_wait_ends_with_its_connection(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LOOK_S", 0.01)
    waits = 0

    async def handler(request: Request) -> Reply:
        nonlocal waits
        waits += 1
        try:
            await asyncio.Event().wait()
        finally:
            waits -= 1
        raise AssertionError

    async def test() -> None:
        async with serving(folder, handler):
            with socket.socket(socket.AF_UNIX) as link:
                link.connect(str(folder / "status"))
                link.sendall(wire.encode_request(Request("wait", {}, "1")) + b"\n")
                await soon(lambda: waits == 1)
            await soon(lambda: waits == 0)

    run(test)


def test_a_wait_goes_on_for_who_only_ended_its_sending(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LOOK_S", 0.01)
    looked: list[bool] = []
    is_gone = lines._is_gone

    def look(link: socket.socket) -> bool:
        looked.append(is_gone(link))
        return looked[-1]

    monkeypatch.setattr(lines, "_is_gone", look)

    async def handler(request: Request) -> Reply:
        await soon(lambda: len(looked) >= 3)
        return Reply(request.id, {})

    async def test() -> None:
        async with serving(folder, handler):
            frame = wire.encode_request(Request("wait", {}, "1")) + b"\n"
            assert wire.decode_reply(await say(folder / "status", frame, end=True)).ok

    run(test)


# -- who ---


ADMITTED = """
import os, socket, sys
folder, gid = sys.argv[1], int(sys.argv[2])
line = b'{"v":1,"id":"1","op":"status","args":{}}\\n'
zeromq = b"\\xff" + bytes(8) + b"\\x7f"
many = list(range(100000, 100300))
for who, uid, own, groups in (
    ("stranger", 65534, 65534, many), ("member", 65534, 65534, [*many, gid]),
    ("newgrp", 65534, gid, []), ("root", 0, 0, []),
):
    if os.fork():
        os.wait()
        continue
    os.setgroups(groups); os.setgid(own); os.setuid(uid)
    got = []
    for name in ("control", "events", "page", "gateway", "status"):
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(f"{folder}/{name}")
            try:
                link.sendall(zeromq if name == "events" else line)
                got += [name] if link.recv(1) else []
            except OSError:
                pass
    print(who, *got, flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("group", ["daemon", None])
@pytest.mark.parametrize("descends", [False, True])
def test_whom_a_socket_admits_does_not_depend_on_its_mode(
    folder: Path, group: str | None, descends: bool
) -> None:
    """An engine of our user can change the mode, and one of root become any user."""
    folder.chmod(0o755)

    async def test() -> None:
        async with serving(folder, group=group, admits=lambda name, pid: not descends):
            for name in ("control", "events", "page", "gateway"):
                (folder / name).chmod(0o666)
            words = (sys.executable, "-I", "-S", "-c", ADMITTED, str(folder), str(gid))
            client = await asyncio.create_subprocess_exec(*words, stdout=-1)
            output, _ = await asyncio.wait_for(client.communicate(), LIMIT_S)
        admitted = {who: got for who, *got in map(str.split, output.decode().splitlines())}
        may = [] if descends else ["control", "events"]
        assert admitted == {
            "stranger": ["status"],
            "member": [*(may if group else []), "status"],
            "newgrp": [*(may if group else []), "status"],
            "root": [*may, *([] if descends else ["page", "gateway"]), "status"],
        }

    gid = grp.getgrnam("daemon").gr_gid
    run(test)


# -- how many ---


CROWD = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
links = [socket.socket(socket.AF_UNIX) for _ in range(int(sys.argv[2]))]
for link in links:
    link.connect(sys.argv[1])
print(links[-1].recv(4096).decode(), end="", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_one_user_cannot_take_the_place_of_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "READ_S", LIMIT_S)
    folder.chmod(0o755)

    async def test() -> None:
        async with serving(folder):
            words = (sys.executable, "-c", CROWD, str(folder / "status"))
            crowd = await asyncio.create_subprocess_exec(
                *words, str(sockets.STRANGERS_EACH + 1), stdin=-1, stdout=-1
            )
            assert crowd.stdout is not None
            line = await asyncio.wait_for(crowd.stdout.readline(), LIMIT_S)
            assert wire.decode_reply(line).code == "busy"
            assert (await ask(folder / "status", "status")).ok
            await crowd.communicate(b"")  # which Python 3.10 does not close for None

    run(test)


def test_a_user_who_asks_too_often_is_refused_until_the_next_second(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with serving(folder):
            codes: list[str] = []
            while "busy" not in codes:
                codes.append((await ask(folder / "status", "status")).code)
                assert len(codes) < 100 * sockets.STRANGERS_RATE
            await soon(lambda: served(folder / "status"))

    run(test)


def _flood(path: Path, seconds: float, stop: Callable[[], bool]) -> int:
    done = 0
    while not stop():
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(seconds)
            try:
                link.connect(str(path))
            except OSError:
                continue
            done += 1
    return done


def test_a_flood_of_connections_leaves_the_loop_its_time(folder: Path) -> None:
    async def test() -> None:
        stopped = False
        rounds = 0

        async def work() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await turns()

        async with serving(folder):
            flooding = asyncio.ensure_future(
                asyncio.to_thread(_flood, folder / "status", 1.0, lambda: stopped)
            )
            working = asyncio.ensure_future(work())
            await soon(lambda: rounds > 20_000)
            stopped = True
            working.cancel()
            assert await flooding > 0
            assert door.spare_descriptors() > 64

    run(test)
