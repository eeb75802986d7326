"""`make bench`: what the gateway adds to a request, next to the same requests sent directly.

Engine, gateway and clients are processes of their own. The engine answers every request with a
stream of fixed events at a fixed pace, so that the difference is the gateway's. Nothing here fails.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from caovand.adapters.servers import listening
from tests.bench.measures import cpu_s, in_ms, memory_mb
from tests.daemon_process import free_port
from tests.gateway.world import CHAT, STREAMED, FakeDaemon
from tests.patience import turns

STREAMS = 50
ROUNDS = 10
EVENTS = 100
PACE_S = 0.02
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "word "}}]}\n\n'
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: keep-alive\r\n\r\n"
)
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
LAST = b"data: [DONE]\n\n"
END = b"%x\r\n%s\r\n0\r\n\r\n" % (len(LAST), LAST)


class Engine(asyncio.Protocol):
    """Streams `events` to each request, the first at once."""

    events = EVENTS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._got = transport, b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if end and len(body) >= length:
            self._got = b""
            self._transport.write(HEAD + CHUNK)
            asyncio.get_running_loop().call_later(PACE_S, self._next, self.events - 1)

    def _next(self, left: int) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(CHUNK if left else END)
        if left:
            asyncio.get_running_loop().call_later(PACE_S, self._next, left - 1)


async def engine(port: int) -> None:
    """Be the engine."""
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port)
    await server.serve_forever()


async def gateway(port: int, engine_port: int, folder: Path) -> None:
    """Be the gateway."""
    from caovand.gateway import server  # noqa: PLC0415  (its process alone pays for the library)

    listener = listening.listen_on(f"127.0.0.1:{port}", 1024)
    await server.start(listener, folder / "gateway", 1 << 20)
    await asyncio.Event().wait()


async def daemon(folder: Path, engine_port: int) -> None:
    """Be the daemon that the gateway asks."""
    await FakeDaemon(folder / "gateway", engine_port).start()
    await asyncio.Event().wait()


@dataclass(frozen=True)
class Seen:
    """What one client saw: seconds until the first event and until the end, and its events."""

    first_s: float
    whole_s: float
    events: int


async def steady(port: int) -> list[Seen]:
    """STREAMS streams at any time for ROUNDS times the length of one: each begins on its own."""
    begin, tasks = asyncio.Event(), []
    begin.set()
    for _ in range(STREAMS * ROUNDS):
        tasks.append(asyncio.ensure_future(ask(port, begin)))
        await asyncio.sleep(EVENTS * PACE_S / STREAMS)
    return list(await asyncio.gather(*tasks))


async def ask(port: int, begin: asyncio.Event) -> Seen:
    """Send one request once `begin` is set, over a connection of its own."""
    body = json.dumps(STREAMED).encode()
    await begin.wait()
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body)
    )
    first_s, count, tail = 0.0, 0, b""
    while not tail.endswith(b"\r\n0\r\n\r\n"):
        data = await reader.read(65536)
        if not data:
            raise ConnectionError("the answer is cut off")
        count += data.count(b'data: {"choices"')
        if not first_s and count:
            first_s = time.perf_counter() - began
        tail = (tail + data)[-64:]
    writer.close()
    return Seen(first_s, time.perf_counter() - began, count)


async def burst(port: int, count: int = STREAMS) -> list[Seen]:
    """`count` requests at the same moment."""
    begin = asyncio.Event()
    tasks = [asyncio.ensure_future(ask(port, begin)) for _ in range(count)]
    await turns()
    begin.set()
    return list(await asyncio.gather(*tasks))


def run(work: Callable[[], Awaitable[object]]) -> None:
    """Run `work` in this process until it is ended."""
    asyncio.run(work())  # type: ignore[arg-type]


def main() -> None:
    """Measure both ways in turn and print the table."""
    engine_port, port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="caovan-bench-") as name:
        folder = Path(name)
        works = (
            partial(engine, engine_port),
            partial(daemon, folder, engine_port),
            partial(gateway, port, engine_port, folder),
        )
        processes = [multiprocessing.Process(target=run, args=(work,)) for work in works]
        for process in processes:
            process.start()
            time.sleep(0.5)
        pid = processes[-1].pid
        assert pid is not None
        try:
            measure(engine_port, port, pid)
        finally:
            for process in processes:
                process.kill()


def measure(engine_port: int, port: int, pid: int) -> None:
    """Send the bursts and print what came of them."""
    asyncio.run(burst(port, 1))  # whatever the first request alone needs
    rounds: dict[int, list[Seen]] = {engine_port: [], port: []}
    used_s = 0.0
    for _ in range(ROUNDS):
        for way in rounds:
            before_s = cpu_s(pid)
            rounds[way] += asyncio.run(burst(way))
            used_s += cpu_s(pid) - before_s if way == port else 0.0
    apart = {way: asyncio.run(steady(way)) for way in rounds}
    direct, through = rounds.values()
    chunks = sum(one.events for one in through)
    rows = [
        ("first event directly, p50 / p99", in_ms([one.first_s for one in direct]), ""),
        ("first event through it, p50 / p99", in_ms([one.first_s for one in through]), ""),
        ("one of many, first event directly", in_ms([s.first_s for s in apart[engine_port]]), ""),
        ("one of many, through it", in_ms([s.first_s for s in apart[port]]), "3 ms more"),
        ("whole answer directly, p50 / p99", in_ms([one.whole_s for one in direct]), ""),
        ("whole answer through it, p50 / p99", in_ms([one.whole_s for one in through]), ""),
        ("its CPU, all of it, a chunk", f"{used_s / chunks * 1e6:.0f} us", ""),
        ("its memory", f"{memory_mb(pid):.1f} MB RSS", "under 60 MB"),
    ]
    print(f"\n{STREAMS} streams at once, {ROUNDS} times; load average: {os.getloadavg()[0]:.1f}")
    for what, figure, goal in rows:
        print(f"{what:<44} {figure:>16}   {goal}")


if __name__ == "__main__":
    main()
