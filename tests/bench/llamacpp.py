"""What the gateway adds to the first token of a real llama-server, which it connects to anew.

    python -m tests.bench.llamacpp [COMMAND]

COMMAND is a llama-server; without it, the one that `make llamacpp` has built. Its model is so tiny
that the difference is the gateway's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from caovand.engines.llamacpp.tiny_model import tiny_model
from tests.bench import gateway, streams
from tests.bench.measures import in_ms
from tests.daemon_process import ROOT
from tests.gateway.world import STREAMED
from tests.patience import until
from tests.ports import free_port

SERVER = ROOT / ".engines/current-llamacpp/bin/llama-server"
CLIENTS, TOKENS, PAUSE_S = 8, 20, 0.4
ROUNDS, ROUND_S = 6, 8.0
CONNECTIONS = {name: gateway.CONNECTIONS[name] for name in (gateway.SPARES, gateway.EACH)}


async def first_s(port: int, words: str) -> float:
    """Seconds from a request, over a new connection, until its first event."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    message = {"role": "user", "content": words}
    body = {**STREAMED, "messages": [message], "max_tokens": TOKENS}
    began = time.monotonic()
    writer.write(streams.request(json.dumps(body).encode()))
    await reader.readuntil(b"data: ")
    took_s = time.monotonic() - began
    await reader.readuntil(b"data: [DONE]")
    writer.close()
    return took_s


async def steady(port: int, seed: int) -> list[float]:
    """CLIENTS clients for ROUND_S, each of which pauses between its requests."""
    end, found = time.monotonic() + ROUND_S, []

    async def come(chance: random.Random) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(chance.random() * PAUSE_S)
            found.append(await first_s(port, f"hello {chance.random()}"))

    await asyncio.gather(*(come(random.Random(f"{seed} {n}")) for n in range(CLIENTS)))
    return found


def serves(port: int) -> bool:
    """Whether a model is loaded."""
    try:
        asyncio.run(first_s(port, "hello"))
    except (OSError, asyncio.IncompleteReadError):
        return False
    return True


def main() -> None:
    """Measure all ways in turn and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.llamacpp")
    parser.add_argument("command", nargs="?", type=Path, default=SERVER)
    command, port = parser.parse_args().command, free_port()
    with tempfile.TemporaryDirectory(prefix="caovan-bench-") as name, contextlib.ExitStack() as end:
        folder = Path(name)
        (folder / "tiny.gguf").write_bytes(tiny_model())
        words = [command, "-m", folder / "tiny.gguf", "--port", str(port), "-t", "1"]
        with open(folder / "log", "wb") as log:
            engine = subprocess.Popen(
                [*words, "--parallel", str(CLIENTS), "-c", "4096"], stdout=log, stderr=log
            )
        end.callback(engine.kill)
        until(lambda: serves(port), "an answer of llama-server")
        ways = {"directly": port}
        for title, said in CONNECTIONS.items():
            ways[title] = free_port()
            for work in (
                partial(gateway.daemon, folder / title, port, said),
                partial(gateway.gateway, ways[title], folder / title),
            ):
                process = multiprocessing.Process(target=gateway.run, args=(work,))
                process.start()
                end.callback(process.kill)
            until(partial(serves, ways[title]), "an answer through the gateway")
        seen: dict[str, list[float]] = {title: [] for title in ways}
        for number in range(ROUNDS):
            for title, own in ways.items():
                seen[title] += asyncio.run(steady(own, number))
    print(f"{CLIENTS} clients; load average: {os.getloadavg()[0]:.1f}")
    for title, took_s in seen.items():
        print(f"{title:<24} {len(took_s):>6} requests, first event {in_ms(took_s):>16}")


if __name__ == "__main__":
    main()
