"""`make bench-hostile`: what streams through the gateway notice of crowds and fuzzed requests.

    python -m tests.bench.hostile [--requests 200000] [--seed 35]

Engine, gateway, bystanders and attackers are processes of their own. Every event of the engine has
the time at which it was sent. On a busy machine, this gives precedence to all but the attackers:

    setsid sh -c 'echo -15 > /proc/self/autogroup
                  exec nice -n -15 python -m tests.bench.hostile'

`chrt -f 10` does not: where real-time processes leave others nothing, the kernel stops them for
50 ms of each second, and these would count as the gateway's. Nothing here fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import multiprocessing
import os
import random
import resource
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from caovand.adapters.servers import listening, server_main
from tests.bench import streams
from tests.bench.measures import cpu_s, in_ms, memory_mb
from tests.gateway.world import CHAT, STREAMED, FakeDaemon
from tests.ports import free_port

KEY = "sesame"
STREAMS, EVENTS, AT_LEAST_S = 20, 25, 5.0
IDLE, REFUSED, CROWD = 2000, 10_000, 10_000
BURST, LEAVING, TIMES = 2000, 2000, 3
SILENT = 10**6
"""The events of a stream that the engine begins and leaves at that."""
ATTACKERS = 8
HUGE = 10
MAX_BODY = 64 << 20
ANSWER_S = 0.05  # for a request whose end the gateway waits for
HIDDEN = b"GET /v1/hidden HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sesame\r\n\r\n"
"""Behind a head that can be read in two ways: no engine may see it."""


# -- what attackers send --------------------------------------------------------------------------


@dataclass(frozen=True)
class Attack:
    """Bytes for a connection of their own; `waits` says that an answer is due."""

    data: bytes
    waits: bool = True


def head(*lines: bytes, path: bytes = CHAT.encode(), key: bytes = KEY.encode()) -> bytes:
    """The head of a request, without its empty line."""
    first = (b"POST %s HTTP/1.1" % path, b"Host: x", b"Authorization: Bearer %s" % key)
    return b"\r\n".join((*first, b"Content-Type: application/json", *lines)) + b"\r\n"


def whole(body: bytes, **more: bytes) -> bytes:
    """A request with this body."""
    return head(b"Connection: close", b"Content-Length: %d" % len(body), **more) + b"\r\n" + body


def valid(chance: random.Random) -> Attack:
    """A request like others."""
    return Attack(whole(json.dumps({**STREAMED, "n": chance.randrange(10**6)}).encode()))


def wrong_key(chance: random.Random) -> Attack:
    """A key that there is not."""
    return Attack(whole(b"{}", key=chance.randbytes(12).hex().encode()))


AMBIGUOUS = (
    b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    b"Content-Length: 4\r\nContent-Length: 40\r\n",
    b"Content-Length: 4, 40\r\n",
    b"Content-Length: +4\r\n",
    b"Content-Length: 0x4\r\n",
    b"Content-Length : 4\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b"\x00Transfer-Encoding: chunked\r\n",
)


def ambiguous(chance: random.Random) -> Attack:
    """A head with two lengths, or with none that is valid."""
    return Attack(head() + chance.choice(AMBIGUOUS) + b"\r\n0\r\n\r\n" + HIDDEN)


def folded(chance: random.Random) -> Attack:
    """A header over several lines."""
    fold = chance.choice((b" ", b"\t")) * chance.randint(1, 40)
    return Attack(head(b"X-Long: a\r\n%sb" % fold, b"Content-Length: 2") + b"\r\n{}")


CHUNKS = (
    b"-1\r\n", b"zz\r\n", b"ffffffffffffffffff\r\n", b"2\r\n{}X\r\n", b"2;" + b"x" * 20_000,
    b"2\n{}\n0\n\n", b"0\r\nX-Trailer: 1\r\n" * 3, b"\r\n\r\n", b"2\r\n{}\r\n0\r\n", b"0x2\r\n{}",
)  # fmt: skip


def chunked(chance: random.Random) -> Attack:
    """Chunks that are none."""
    return Attack(head(b"Transfer-Encoding: chunked") + b"\r\n" + chance.choice(CHUNKS))


def flood(chance: random.Random) -> Attack:
    """Many headers, or a long one."""
    if chance.random() < 0.5:
        headers = b"".join(b"X-%d: 1\r\n" % n for n in range(chance.randint(200, 2000)))
    else:
        headers = b"X-Flood: " + b"x" * chance.randint(8000, 100_000) + b"\r\n"
    return Attack(head() + headers + b"\r\n")


BODIES: tuple[Callable[[random.Random], bytes], ...] = (
    lambda chance: b"[" * chance.randint(1, 50_000),
    lambda chance: b'{"a":' * chance.randint(1, 10_000),
    lambda chance: b'{"model": "' + chance.randbytes(200) + b'"}',
    lambda chance: b'{"model": "a\\n\\ndata: {\\"error\\": 1}\\n\\n", "stream": true}',
    lambda chance: b'{"model": ' + b"9" * chance.randint(1, 30_000) + b"}",
    lambda chance: b'{"' + b"\\" * chance.randint(1, 20_000) + b'": 1}',
    lambda chance: b'{"stream": true, ' * 3 + b'"messages": [[[{}]]]',
    lambda chance: chance.randbytes(chance.randint(0, 4000)),
)


def odd_body(chance: random.Random) -> Attack:
    """JSON that is none, deep, long or with lines of its own in the model's name."""
    return Attack(whole(chance.choice(BODIES)(chance)))


