"""`make bench`: what the gateway adds to a request, next to the same requests sent directly.

    python -m tests.bench.gateway [--litellm COMMAND]

`--litellm` runs LiteLLM's proxy in turn with the gateway (`pip install 'litellm[proxy]'` into an
environment of its own).
Engine, gateway and clients are processes of their own, and so is a bare proxy, which shows what any
proxy of aiohttp costs on this machine. The engine streams events at a fixed pace, each with the
time at which it was sent, so that the difference is the gateway's. Nothing fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from caovand.adapters.servers import listening, server_main
from tests.bench import bare_proxy, streams
from tests.bench.measures import cpu_s, in_ms, memory_mb
from tests.gateway.world import STREAMED, FakeDaemon
from tests.ports import free_port

STREAMS = 50
ROUNDS = 6
STEADY_S = 8.0
EVENTS = 100
SHORT_BURSTS = 5
SEED = 35
LITELLM_S = 120.0
SPARES, EACH = "opened ahead", "a connection each"
CONNECTIONS: dict[str, dict[str, object]] = {
    "kept connections": {"keep_alive_s": 5.0},
    SPARES: {"keep_alive_s": 5.0, "reuses_connections": False},
    EACH: {"keep_alive_s": 0.0},
}
"""How the gateway connects, by what it hears of the engine."""


async def gateway(port: int, folder: Path) -> None:
    """Be the gateway."""
    from caovand.gateway import server  # noqa: PLC0415  (its process alone pays for the library)
    from caovand.gateway.survivor import Marks  # noqa: PLC0415

    listener = listening.listen_on(f"127.0.0.1:{port}", 1024)
    await server.start(listener, folder / "gateway", 1 << 20, Marks())
    server_main.settle_collector()
    await asyncio.Event().wait()


async def daemon(folder: Path, engine_port: int, said: dict[str, object]) -> None:
    """Be the daemon that the gateway asks."""
    folder.mkdir()
    one = FakeDaemon(folder / "gateway", engine_port)
    one.says.update(said)
    await one.start()
    await asyncio.Event().wait()


@dataclass(frozen=True)
class Seen:
    """What a client saw of an answer: seconds until its first event and until its end, and how late
    each event was."""

    first_s: float
    whole_s: float
    late_s: Sequence[float]


class Client:
    """Sends one request after the other over a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connected(cls, port: int) -> Client:
        """A client of the server at this port."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, events: int) -> Seen:
        """Send a request for so many events, and read its answer."""
        began = time.monotonic()
        self._writer.write(streams.request(json.dumps({**STREAMED, "max_tokens": events}).encode()))
        first_s, rest, tail = 0.0, b"", b""
        late_s: list[float] = []
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            data = await self._reader.read(65536)
            at = time.monotonic()
            if not data:
                raise ConnectionError("the answer is cut off")
            *lines, rest = (rest + data).split(b"\n")
            late_s += [at - float(found[1]) for line in lines if (found := streams.AT.search(line))]
            first_s = first_s or (at - began if late_s else 0.0)
            tail = (tail + data)[-7:]
        return Seen(first_s, time.monotonic() - began, late_s)

    def close(self) -> None:
        """Leave."""
        self._writer.close()


async def steady(port: int, seed: int) -> list[list[Seen]]:
    """STREAMS clients at any time for STEADY_S: each asks again as soon as it has its answer.

    Their answers differ in length, so that requests come on their own.
    """
    end = time.monotonic() + STEADY_S

    async def come(chance: random.Random) -> list[Seen]:
        seen = []
        await asyncio.sleep(chance.random() * EVENTS * streams.PACE_S)
        client = await Client.connected(port)
        while time.monotonic() < end:
            seen.append(await client.ask(chance.randint(EVENTS // 2, EVENTS * 3 // 2)))
        client.close()
        return seen

    return await asyncio.gather(*(come(random.Random(f"{seed} {n}")) for n in range(STREAMS)))


async def burst(port: int, events: int = EVENTS) -> list[Seen]:
    """STREAMS new clients, each of which connects and asks at the same moment."""

    async def come() -> Seen:
        began = time.monotonic()
        client = await Client.connected(port)
        connected_s = time.monotonic() - began
        seen = await client.ask(events)
        client.close()
        return replace(seen, first_s=connected_s + seen.first_s)

    return list(await asyncio.gather(*(come() for _ in range(STREAMS))))


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

        begin(partial(streams.serve, engine_port))
        ways = [Way("directly", engine_port)]
        port = free_port()
        pid = begin(partial(bare_proxy.serve, port, engine_port))
        ways.append(Way("through a bare proxy", port, pid))
        for title, said in CONNECTIONS.items():
            port, own = free_port(), folder / title
            begin(partial(daemon, own, engine_port, said))
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
    steady: list[Seen] = field(default_factory=list)
    at_once: list[Seen] = field(default_factory=list)
    used_s: float = 0.0
    """The CPU time of the steady streams, which had so many `chunks`."""
    chunks: int = 0
    request_s: float = 0.0
    """The CPU time of the requests with a single event, of which a burst sends STREAMS."""

    def round(self, number: int) -> None:
        """Let steady clients come, then STREAMS at the same moment, then as many briefly."""
        before_s = self.cpu_s()
        for seen in asyncio.run(steady(self.port, SEED + number)):
            self.chunks += sum(len(one.late_s) for one in seen)
            self.steady += seen[1:]  # during the first ones others have yet to begin
        self.used_s += self.cpu_s() - before_s
        self.at_once += asyncio.run(burst(self.port))
        before_s = self.cpu_s()
        for _ in range(SHORT_BURSTS):
            asyncio.run(burst(self.port, events=1))
        self.request_s += self.cpu_s() - before_s

    def cpu_s(self) -> float:
        """The CPU time of its process so far."""
        return cpu_s(self.pid) if self.pid else 0.0


def measure(ways: list[Way]) -> None:
    """Let the clients come, each way in turn, and print what they saw."""
    for way in ways:
        asyncio.run(burst(way.port, 1))  # whatever the first request alone needs
    for number in range(ROUNDS):
        for way in ways:
            way.round(number)
    print(f"\n{STREAMS} streams at any time, {len(ways[0].steady)} requests each way;"
          f" load average: {os.getloadavg()[0]:.1f}")  # fmt: skip
    print(f"{'p50 / p99':<38} {'first event':>18} {'of a burst':>20} {'events late':>18}"
          f" {'a second':>8} {'CPU a request':>13} {'a chunk':>8} {'RSS':>10}")  # fmt: skip
    for way in ways:
        print(row(way))


def row(way: Way) -> str:
    """A line of the table."""
    late_s = [late_s for one in way.steady for late_s in one.late_s]
    rate = STREAMS * len(late_s) / sum(one.whole_s for one in way.steady)
    first = in_ms([one.first_s for one in way.steady])
    at_once = in_ms([one.first_s for one in way.at_once])
    line = f"{way.name:<38} {first:>18} {at_once:>20} {in_ms(late_s):>18} {rate:>8,.0f}"
    if way.pid is None:
        return line
    request = way.request_s / (STREAMS * SHORT_BURSTS * ROUNDS)
    used = f"{request * 1e6:>10.0f} us {way.used_s / way.chunks * 1e6:>5.0f} us"
    return f"{line} {used} {memory_mb(way.pid):>7.1f} MB"


if __name__ == "__main__":
    main()
