"""`make bench`: what the gateway adds to a request, next to the same requests sent directly.

    python -m tests.bench.gateway [--litellm COMMAND]

`--litellm` runs LiteLLM's proxy in turn with the gateway (`pip install 'litellm[proxy]'` into an
environment of its own).
Engine, gateway and clients are processes of their own. The engine answers every request with a
stream of fixed events at a fixed pace, so that the difference is the gateway's. Nothing here fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from caovand.adapters.servers import listening, server_main
from tests.bench.measures import cpu_s, in_ms, memory_mb
from tests.gateway.world import CHAT, STREAMED, FakeDaemon
from tests.patience import turns
from tests.ports import free_port

STREAMS = 50
ROUNDS = 10
EVENTS = 100
PACE_S = 0.02
EVENT = (
    b'data: {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny",'
    b' "choices": [{"index": 0, "delta": {"content":"word "}, "finish_reason": null}]}\n\n'
)
WORD = b'"content":"word "'
LITELLM_S = 120.0
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: keep-alive\r\n\r\n"
)
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
LAST = b"data: [DONE]\n\n"
END = b"%x\r\n%s\r\n0\r\n\r\n" % (len(LAST), LAST)


class Engine(asyncio.Protocol):
    """Streams EVENTS to each request, or what its `events` asks for, the first at once."""

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
            events = json.loads(body or b"{}").get("events", EVENTS)
            asyncio.get_running_loop().call_later(PACE_S, self._next, events - 1)

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


async def gateway(port: int, folder: Path) -> None:
    """Be the gateway."""
    from caovand.gateway import server  # noqa: PLC0415  (its process alone pays for the library)

    listener = listening.listen_on(f"127.0.0.1:{port}", 1024)
    await server.start(listener, folder / "gateway", 1 << 20)
    server_main.settle_collector()
    await asyncio.Event().wait()


async def daemon(folder: Path, engine_port: int, keep_alive_s: float) -> None:
    """Be the daemon that the gateway asks."""
    folder.mkdir()
    one = FakeDaemon(folder / "gateway", engine_port)
    one.says["keep_alive_s"] = keep_alive_s
    await one.start()
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


async def ask(port: int, begin: asyncio.Event, events: int = EVENTS) -> Seen:
    """Send one request once `begin` is set, over a connection of its own."""
    body = json.dumps({**STREAMED, "events": events}).encode()
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
        count += data.count(WORD)
        if not first_s and count:
            first_s = time.perf_counter() - began
        tail = (tail + data)[-64:]
    writer.close()
    return Seen(first_s, time.perf_counter() - began, count)


async def burst(port: int, count: int = STREAMS, events: int = EVENTS) -> list[Seen]:
    """`count` requests at the same moment."""
    begin = asyncio.Event()
    tasks = [asyncio.ensure_future(ask(port, begin, events)) for _ in range(count)]
    await turns()
    begin.set()
    return list(await asyncio.gather(*tasks))


def run(work: Callable[[], Awaitable[object]]) -> None:
    """Run `work` in this process until it is ended."""
    asyncio.run(work())  # type: ignore[arg-type]


def main() -> None:
    """Measure all ways in turn and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gateway")
    parser.add_argument("--litellm", type=Path, metavar="COMMAND")
    options = parser.parse_args()
    engine_port = free_port()
    with tempfile.TemporaryDirectory(prefix="caovan-bench-") as name, contextlib.ExitStack() as end:
        folder = Path(name)

        def begin(work: Callable[[], Awaitable[object]]) -> int:
            process = multiprocessing.Process(target=run, args=(work,))
            process.start()
            end.callback(process.kill)
            time.sleep(0.5)
            assert process.pid is not None
            return process.pid

        begin(partial(engine, engine_port))
        ways = [Way("directly", engine_port)]
        for title, keep_alive_s in (("kept connections", 5.0), ("a connection each", 0.0)):
            port, own = free_port(), folder / str(keep_alive_s)
            begin(partial(daemon, own, engine_port, keep_alive_s))
            pid = begin(partial(gateway, port, own))
            ways.append(Way(f"through the gateway, {title}", port, pid))
        if options.litellm:
            proxy = litellm(options.litellm, folder, engine_port)
            end.callback(proxy.kill)
            ways.append(Way("through LiteLLM's proxy", proxy.port, proxy.pid))
        measure(ways)


