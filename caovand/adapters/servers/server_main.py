"""Limits and lifetime of the server processes of the page and the gateway.

Each prints READY once it listens, or else the problem, and exits with status 1. It limits its own
memory and descriptors, and an alarm kills it if its loop hangs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from caovand.adapters.servers.server_process import READY, ServerKind, has_library
from caovand.core.config.key import ConfigError
from caovand.core.problem import ProblemError

HANG_S = 60
YOUNG_OBJECTS = 1000
"""The number of new objects that starts a collection. Ten of these start one collection of all
objects created since the last such, which takes 5 ms.
"""


def parser(kind: ServerKind, description: str | None) -> argparse.ArgumentParser:
    """The arguments that the daemon passes to each server."""
    made = argparse.ArgumentParser(prog=f"python -m caovand.{kind.name}", description=description)
    made.add_argument("--listen", required=True, metavar="ADDRESS:PORT")
    made.add_argument(
        "--listener", required=True, type=int, metavar="FD", help="the daemon's listening socket"
    )
    made.add_argument(
        "--socket", required=True, type=Path, help=f"the daemon's socket `{kind.name}`"
    )
    made.add_argument(
        "--parent", type=int, help="the daemon's pid: this process exits when the daemon does"
    )
    return made


def confine(*, memory: int, descriptors: int, nice: int, oom_score: int) -> None:
    """Limit this process; the higher `oom_score`, the sooner the kernel chooses it as a victim."""
    with contextlib.suppress(OSError):
        os.nice(nice)
    for limit, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_NOFILE, descriptors)):
        _, hard = resource.getrlimit(limit)
        lower = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (lower, lower))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(oom_score))


def run(
    kind: ServerKind,
    options: argparse.Namespace,
    limit: Callable[[], None],
    prepare: Callable[[], Callable[[socket.socket], Awaitable[object]]],
) -> int:
    """Serve until the process is stopped; return the exit status.

    `prepare` loads the server and returns the function that serves on the listening socket.
    """
    if options.parent not in (None, os.getppid()):
        return 1  # the daemon died before we asked the kernel to kill us with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the daemon stops us
    limit()
    # The library logs a traceback for every input that is not HTTP.
    logging.getLogger("aiohttp").addHandler(logging.NullHandler())
    logging.getLogger("aiohttp").propagate = False
    try:
        if not has_library():
            lacks = kind.no_library
            raise ProblemError(lacks.cannot, lacks.fact, lacks.remedy)
        start = prepare()
        asyncio.run(_serve(start, socket.socket(fileno=options.listener)))
    except (ProblemError, ConfigError) as problem:
        print(problem, flush=True)
    return 1


async def _serve(
    start: Callable[[socket.socket], Awaitable[object]], listener: socket.socket
) -> None:
    server = await start(listener)
    settle_collector()
    print(READY, flush=True)
    while server is not None:
        signal.alarm(HANG_S)
        await asyncio.sleep(HANG_S / 4)


def settle_collector() -> None:
    """Exempt existing objects from garbage collection, which would take 25 ms at a time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
