"""The worst HTTP clients imaginable, in a process of their own with the lowest priority.

Their own cost does not count, as real clients usually run elsewhere.

    python -m tests.readers KINDS EACH PORT...    runs until it is killed
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from tests.daemon_process import ROOT

REQUEST = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATHS = (b"/api/live", b"/metrics", b"/", b"/api/history?span=30d")
READY = "ready"


@contextlib.contextmanager
def readers(ports: Sequence[int], each: int, kinds: str = "rude") -> Iterator[int]:
    """Run `each` clients of every rude kind, or as many polite ones, against these local ports.

    Yields the pid of their process.
    """
    words = [sys.executable, "-m", "tests.readers", kinds, str(each), *map(str, ports)]
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == READY
        yield process.pid
    finally:
        process.kill()
        process.wait()


async def _link(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
    writer.write(data)
    return reader, writer


async def never_reads(port: int, number: int) -> None:
    _, writer = await _link(port, REQUEST % PATHS[number % len(PATHS)])
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(60)


async def half(port: int, number: int) -> None:
    await _link(port, b"GET /api/live HTTP/1.1\r\nHost: loc"[: number % 40])
    await asyncio.sleep(60)


async def a_byte_a_second(port: int, number: int) -> None:
    _, writer = await _link(port, b"")
    for byte in REQUEST % PATHS[number % len(PATHS)]:
        if writer.transport.is_closing():
            return
        writer.write(bytes([byte]))
        await asyncio.sleep(1)


async def floods(port: int, number: int) -> None:
    """Connects and disconnects; some send many requests on one connection."""
    for _ in range(100):
        _, writer = await _link(port, REQUEST % PATHS[number % len(PATHS)] * (1 + number % 3 * 500))
        await asyncio.sleep(0.05)
        writer.transport.abort()


async def polite(port: int, number: int) -> None:
    reader, _ = await _link(port, REQUEST % b"/api/live")
    while await reader.read(1 << 10):
        pass


KINDS = {"rude": (never_reads, half, a_byte_a_second, floods), "polite": (polite,)}


async def main(kinds: str, each: int, ports: Sequence[int]) -> None:
    async def again_and_again(kind: object, port: int, number: int) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await kind(port, number)  # type: ignore[operator]
            await asyncio.sleep(0.1)

    asking = [
        asyncio.ensure_future(again_and_again(kind, port, number))
        for kind in KINDS[kinds]
        for port in ports
        for number in range(each)
    ]
    await asyncio.sleep(2)
    print(READY, flush=True)
    await asyncio.gather(*asking)


if __name__ == "__main__":
    os.nice(19)
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), [int(word) for word in sys.argv[3:]]))
