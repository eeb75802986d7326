"""The cluster's link: only nodes with the key are heard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from caovand.adapters.admission import gate
from caovand.adapters.admission.curve import Encrypted
from caovand.adapters.admission.door import spare_descriptors
from caovand.adapters.admission.zmtp import LimitExceeded
from caovand.adapters.network import cluster_key, cluster_link
from caovand.adapters.network.cluster_key import KeyPairs
from caovand.adapters.network.cluster_link import HeadLink, WorkerLink, numeric_address
from caovand.core.problem import ProblemError
from tests.patience import PATIENCE_S, soon
from tests.ports import free_port


def pairs_of(folder: Path, name: str) -> KeyPairs:
    return cluster_key.derive_pairs(cluster_key.make(folder / name, ""))


class Heard:
    """The frames that came, as a queue."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()

    def __call__(self, sender: bytes, frame: bytes) -> None:
        self.frames.put_nowait((sender, frame))

    async def next(self) -> tuple[bytes, bytes]:
        return await asyncio.wait_for(self.frames.get(), PATIENCE_S)


async def sent_until_heard(worker: WorkerLink, head: Heard, frame: bytes) -> bytes:
    """Send as workers do, again and again, since a connection that ends loses what it has."""
    while True:
        await worker.send(frame)
        with contextlib.suppress(asyncio.TimeoutError):
            sender, found = await asyncio.wait_for(head.frames.get(), 0.5)
            assert found == frame
            return sender


