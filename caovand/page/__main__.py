"""`python -m caovand.page`: serves the page until it is ended; the daemon starts and watches it.

Prints READY once it listens, else the problem and exits with status 1. It limits its own memory
and descriptors and gives way to everything else, and its own alarm ends it if its loop hangs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from caovand.adapters import listening, secret_file
from caovand.adapters.page_process import NO_LIBRARY, READY, has_library
from caovand.core.config import ConfigError
from caovand.core.problem import ProblemError

MEMORY_BYTES = 256 << 20
DESCRIPTORS = 512
NICE = 10
FIRST_VICTIM = "500"  # for the kernel's OOM killer: the engine and the daemon matter more
HANG_S = 60
BACKLOG = 64


def main(argv: Sequence[str] | None = None) -> int:
    """Serve; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m caovand.page", description=__doc__)
    parser.add_argument("--listen", required=True, metavar="ADDRESS:PORT")
    parser.add_argument("--socket", required=True, type=Path, help="the daemon's socket `page`")
    parser.add_argument("--token-file", default="", metavar="FILE")
    parser.add_argument("--parent", type=int, help="the daemon's pid: without it this ends at once")
    args = parser.parse_args(argv)
    if args.parent not in (None, os.getppid()):
        return 1  # it died before the kernel was asked to end us with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the daemon ends us
    _confine()
    try:
        _serve(args.listen, args.socket, args.token_file)
    except (ProblemError, ConfigError) as problem:
        print(problem, flush=True)
    return 1


def _serve(listen: str, daemon: Path, token_file: str) -> None:
    if not has_library():
        raise ProblemError(NO_LIBRARY.cannot, NO_LIBRARY.fact, NO_LIBRARY.remedy)
    token = secret_file.read(token_file, secret_file.TOKEN_FILE) if token_file else ""
    try:
        listener = listening.on(listen, BACKLOG)
    except OSError as problem:
        # Python's own words repeat the address; a resolver's numbers are negative.
        number = problem.errno or 0
        why = os.strerror(number) if number > 0 else problem.strerror or str(problem)
        fact = f"{listen}: {why}"
        raise ProblemError("serve the page", fact, "set another [page] listen") from None
    from caovand.page import server  # noqa: PLC0415  (once the library is known to be there)

    async def run() -> None:
        await server.start(listener, listen, daemon, token)
        print(READY, flush=True)
        while True:
            signal.alarm(HANG_S)
            await asyncio.sleep(HANG_S / 4)

    asyncio.run(run())


def _confine() -> None:
    with contextlib.suppress(OSError):
        os.nice(NICE)
    for limit, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_NOFILE, DESCRIPTORS)):
        _, hard = resource.getrlimit(limit)
        lower = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (lower, lower))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_VICTIM)


if __name__ == "__main__":
    sys.exit(main())