class LiteLlm(subprocess.Popen[bytes]):
    """LiteLLM's proxy on the port `port`."""

    port = 0


def litellm(command: Path, folder: Path, engine_port: int) -> LiteLlm:
    """A proxy that serves."""
    port, file = free_port(), folder / "litellm.yaml"
    model = {"model": "openai/tiny", "api_base": f"http://127.0.0.1:{engine_port}/v1"}
    served = {"model_name": "tiny", "litellm_params": {**model, "api_key": "none"}}
    file.write_text(json.dumps({"model_list": [served]}))  # JSON is YAML
    words = [command, "--config", file, "--host", "127.0.0.1", "--port", str(port)]
    unguarded = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    env = {**os.environ, **unguarded, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with open(folder / "litellm.log", "wb") as log:
        proxy = LiteLlm(words, stdout=log, stderr=log, env=env)
    proxy.port = port
    end = time.monotonic() + LITELLM_S
    while time.monotonic() < end and proxy.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return proxy
        time.sleep(0.5)
    sys.exit(f"LiteLLM's proxy does not serve: {(folder / 'litellm.log').read_text()[-2000:]}")


@dataclass
class Way:
    """One way to the engine, through the process `pid`, and what clients saw of it."""

    name: str
    port: int
    pid: int | None = None
    seen: list[Seen] = field(default_factory=list)
    steadily: list[Seen] = field(default_factory=list)
    used_s: float = 0.0
    request_s: float = 0.0
    """The CPU time of a request with a single event."""

    def burst(self) -> None:
        """STREAMS requests at the same moment."""
        before_s = self.cpu_s()
        self.seen += asyncio.run(burst(self.port))
        self.used_s += self.cpu_s() - before_s

    def short(self) -> None:
        """Requests with a single event, as many as in all bursts."""
        before_s = self.cpu_s()
        for _ in range(ROUNDS):
            asyncio.run(burst(self.port, events=1))
        self.request_s = (self.cpu_s() - before_s) / (STREAMS * ROUNDS)

    def cpu_s(self) -> float:
        """The CPU time of its process so far."""
        return cpu_s(self.pid) if self.pid else 0.0


def measure(ways: list[Way]) -> None:
    """Send the bursts and print what came of them."""
    for way in ways:
        asyncio.run(burst(way.port, 1))  # whatever the first request alone needs
    for _ in range(ROUNDS):
        for way in ways:
            way.burst()
    for way in ways:
        way.steadily = asyncio.run(steady(way.port))
    for way in ways:
        way.short()
    print(f"\n{STREAMS} streams at once, {ROUNDS} times; load average: {os.getloadavg()[0]:.1f}")
    print(f"{'first event, whole answer, p50 / p99':<38} {'at once':>18} {'one of many':>18}"
          f" {'whole':>20} {'CPU a request':>14} {'a chunk':>8} {'RSS':>10}")  # fmt: skip
    for way in ways:
        chunks = sum(one.events for one in way.seen)
        cost = f"{way.used_s / chunks * 1e6:.0f} us" if way.pid else ""
        request = f"{way.request_s * 1e6:.0f} us" if way.pid else ""
        memory = f"{memory_mb(way.pid):.1f} MB" if way.pid else ""
        first, apart, whole = (
            in_ms([one.first_s for one in way.seen]),
            in_ms([one.first_s for one in way.steadily]),
            in_ms([one.whole_s for one in way.seen]),
        )
        print(f"{way.name:<38} {first:>18} {apart:>18} {whole:>20}"
              f" {request:>14} {cost:>8} {memory:>10}")  # fmt: skip


if __name__ == "__main__":
    main()