async def knock(
    port: int, source: str = "127.0.0.2"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stranger's connection."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def unreachable(head: HeadLink, worker: bytes) -> bool:
    """Whether the head knows that this worker's connection has ended."""
    return not await head.send(worker, b"an order")


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


def test_both_ends_hear_each_other_also_after_a_new_connection(tmp_path: Path) -> None:
    pairs, address = pairs_of(tmp_path, "key"), f"127.0.0.1:{free_port()}"

    async def work() -> None:
        at_head, at_worker = Heard(), Heard()
        # The worker is there first: it waits for its head.
        worker = WorkerLink(address, pairs, at_worker, tmp_path)
        for word in (b"one", b"two"):
            head = HeadLink(address, pairs, at_head, tmp_path)
            sender = await sent_until_heard(worker, at_head, word)
            await head.send(sender, b"to " + word)
            assert (await at_worker.next())[1] == b"to " + word
            head.close()
            while not at_head.frames.empty():
                at_head.frames.get_nowait()
        worker.close()

    run(work)


def test_a_head_knows_that_a_connection_has_ended(tmp_path: Path) -> None:
    pairs, address = pairs_of(tmp_path, "key"), f"127.0.0.1:{free_port()}"

    async def work() -> None:
        heard = Heard()
        head, worker = (
            HeadLink(address, pairs, heard, tmp_path),
            WorkerLink(address, pairs, Heard(), tmp_path),
        )
        sender = await sent_until_heard(worker, heard, b"here")
        assert await head.send(sender, b"an order")
        worker.close()
        await soon(lambda: unreachable(head, sender))
        head.close()

    run(work)


def test_strangers_are_not_heard_and_keep_nobody_out(tmp_path: Path) -> None:
    ours, stale = pairs_of(tmp_path, "key"), pairs_of(tmp_path, "stale")
    port = free_port()

    async def work() -> None:
        heard = Heard()
        head = HeadLink(f"127.0.0.1:{port}", ours, heard, tmp_path)
        context = zmq.asyncio.Context()
        plain = context.socket(zmq.DEALER)
        plain.connect(f"tcp://127.0.0.1:{port}")
        await plain.send(b"without a key", zmq.NOBLOCK)
        # The head's public key is no secret: with it, and a key that is not the workers'.
        mixed = KeyPairs(
            ours.head_public, stale.head_secret, stale.worker_public, stale.worker_secret
        )
        others = [WorkerLink(f"127.0.0.1:{port}", one, Heard(), tmp_path) for one in (stale, mixed)]
        for other in others:
            await other.send(b"with a stale key")
        raw = [await knock(port) for _ in range(50)]
        for _, writer in raw:
            writer.write(os.urandom(4096))
        worker = WorkerLink(f"127.0.0.1:{port}", ours, Heard(), tmp_path)
        await worker.send(b"with the key")
        assert (await heard.next())[1] == b"with the key"
        assert heard.frames.empty()
        for _, writer in raw:
            writer.close()
        for one in (*others, worker, head):
            one.close()
        context.destroy(linger=0)

    run(work)


def test_a_worker_knows_whether_its_head_rejects_it_or_is_not_there(tmp_path: Path) -> None:
    ours, stale = pairs_of(tmp_path, "key"), pairs_of(tmp_path, "stale")
    address = f"127.0.0.1:{free_port()}"
    mixed = KeyPairs(ours.head_public, stale.head_secret, stale.worker_public, stale.worker_secret)

    async def work() -> None:
        heard = Heard()
        head = HeadLink(address, ours, heard, tmp_path)
        for wrong in (stale, mixed):
            worker = WorkerLink(address, wrong, Heard(), tmp_path)
            assert not worker.rejected
            await soon(lambda one=worker: one.rejected)
            worker.close()
        worker = WorkerLink(address, stale, Heard(), tmp_path)
        await soon(lambda: worker.rejected)
        head.close()
        await soon(lambda: not worker.rejected)
        # The head gets this worker's key.
        head = HeadLink(address, stale, heard, tmp_path)
        await sent_until_heard(worker, heard, b"here")
        assert not worker.rejected
        worker.close()
        head.close()

    run(work)


CROWD = """
import socket, sys
sys.stdin.readline()
links = []
for number in range(1000):
    links.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60, ("127.0.0.2", 0)))
    links[number // 2].close()
    if number == 500:
        print("half", flush=True)
print("done", flush=True)
"""


async def from_another_address(host: str, port: int) -> socket.socket:
    link = socket.socket()
    link.setblocking(False)
    link.bind(("127.0.0.3", 0))
    await asyncio.get_running_loop().sock_connect(link, (host, port))
    return link


def test_a_thousand_connections_of_a_stranger_cost_few_descriptors_and_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, port = pairs_of(tmp_path, "key"), free_port()

    async def work(crowd: subprocess.Popen[str]) -> None:
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        heard, others = Heard(), Heard()

        def by_sender(sender: bytes, frame: bytes) -> None:
            (heard if frame == b"here" else others)(sender, frame)

        head = HeadLink(f"127.0.0.1:{port}", pairs, by_sender, tmp_path)
        joined = WorkerLink(f"127.0.0.1:{port}", pairs, Heard(), tmp_path)
        sender = await sent_until_heard(joined, heard, b"here")
        lowest = before = spare_descriptors()
        crowd.stdin.close()
        assert await asyncio.to_thread(crowd.stdout.readline) == "half\n"
        # Somebody else joins meanwhile, and who has joined is heard all along.
        monkeypatch.setattr(cluster_link, "_open_connection", from_another_address)
        other = WorkerLink(f"127.0.0.1:{port}", pairs, Heard(), tmp_path)
        await sent_until_heard(other, others, b"another")
        ended = asyncio.ensure_future(asyncio.to_thread(crowd.stdout.readline))
        while not ended.done():
            await joined.send(b"here")
            assert (await heard.next())[0] == sender
            lowest = min(lowest, spare_descriptors())
            await asyncio.wait([ended], timeout=0.05)
        assert ended.result() == "done\n"
        assert before - lowest <= 3 * (cluster_link.LINKS_EACH + 2), "three for each connection"
        for one in (joined, other, head):
            one.close()

    words = [sys.executable, "-c", CROWD, str(port)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    ) as crowd:
        try:
            run(lambda: work(crowd))
        finally:
            crowd.kill()


async def dropped(reader: asyncio.StreamReader) -> None:
    """Wait until the other side closes."""
    with contextlib.suppress(ConnectionError):
        while await asyncio.wait_for(reader.read(1 << 16), PATIENCE_S):
            pass


GREETING = b"\xff" + bytes(8) + b"\x7f\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32)


@pytest.mark.parametrize("said", [b"", GREETING[:9], GREETING], ids=["nothing", "little", "a bit"])
def test_a_stranger_that_does_not_go_on_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(gate, "FIRST_MESSAGE_S", 0.05)

    async def work() -> None:
        port = free_port()
        head = HeadLink(f"127.0.0.1:{port}", pairs_of(tmp_path, "key"), Heard(), tmp_path)
        reader, writer = await knock(port)
        writer.write(said)
        await dropped(reader)
        writer.close()
        head.close()

    run(work)


def test_strangers_that_take_every_place_leave_some_to_known_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_link, "MAX_LINKS", 4)
    monkeypatch.setattr(cluster_link, "LINKS_EACH", 2)
    monkeypatch.setattr(gate, "FIRST_MESSAGE_S", PATIENCE_S)
    pairs, port = pairs_of(tmp_path, "key"), free_port()

    async def work() -> None:
        heard = Heard()
        head = HeadLink(f"127.0.0.1:{port}", pairs, heard, tmp_path)
        worker = WorkerLink(f"127.0.0.1:{port}", pairs, Heard(), tmp_path)
        sender = await sent_until_heard(worker, heard, b"first")
        worker.close()
        await soon(lambda: unreachable(head, sender))
        kept = [await knock(port, f"127.0.0.{number}") for number in (2, 2, 3, 3)]
        for source in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
            reader, writer = await knock(port, source)
            await dropped(reader)
            writer.close()
        again = WorkerLink(f"127.0.0.1:{port}", pairs, Heard(), tmp_path)
        await sent_until_heard(again, heard, b"again")
        for _, writer in kept:
            writer.close()
        for one in (again, head):
            one.close()

    run(work)


