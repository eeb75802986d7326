"""Work on texts that others wrote, in a process of its own: bounded in time, memory and answer.

Whatever such a text does to the work, the daemon's loop goes on, and the work ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MEMORY_BYTES = 1 << 30  # of address space
ANSWER_BYTES = 64 << 20
PROGRAM = """
import ctypes, resource, signal, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: it must not outlive us
signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal is for the daemon
home, module, memory, seconds = sys.argv[1:]
for what, most in (resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (
        resource.RLIMIT_CORE, 0):
    hard = resource.getrlimit(what)[1]
    most = int(most) if hard == resource.RLIM_INFINITY else min(int(most), hard)
    resource.setrlimit(what, (most, most))
sys.path.append(home)
import importlib
importlib.import_module(module).main()
"""
HOME = str(Path(__file__).parents[2])


def ask(
    module: str, request: Mapping[str, Any], lines: Iterable[str], limit_s: float
) -> tuple[list[Any], str]:
    """What `module.main()` answers to a request about lines, and why it is not all; blocking.

    Its standard input has the request and each line as a line of JSON, and it prints an answer a
    line; those that came before `limit_s` seconds were over count.
    """
    deadline = time.monotonic() + limit_s
    try:
        process = _start(module, request, lines, limit_s)
    except OSError as problem:
        return [], f"no process could be started: {problem.strerror}"
    assert process.stdout is not None
    try:
        data, why = _read(process.stdout.fileno(), deadline)
        if not why:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.1))
            why = f"exit status {process.returncode}" if process.returncode else ""
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    answers = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError):  # the last one, where it was cut off
            answers.append(json.loads(line))
    return answers, why


def _start(
    module: str, request: Mapping[str, Any], lines: Iterable[str], limit_s: float
) -> subprocess.Popen[bytes]:
    # Neither the folder we are in nor the environment decides what is imported.
    words = [sys.executable, "-I", "-S", "-c", PROGRAM, HOME, module]
    words += [str(MEMORY_BYTES), str(int(limit_s) + 1)]
    needed = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    # A file, so that nobody waits for the other to read; it is in memory and has no name.
    with open(os.memfd_create("request"), "w+b") as file:
        for one in (request, *lines):
            file.write(json.dumps(one, default=_plain).encode() + b"\n")
        file.seek(0)
        return subprocess.Popen(
            words, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=needed,
            cwd="/",
        )  # fmt: skip


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (set, frozenset)) else str(value)


def _read(descriptor: int, deadline: float) -> tuple[bytes, str]:
    """What comes up to the end, the deadline, or too much; and why it is not all."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    pieces: list[bytes] = []
    size = 0
    while size <= ANSWER_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            return b"".join(pieces), "it took too long"
        piece = os.read(descriptor, 1 << 20)
        if not piece:
            return b"".join(pieces), ""
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces), "the answer was too long"
