"""Call functions of caovan as the engine's user: a program that the daemon starts as that user.

    python3 -I -S calls.py HOME < SOCKET

Each message has two descriptors: the function's name, arguments and seconds as JSON, and the file
for the answer. Each call has its own process, because reading about a hung process can hang.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_DUMPABLE = 1, 15, 4
PACKAGE_PREFIX = "caovand."
CALLABLE_MODULES = (
    "privileges.model_access",
    "engine.evidence",
    "files.stale_files",
    "network.ports",
    "system.processes",
)
"""Adapters whose functions are called: imported once, not by each process."""


def main() -> None:
    """Serve the daemon until it is gone."""
    sys.path.insert(0, sys.argv[1])
    for name in CALLABLE_MODULES:
        importlib.import_module(f"{PACKAGE_PREFIX}adapters.{name}")
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NAME, b"caovan-calls", 0, 0, 0)
    # No engine may inspect or change this process, though it has the same user.
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    link, us = socket.socket(fileno=0), os.getpid()
    while True:
        data, descriptors, _, _ = socket.recv_fds(link, 16, 2)
        if not data:
            return
        if len(descriptors) == 2 and os.fork() == 0:
            # A call that hangs, or that an engine has stopped, must not outlive us.
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != us:
                os._exit(0)
            _answer(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _answer(request: int, answers: int) -> None:
    """Run one call in its own process; never return."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with open(request, "rb") as file:
            name, args, limit_s = json.loads(file.read())
        signal.alarm(int(limit_s) + 1)
        with open(answers, "wb") as file:
            file.write(json.dumps(call(name, args)).encode())
    finally:
        os._exit(0)


def call(name: str, args: list[Any]) -> dict[str, Any]:
    """The result of a function, or why there is none."""
    try:
        module, _, function = name.partition(":")
        if not module.startswith(PACKAGE_PREFIX):
            raise ValueError(f"{module} does not belong to caovan")
        return {"result": getattr(importlib.import_module(module), function)(*args)}
    except OSError as problem:
        return {"errno": problem.errno} if problem.errno else {"error": str(problem)}
    except Exception as problem:
        return {"error": f"{type(problem).__name__}: {problem}"}


if __name__ == "__main__":
    main()
