"""The control sockets over real ZeroMQ: who may connect, and that no frame does harm."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import json
import os
import random
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters.admission import door, gate
from caovand.adapters.admission.zmtp import MAX_PARTS, LimitExceeded, Messages
from caovand.adapters.control import CannotBind, Control, sockets
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Notice, Reply, Request
from tests.adapters.served import ODD, echo, folder, run, serving
from tests.patience import LIMIT_S, soon, turns


class Link:
    """A raw client: sends frames of any kind, reads replies."""

    def __init__(self, path: Path, kind: int = zmq.DEALER) -> None:
        self.context: zmq.asyncio.Context = zmq.asyncio.Context()
        self.socket = self.context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(f"ipc://{path}")

    async def __aenter__(self) -> Link:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.context.destroy(linger=0)

    async def send(self, *frames: bytes) -> None:
        await self.socket.send_multipart(frames)

    async def read(self) -> Reply:
        frames = await asyncio.wait_for(self.socket.recv_multipart(), LIMIT_S)
        return wire.decode_reply(frames[-1])

    async def ask(self, op: str, id: str = "1", **args: Any) -> Reply:
        await self.send(wire.encode_request(Request(op, args, id)))
        while (reply := await self.read()).id != id:
            pass
        return reply


__all__ = ["folder"]


def test_the_api_key_is_for_our_own_servers_alone(folder: Path) -> None:
    async def test() -> None:
        async with serving(folder), Link(folder / "control") as link:
            for op in ("endpoint", "gateway", "gateway_report"):
                assert (await link.ask(op)).code == "not-permitted"
            assert (await link.ask("status")).ok

    run(test)


# -- files ---


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


def rights(control: int, status: int, events: int) -> dict[str, int]:
    own = {"inner": 0o700, "page": 0o600, "gateway": 0o600}
    return {"control": control, "status": status, "events": events, **own}


def test_members_of_the_group_may_steer(folder: Path) -> None:
    async def test() -> None:
        async with serving(folder, group=grp.getgrgid(os.getegid()).gr_name):
            assert modes(folder) == rights(0o660, 0o666, 0o660)
            assert (folder / "control").stat().st_gid == os.getegid()

    run(test)


@pytest.mark.parametrize("group", [None, "", "no-such-group-here"])
def test_without_the_group_only_the_owner_may(folder: Path, group: str | None) -> None:
    async def test() -> None:
        async with serving(folder, group=group):
            assert modes(folder) == rights(0o600, 0o666, 0o600)

    run(test)


def test_rights_do_not_depend_on_the_umask(folder: Path) -> None:
    async def test() -> None:
        old = os.umask(0o077)
        try:
            async with serving(folder):
                assert modes(folder)["status"] == 0o666
                assert os.umask(0o077) == 0o077
        finally:
            os.umask(old)

    run(test)


def test_sockets_of_a_killed_daemon_are_replaced(folder: Path) -> None:
    async def test() -> None:
        for name in ("control", "status", "events"):
            (folder / name).touch()
        (folder / "inner").mkdir()
        (folder / "inner" / "control").touch()
        async with serving(folder), Link(folder / "control") as link:
            assert (await link.ask("start")).ok

    run(test)


def test_a_path_too_long_for_a_socket_is_told_with_a_remedy(folder: Path) -> None:
    async def test() -> None:
        deep = folder / ("x" * 100)
        deep.mkdir()
        with pytest.raises(CannotBind, match="at most 107 bytes; set RUNTIME_DIRECTORY"):
            Control(deep, None, echo)

    run(test)


def test_a_folder_that_is_not_there_is_told(folder: Path) -> None:
    async def test() -> None:
        with pytest.raises(CannotBind, match=r"cannot use .*gone/inner"):
            Control(folder / "gone", None, echo)

    run(test)


# -- requests ---


def test_every_verb_is_taken_on_the_control_socket(folder: Path) -> None:
    async def test() -> None:
        async with serving(folder), Link(folder / "control") as link:
            for op in ("status", "start", "mode", "anything"):
                reply = await link.ask(op, x=1)
                assert reply.result == {"op": op, "args": {"x": 1}}

    run(test)


def test_a_plain_req_client_is_answered(folder: Path) -> None:
    async def test() -> None:
        async with serving(folder), Link(folder / "control", zmq.REQ) as link:
            assert (await link.ask("status")).ok

    run(test)


def test_a_slow_answer_does_not_keep_others_waiting(folder: Path) -> None:
    async def test() -> None:
        go = asyncio.Event()

        async def handler(request: Request) -> Reply:
            if request.op == "wait":
                await go.wait()
            return Reply(request.id, {})

        async with serving(folder, handler), Link(folder / "control") as link:
            await link.send(wire.encode_request(Request("wait", {}, "slow")))
            assert (await link.ask("status", "quick")).ok
            go.set()
            assert (await link.read()).id == "slow"

    run(test)


def test_an_answer_too_large_for_a_frame_becomes_an_error(folder: Path) -> None:
    async def test() -> None:
        async def handler(request: Request) -> Reply:
            return Reply(request.id, {"text": "x" * wire.MAX_BYTES})

        async with serving(folder, handler), Link(folder / "control") as link:
            assert (await link.ask("logs")).code == "too-large"

    run(test)


def test_a_fault_of_ours_is_answered_and_reported(folder: Path) -> None:
    async def test() -> None:
        faults: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))

        async def handler(request: Request) -> Reply:
            raise AssertionError("a bug")

        async with serving(folder, handler), Link(folder / "control") as link:
            reply = await link.ask("status")
            assert (reply.code, reply.message) == (
                "internal", 'cannot do "status": AssertionError in caovand',
            )  # fmt: skip
            assert (await link.ask("status", "2")).code == "internal"
        await soon(lambda: len(faults) == 2)

    run(test)


# -- too many ---


def test_too_many_at_once_are_told_so_under_their_own_id(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "MAX_WAITS", 3)

    async def test() -> None:
        go = asyncio.Event()

        async def handler(request: Request) -> Reply:
            if request.op == "wait":
                await go.wait()
            return Reply(request.id, {})

        async with serving(folder, handler), Link(folder / "control") as crowd:
            for n in range(3):
                await crowd.send(wire.encode_request(Request("wait", {}, f"waits {n}")))
            assert (await crowd.ask("wait", "too many")).code == "busy"
            assert (await crowd.ask("stop", "other")).ok, "those who wait kept another verb out"
            go.set()
            for _ in range(3):
                assert (await crowd.read()).ok
            assert (await crowd.ask("wait", "later")).ok

    run(test)


async def knock(path: Path, count: int) -> list[asyncio.StreamWriter]:
    """Connections that say nothing, as many as are let in."""
    return [(await asyncio.open_unix_connection(str(path)))[1] for _ in range(count)]


async def closed(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()


def test_no_more_connections_come_in_than_there_is_room_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "MAX_LINKS", 3)
    monkeypatch.setattr(sockets, "SPARE_LINKS", 1)

    async def test() -> None:
        async with serving(folder):
            before = door.spare_descriptors()
            crowd = [await asyncio.open_unix_connection(str(folder / "control")) for _ in range(9)]
            turned_away = [reader for reader, _ in crowd[4:]]
            for reader in turned_away:
                assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""
            assert before - door.spare_descriptors() < 9 + 4 + 4
            await closed([writer for _, writer in crowd])

            async def answered() -> bool:
                async with Link(folder / "control") as link:
                    return (await link.ask("status")).ok

            assert await asyncio.wait_for(answered(), LIMIT_S), "its place was not free again"

    run(test)


def test_without_spare_descriptors_nobody_comes_in_and_nothing_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with serving(folder), Link(folder / "control") as link:
            assert (await link.ask("status", "before")).ok
            monkeypatch.setattr(door, "SPARE_DESCRIPTORS", 1 << 30)
            reader, writer = await asyncio.open_unix_connection(str(folder / "control"))
            assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""
            await closed([writer])
            assert (await link.ask("status", "meanwhile")).ok
            monkeypatch.undo()
            async with Link(folder / "control") as later:
                assert (await later.ask("status")).ok

    run(test)


def test_a_batch_opens_no_more_descriptors_than_are_to_spare(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        async with serving(folder):
            crowd = [socket.socket(socket.AF_UNIX) for _ in range(2 * door.BATCH)]
            kept = door.spare_descriptors() - 30
            monkeypatch.setattr(door, "SPARE_DESCRIPTORS", kept)
            # All of them wait in the two queues before the first is looked at.
            for link, name in zip(crowd, ("control", "events") * door.BATCH, strict=True):
                link.connect(str(folder / name))
                link.setblocking(False)
                link.send(zmtp(b"DEALER"))
            first = [await asyncio.wait_for(answer(loop, link), LIMIT_S) for link in crowd]
            assert 1 <= sum(map(bool, first)) <= 10, "each takes three"
            assert door.spare_descriptors() >= kept
            for link in crowd:
                link.close()

    run(test)


async def answer(loop: asyncio.AbstractEventLoop, link: socket.socket) -> bytes:
    """The first bytes that come; none where we were turned away."""
    with contextlib.suppress(ConnectionResetError):
        return await loop.sock_recv(link, 64)
    return b""


def zmtp(socket_type: bytes) -> bytes:
    """What a client of ZMTP 3.0 sends before its first message, without security."""
    greeting = b"\xff" + bytes(8) + b"\x7f\3\0" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\5READY" + b"\x0bSocket-Type" + len(socket_type).to_bytes(4, "big") + socket_type
    return greeting + bytes([4, len(ready)]) + ready


PART = b"\3" + (30_000).to_bytes(8, "big") + bytes(30_000)  # long, more to come
PING = b"\4\7\4PING\0\0"
SUBSCRIBE = bytes([210]) + b"\x09SUBSCRIBE" + bytes(200)
ENDLESS = {
    "parts": PART,
    "pings between": PART + PING,
    "small parts": b"\1\0",
    "commands with more": b"\5" + SUBSCRIBE,
    "unknown flags": b"\11\0",
}


async def greeted(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose handshake is over: before that, libzmq ends it for any other frame."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(zmtp(b"DEALER"))
    await asyncio.wait_for(reader.readuntil(b"READY"), LIMIT_S)
    await asyncio.wait_for(reader.readuntil(b"Identity\0\0\0\0"), LIMIT_S)
    return reader, writer


@pytest.mark.parametrize("frames", ENDLESS.values(), ids=ENDLESS)
def test_a_message_without_end_costs_its_sender_the_connection(folder: Path, frames: bytes) -> None:
    """libzmq keeps every part of a message until the last has come, and answers each PING."""

    async def test() -> None:
        async with serving(folder), Link(folder / "control") as good:
            assert (await good.ask("status", "before")).ok
            _, writer = await greeted(folder / "control")

            burst = frames * max(1, len(PART) // len(frames))

            async def send() -> None:
                for _ in range(32 * wire.MAX_BYTES // len(burst)):
                    writer.write(burst)
                    await asyncio.wait_for(writer.drain(), LIMIT_S)

            with pytest.raises(ConnectionError):
                await send()
            await closed([writer])
            assert (await good.ask("status")).ok

    run(test)


def test_commands_between_the_parts_of_a_message_count_as_parts_and_others_do_not() -> None:
    messages = Messages(1000)
    messages.feed(zmtp(b"DEALER") + PING * 1000 + b"\1\0" + PING * (MAX_PARTS - 1))
    assert messages.asks
    with pytest.raises(LimitExceeded, match="a message is too large"):
        messages.feed(PING)


def test_who_subscribes_to_too_much_is_dropped(folder: Path) -> None:
    """libzmq keeps a node for each byte of a topic, and takes minutes to drop a million."""

    async def test() -> None:
        async with serving(folder):
            reader, writer = await asyncio.open_unix_connection(str(folder / "events"))
            writer.write(zmtp(b"SUB") + b"\2" + (60_001).to_bytes(8, "big") + b"\1" + bytes(60_000))
            with contextlib.suppress(ConnectionError):
                while await asyncio.wait_for(reader.read(1 << 16), LIMIT_S):
                    pass
            await closed([writer])

    run(test)


@pytest.mark.parametrize("said", [b"", b"\xff", zmtp(b"DEALER")])
def test_who_asks_for_nothing_is_dropped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(gate, "FIRST_MESSAGE_S", 0.05)

    async def test() -> None:
        async with serving(folder):
            reader, writer = await asyncio.open_unix_connection(str(folder / "control"))
            writer.write(said)
            with contextlib.suppress(ConnectionError):
                while await asyncio.wait_for(reader.read(1 << 16), LIMIT_S):
                    pass
            await closed([writer])

    run(test)


def test_a_subscriber_may_be_idle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "FIRST_MESSAGE_S", 0.1)
    ends = 0
    serve = gate.Gate.serve

    async def counted(self: gate.Gate, link: Any) -> None:
        nonlocal ends
        await serve(self, link)
        ends += 1

    monkeypatch.setattr(gate.Gate, "serve", counted)

    async def test() -> None:
        async with serving(folder) as served, Link(folder / "events", zmq.SUB) as reader:
            reader.socket.setsockopt(zmq.SUBSCRIBE, b"")
            heard, until = False, asyncio.get_running_loop().time() + 5 * gate.FIRST_MESSAGE_S
            while asyncio.get_running_loop().time() < until or not heard:
                served.publish(Notice(1, 1.5, "state", "x"))
                heard = bool(await reader.socket.poll(10))
            assert ends == 0, "it was dropped, and came again"

    run(test)


@given(st.lists(st.tuples(st.sampled_from(range(9)), st.integers(0, 300)), max_size=30),
       st.integers(1, 97))  # fmt: skip
def test_bytes_are_followed_however_they_are_cut(frames: list[tuple[int, int]], cut: int) -> None:
    data = zmtp(b"DEALER")
    for flags, size in frames:
        head = size.to_bytes(8, "big") if flags & 2 else bytes([size & 255])
        data += bytes([flags]) + head + bytes(size if flags & 2 else size & 255)
    results = []
    for step in (cut, len(data)):
        messages = Messages(1000)
        try:
            for at in range(0, len(data), step):
                messages.feed(data[at : at + step])
        except LimitExceeded as problem:
            results.append(str(problem))
        else:
            results.append(str(messages.asks))
    assert results[0] == results[1]


def test_a_folder_of_another_is_not_listened_in(folder: Path) -> None:
    async def test() -> None:
        (folder / "inner").symlink_to("/tmp")
        with pytest.raises(CannotBind, match="or it is not a directory; delete it"):
            Control(folder, None, echo)

    run(test)


# -- malformed ---


@pytest.mark.parametrize("frame", ODD, ids=range(len(ODD)))
def test_a_malformed_frame_gets_an_error_and_the_next_is_served(folder: Path, frame: bytes) -> None:
    async def test() -> None:
        async with serving(folder), Link(folder / "control") as link:
            await link.send(frame)
            await link.read()
            assert (await link.ask("status", "good")).ok

    run(test)


@pytest.mark.parametrize(
    "frames", [(b"a", b"b"), (b"", b"a", b"b"), (b"", b"", b"", b""), (b"x",) * 50]
)
def test_messages_of_the_wrong_number_of_frames_are_dropped(
    folder: Path, frames: tuple[bytes, ...]
) -> None:
    async def test() -> None:
        async with serving(folder), Link(folder / "control") as link:
            await link.send(*frames)
            assert (await link.ask("status", "good")).ok

    run(test)


def test_a_frame_beyond_the_limit_costs_its_sender_the_connection_only(folder: Path) -> None:
    async def test() -> None:
        async with (
            serving(folder),
            Link(folder / "control") as rude,
            Link(folder / "control") as good,
        ):
            await rude.send(b"x" * (wire.MAX_BYTES + 1))
            assert (await good.ask("status")).ok

    run(test)


def test_a_door_that_was_never_opened_closes_its_listener(folder: Path) -> None:
    async def nothing(_link: socket.socket) -> None: ...

    listener = door.unix_listener(folder / "one", 0o600, None)
    door.Door(listener, nothing, door.peer_uid, door.Quota(in_all=1, per_peer=1)).close()
    assert listener.fileno() == -1


def test_bytes_that_are_no_zeromq_are_survived(folder: Path) -> None:
    async def test() -> None:
        async with serving(folder), Link(folder / "control") as good:
            for _ in range(20):
                _, writer = await asyncio.open_unix_connection(str(folder / "control"))
                writer.write(random.Random(1).randbytes(5000))
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                writer.close()
            assert (await good.ask("status")).ok

    run(test)


def flood(path: Path, frames: int) -> bool:
    """Send malformed frames as fast as they are answered, then a good one: is that answered?"""
    draw = random.Random(7)
    good = json.dumps({"v": 1, "id": "x", "op": "nothing", "args": {"a": 1}}).encode()
    with zmq.Context() as context, context.socket(zmq.DEALER) as link:
        link.setsockopt(zmq.LINGER, 0)
        link.connect(f"ipc://{path}")
        for n in range(frames):
            cut, at = draw.randrange(len(good)), draw.randrange(len(good))
            frame = good[:cut] + bytes([draw.randrange(256)]) + good[at:]
            link.send_multipart([*([b""] * (n % 3)), frame])
            while link.poll(0):
                link.recv_multipart()
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            # Sent again: a connection that is cut for its flood loses what is under way.
            link.send(wire.encode_request(Request("status", {}, "good")))
            while link.poll(5000):
                if wire.decode_reply(link.recv_multipart()[-1]).id == "good":
                    return True
    return False


def test_ten_thousand_malformed_frames_leave_the_daemon_answering(folder: Path) -> None:
    async def test() -> None:
        rounds = 0

        async def work() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await turns()

        async with serving(folder), Link(folder / "control") as other:
            working = asyncio.ensure_future(work())
            assert await asyncio.to_thread(flood, folder / "control", 10_000)
            working.cancel()
            assert (await other.ask("start")).ok
            assert rounds > 5_000, "the flood kept the loop from its other work"

    run(test)


# -- events ---


def test_who_listens_hears_notices_and_nobody_is_waited_for(folder: Path) -> None:
    async def test() -> None:
        async with serving(folder) as served, Link(folder / "events", zmq.SUB) as reader:
            reader.socket.setsockopt(zmq.SUBSCRIBE, b"")
            seq = 0
            while not await reader.socket.poll(10):  # until the subscription has arrived
                seq += 1
                served.publish(Notice(seq, 1.5, "state", "STOPPED -> STARTING"))
            notice = wire.decode_notice(await reader.socket.recv())
            assert (notice.at, notice.kind) == (1.5, "state")
            for _ in range(5000):  # nobody reads
                served.publish(Notice(1, 1.5, "state", "x"))
            await turns()

    run(test)