def test_a_small_message_is_sent_at_once_and_one_that_nobody_takes_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    class Gate(gate.Gate):
        async def serve(self, link: Any) -> None:
            for option in (socket.TCP_NODELAY, socket.TCP_USER_TIMEOUT):
                seen.append(link.getsockopt(socket.IPPROTO_TCP, option))
            await super().serve(link)

    monkeypatch.setattr(cluster_link, "Gate", Gate)
    pairs, address = pairs_of(tmp_path, "key"), f"127.0.0.1:{free_port()}"

    async def work() -> None:
        heard = Heard()
        head = HeadLink(address, pairs, heard, tmp_path)
        worker = WorkerLink(address, pairs, Heard(), tmp_path)
        await sent_until_heard(worker, heard, b"x")
        assert seen == [1, cluster_link.SILENCE_MS]
        worker.close()
        head.close()

    run(work)


@pytest.mark.long
def test_a_repeated_message_ends_its_connection_unheard(tmp_path: Path) -> None:
    """A machine between them records what a worker sends, and sends its last bytes again."""
    pairs, port = pairs_of(tmp_path, "key"), free_port()

    async def work() -> None:
        heard, between = Heard(), free_port()
        head = HeadLink(f"127.0.0.1:{port}", pairs, heard, tmp_path)
        replay = asyncio.Event()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)

            async def answers() -> None:
                while data := await there.read(65536):
                    writer.write(data)

            answering = asyncio.ensure_future(answers())
            while data := await reader.read(65536):
                back.write(data)
                if replay.is_set():
                    back.write(data)
            answering.cancel()

        server = await asyncio.start_server(relay, "127.0.0.1", between)
        worker = WorkerLink(f"127.0.0.1:{between}", pairs, Heard(), tmp_path)
        await worker.send(b"first")
        assert (await heard.next())[1] == b"first"
        replay.set()
        await worker.send(b"second")
        assert (await heard.next())[1] == b"second"
        replay.clear()
        # Its connection was dropped for the repetition: it comes back with a fresh one.
        await sent_until_heard(worker, heard, b"third")
        worker.close()
        head.close()
        server.close()

    run(work)


EXCESSIVE: dict[str, list[bytes]] = {
    "large parts": [bytes(60_000)] * 50,
    "small parts": [b""] * 50_000,
}


@pytest.mark.parametrize("frames", EXCESSIVE.values(), ids=EXCESSIVE)
@pytest.mark.parametrize("hostile", ["worker", "head"])
def test_a_message_of_many_parts_costs_its_sender_the_connection(
    tmp_path: Path, hostile: str, frames: list[bytes]
) -> None:
    """Who has the key is heard, but fills nobody's memory."""
    pairs, port = pairs_of(tmp_path, "key"), free_port()
    ended: list[str] = []

    class Counted(Encrypted):
        def feed(self, data: bytes) -> None:
            try:
                super().feed(data)
            except LimitExceeded as problem:
                ended.append(str(problem))
                raise

    async def work() -> None:
        at_head, at_worker = Heard(), Heard()
        head = HeadLink(f"127.0.0.1:{port}", pairs, at_head, tmp_path)
        worker = WorkerLink(f"127.0.0.1:{port}", pairs, at_worker, tmp_path)
        with contextlib.closing(head), contextlib.closing(worker):
            sender = await sent_until_heard(worker, at_head, b"here")
            if hostile == "worker":
                await worker._socket.send_multipart(frames)
            else:
                await head._socket.send_multipart([sender, *frames])
            await soon(lambda: bool(ended))
            assert ended[0] == "a message is too large"
            # On a busy machine it was sent more than once before it was heard.
            while not at_head.frames.empty():
                assert at_head.frames.get_nowait()[1] == b"here"
            assert at_worker.frames.empty()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_link, "Encrypted", Counted)
        run(work)


def test_many_messages_pass_however_large_they_are_together(tmp_path: Path) -> None:
    pairs, port = pairs_of(tmp_path, "key"), free_port()
    frame, count = bytes(cluster_link.MAX_UNHEARD // 16), 64

    async def work() -> None:
        at_head, at_worker = Heard(), Heard()
        head = HeadLink(f"127.0.0.1:{port}", pairs, at_head, tmp_path)
        worker = WorkerLink(f"127.0.0.1:{port}", pairs, at_worker, tmp_path)
        sender = await sent_until_heard(worker, at_head, b"here")
        for _ in range(count):
            await worker.send(frame)
            assert await at_head.next() == (sender, frame)
            await head.send(sender, frame)
            assert (await at_worker.next())[1] == frame
        for one in (worker, head):
            one.close()

    run(work)


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(ProblemError, match=r"listen for workers on 192\.0\.2\.1:7070"):
            HeadLink("192.0.2.1:7070", pairs_of(tmp_path, "key"), Heard(), tmp_path)

    run(work)


def test_a_name_is_listened_on_by_its_address() -> None:
    assert numeric_address("localhost:7070") in ("127.0.0.1:7070", "[::1]:7070")
    assert numeric_address("[::1]:7070") == "[::1]:7070"
    with pytest.raises(ProblemError, match=r"listen for workers on no\.such\.host\.invalid:1"):
        numeric_address("no.such.host.invalid:1")