PATHS = (b"/v1/../v1/hidden", b"//v1/x", b"/v1/%2e%2e/x", b"http://x/v1/x", b"*", b"/" * 3000,
         b"/v1/models/" + b"%41" * 500, b"/v1/\xff\xfe", b"/v1/x?" + b"a=b&" * 1000)  # fmt: skip


def odd_path(chance: random.Random) -> Attack:
    """Paths that mean another one, or nothing."""
    return Attack(whole(b"{}", path=chance.choice(PATHS)))


OTHERS = (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
          b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 100, b"\0" * 100)  # fmt: skip


def other_protocol(chance: random.Random) -> Attack:
    """No HTTP/1.1, or noise."""
    return Attack(chance.choice((*OTHERS, chance.randbytes(chance.randint(1, 3000)))))


def cut(chance: random.Random) -> Attack:
    """A request that breaks off."""
    data = valid(chance).data
    return Attack(data[: chance.randrange(1, len(data))], waits=False)


def announced(chance: random.Random) -> Attack:
    """A body of 100 MB, announced."""
    return Attack(head(b"Content-Length: %d" % (100 << 20)) + b"\r\n" + b"x" * 1000)


def mutated(chance: random.Random) -> Attack:
    """A request with some of its bytes changed."""
    data = bytearray(valid(chance).data)
    for _ in range(chance.randint(1, 6)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return Attack(bytes(data))


KINDS: tuple[Callable[[random.Random], Attack], ...] = (
    valid, wrong_key, ambiguous, folded, chunked, flood, odd_body, odd_path, other_protocol, cut,
    announced, mutated,
)  # fmt: skip


def attacks(count: int, seed: int) -> Iterator[Attack]:
    """So many attacks of all kinds."""
    chance = random.Random(seed)
    for _ in range(count):
        yield chance.choice(KINDS)(chance)


def send(port: int, attack: Attack) -> str:
    """Send one; the status of the answer, or what came instead."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.settimeout(ANSWER_S if attack.waits else 0.0)
        try:
            link.sendall(attack.data)
            answer = link.recv(4096) if attack.waits else b""
        except (BlockingIOError, TimeoutError):
            return "no answer in time"
        except OSError:
            return "cut off"
    if not attack.waits:
        return "left"
    return answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.") else "closed"


# -- processes ------------------------------------------------------------------------------------


class Engine(streams.Engine):
    """Tells of a request that it must not see; streams of SILENT events have one."""

    def asked(self, head: bytes) -> None:
        if b"/v1/hidden" in head:
            print("SMUGGLED", head, flush=True)

    def _next(self, before: bytes, left: int, due: float) -> None:
        if left < SILENT:
            super()._next(before, left, due)
        else:
            self._transport.write(before + streams.event())


async def daemon(folder: Path, engine_port: int) -> None:
    """Be the daemon."""
    one = FakeDaemon(folder / "gateway", engine_port)
    one.says["key"] = KEY
    await one.start()
    await asyncio.Event().wait()


async def gateway(port: int, folder: Path) -> None:
    """Be the gateway."""
    from caovand.gateway import server  # noqa: PLC0415  (its process alone pays for the library)
    from caovand.gateway.survivor import Marks  # noqa: PLC0415

    logging.getLogger("aiohttp").addHandler(logging.NullHandler())  # as its own process does
    logging.getLogger("aiohttp").propagate = False
    listener = listening.listen_on(f"127.0.0.1:{port}", 1024)
    await server.start(listener, folder / "gateway", MAX_BODY, Marks())
    server_main.settle_collector()
    await asyncio.Event().wait()


def stand_back() -> None:
    """Leave the processors to what is attacked."""
    os.setpriority(os.PRIO_PROCESS, 0, 19)


def attack(port: int, count: int, seed: int, results: Any) -> None:
    """Be an attacker."""
    stand_back()
    results.put(Counter(send(port, one) for one in attacks(count, seed)))


def refused(port: int, count: int, results: Any) -> None:
    """Be a client with a wrong key."""
    stand_back()
    chance = random.Random(count)
    results.put(Counter(send(port, wrong_key(chance)) for _ in range(count)))


def crowd(port: int, count: int, results: Any) -> None:
    """Connect as often as this, more than the gateway has seats, and ask for nothing."""
    stand_back()
    with contextlib.ExitStack() as held:
        for _ in range(count):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        results.put(Counter({"connected": count}))


def burst(port: int, count: int, results: Any) -> None:
    """Send so many requests at once, over connections that are there, TIMES times."""
    stand_back()
    request = whole(json.dumps(STREAMED).encode())
    found: Counter[str] = Counter()
    for _ in range(TIMES):
        with contextlib.ExitStack() as held:
            address = ("127.0.0.1", port)
            links = [held.enter_context(socket.create_connection(address)) for _ in range(count)]
            for link in links:
                link.sendall(request)
            found += Counter(link.recv(4096)[9:12].decode("latin-1") for link in links)
    results.put(found)


def leave(port: int, count: int, results: Any) -> None:
    """Begin so many streams, one after the other, and leave all of them at once, TIMES times."""
    stand_back()
    request = whole(json.dumps({**STREAMED, "max_tokens": SILENT}).encode())
    for _ in range(TIMES):
        with contextlib.ExitStack() as held:
            for _ in range(count):
                link = held.enter_context(socket.create_connection(("127.0.0.1", port)))
                link.sendall(request)
                link.recv(1)
    results.put(Counter({"left": TIMES * count}))


def huge(port: int, results: Any) -> None:
    """Send bodies of 100 MB that nobody announced."""
    stand_back()
    found: Counter[str] = Counter()
    for _ in range(HUGE):
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.sendall(head(b"Transfer-Encoding: chunked") + b"\r\n")
            piece = b"%x\r\n%s\r\n" % (1 << 20, b"x" * (1 << 20))
            try:
                for _ in range(100):
                    link.sendall(piece)
            except OSError:
                pass
            try:
                found[link.recv(100)[9:12].decode("latin-1") or "closed"] += 1
            except OSError:
                found["cut off"] += 1
    results.put(found)


class Bystanders:
    """STREAMS streams at any time as long as `until` is False: how long each request had to wait
    for its first event, over a connection of its own, and how late each event was."""

    def __init__(self, port: int, until: Callable[[], bool]) -> None:
        self._port, self._until = port, until
        self.first_s: list[float] = []
        self.late_s: list[float] = []

    async def run(self) -> None:
        """Stand by."""
        await asyncio.gather(*(self._stand_by(number) for number in range(STREAMS)))

    async def _stand_by(self, number: int) -> None:
        request = whole(json.dumps({**STREAMED, "max_tokens": EVENTS}).encode())
        await asyncio.sleep(number * EVENTS * streams.PACE_S / STREAMS)
        while not self._until():
            began, fresh = time.monotonic(), True
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(request)
            async for line in reader:
                if found := streams.AT.search(line):
                    at = time.monotonic()
                    self.late_s.append(at - float(found[1]))
                    self.first_s += [at - began] if fresh else []
                    fresh = False
            writer.close()


def started(work: Callable[..., object], *args: Any) -> multiprocessing.Process:
    """A process of this work."""
    process = multiprocessing.Process(target=work, args=args)
    process.start()
    return process


def run(work: Callable[[], Any]) -> None:
    """Run `work` in this process until it is ended."""
    asyncio.run(work())


def phase(name: str, port: int, pid: int, works: list[tuple[Any, ...]]) -> None:
    """Let these processes do their work, and print what the bystanders noticed."""
    results: Any = multiprocessing.Queue()
    before_s, began = cpu_s(pid), time.monotonic()
    attackers = [started(*work, results) for work in works]

    def over() -> bool:
        early = time.monotonic() < began + AT_LEAST_S
        return not early and not any(one.is_alive() for one in attackers)

    others = Bystanders(port, over)
    asyncio.run(others.run())
    total: Counter[str] = sum((results.get() for _ in attackers), Counter())
    took_s = time.monotonic() - began
    print(f"{name:<34} {len(others.first_s):>8} {in_ms(others.first_s):>18}"
          f" {in_ms(others.late_s):>18} {memory_mb(pid):>8.1f} MB"
          f" {(cpu_s(pid) - before_s) / took_s:>5.0%} {took_s:>6.0f} s", flush=True)  # fmt: skip
    if total:
        print(f"    {', '.join(f'{answer}: {n}' for answer, n in total.most_common())}")


@contextlib.contextmanager
def idle(port: int) -> Iterator[None]:
    """IDLE connections that ask for nothing."""
    with contextlib.ExitStack() as crowd:
        for _ in range(IDLE):
            crowd.enter_context(socket.create_connection(("127.0.0.1", port)))
        wait_behind(port)
        yield
    wait_behind(port)


def wait_behind(port: int) -> None:
    """Return once the gateway is done with all that came before."""
    with socket.create_connection(("127.0.0.1", port)) as last:
        last.sendall(whole(b"{}", key=b"wrong"))
        last.recv(1)


def main() -> None:
    """One phase after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hostile")
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=35)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 16_384),) * 2)
    engine_port, port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="caovan-bench-") as name:
        folder = Path(name)
        processes = []
        for work in (
            partial(streams.serve, engine_port, Engine),
            partial(daemon, folder, engine_port),
            partial(gateway, port, folder),
        ):
            processes.append(started(run, work))
            time.sleep(0.5)
        pid = processes[-1].pid
        assert pid is not None
        try:
            attacked(port, pid, options.requests, options.seed)
        finally:
            print(f"the gateway {'lives' if processes[-1].is_alive() else 'has ended'}")
            for process in processes:
                process.kill()


def attacked(port: int, pid: int, requests: int, seed: int) -> None:
    """Print the table."""
    print(
        f"{STREAMS} streams of 50 events/s; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'p50 / p99':<34} {'requests':>8} {'first event':>18} {'events late':>18}"
          f" {'RSS':>11} {'CPU':>5}")  # fmt: skip
    phase("alone", port, pid, [])
    attackers = [(refused, port, REFUSED)]
    with idle(port):
        phase(f"{IDLE} idle connections", port, pid, [])
    phase(f"{REFUSED} refused requests", port, pid, attackers)
    with idle(port):
        phase("both at once", port, pid, attackers)
    phase(f"{CROWD} connections kept open", port, pid, [(crowd, port, CROWD)])
    phase(f"{BURST} requests at once", port, pid, [(burst, port, BURST)])
    phase(f"{LEAVING} streams left at once", port, pid, [(leave, port, LEAVING)])
    phase(f"{HUGE} bodies of 100 MB", port, pid, [(huge, port)])
    each = requests // ATTACKERS // 4
    for part in range(4):
        works = [(attack, port, each, seed + part * ATTACKERS + n) for n in range(ATTACKERS)]
        phase(f"{each * ATTACKERS} fuzzed requests", port, pid, works)
    phase("alone again", port, pid, [])


if __name__ == "__main__":
    sys.exit(main())
