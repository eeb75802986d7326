"""Parse untrusted text in a separate process, bounded in time, memory and size of answer.

Whatever the text does to the parser, the daemon's loop continues, the parser ends, and no file but
programs is opened.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from caovand import HOME

MEMORY_BYTES = 1 << 30  # of address space
ANSWER_BYTES = 64 << 20
PROGRAM = """
import ctypes, resource, signal, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: must not outlive us
signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt at the terminal is for the daemon
home, memory, seconds, *modules = sys.argv[1:]
for limit, most in (resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (
        resource.RLIMIT_CORE, 0):
    hard = resource.getrlimit(limit)[1]
    most = int(most) if hard == resource.RLIM_INFINITY else min(int(most), hard)
    # XCPU comes a second before KILL, which would not tell why.
    resource.setrlimit(limit, (max(most - (limit == resource.RLIMIT_CPU), 0), most))
sys.path.append(home)
import importlib
parser, *_ = map(importlib.import_module, modules)
from caovand.adapters.confinement import read_only
read_only.confine()
parser.main()
"""


def ask(
    module: str,
    request: Mapping[str, Any],
    lines: Iterable[str],
    limit_s: float,
    cpu_s: float | None = None,
    needs: Sequence[str] = (),
) -> tuple[list[Any], str]:
    """The answers of `module.main()` to a request about lines, and why some are missing; blocking.

    The process imports `needs`, too, before its confinement: these modules may lie anywhere. It
    reads the request and each line as one line of JSON from standard input, and prints one answer a
    line. Answers count if they arrive within `limit_s` seconds and `cpu_s` of CPU time, which a
    busy machine grants later.
    """
    deadline = time.monotonic() + limit_s
    try:
        cpu_s = limit_s if cpu_s is None else cpu_s
        process = _start((module, *needs), request, lines, cpu_s)
    except OSError as problem:
        return [], f"cannot start a process: {problem.strerror}"
    assert process.stdout is not None
    try:
        data, reason = _read(process.stdout.fileno(), deadline)
        if not reason:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.1))
            reason = f"exit status {process.returncode}" if process.returncode else ""
            reason = "the parser took too long" if process.returncode == -signal.SIGXCPU else reason
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    answers = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError):  # the last one may be incomplete
            answers.append(json.loads(line))
    return answers, reason


def _start(
    modules: Sequence[str], request: Mapping[str, Any], lines: Iterable[str], cpu_s: float
) -> subprocess.Popen[bytes]:
    # Neither the current folder nor the environment decides which modules are imported.
    words = [sys.executable, "-I", "-S", "-c", PROGRAM, HOME]
    words += [str(MEMORY_BYTES), str(int(cpu_s) + 1), *modules]
    needed = {k: v for k, v in os.environ.items() if k == "LD_LIBRARY_PATH"}
    # An unnamed file in memory instead of a pipe: neither side waits for the other to read.
    with open(os.memfd_create("request"), "w+b") as file:
        for line in (request, *lines):
            file.write(json.dumps(line, default=_to_plain).encode() + b"\n")
        file.seek(0)
        return subprocess.Popen(
            words, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=needed,
            cwd="/",
        )  # fmt: skip


def _to_plain(value: Any) -> Any:
    return list(value) if isinstance(value, (set, frozenset)) else str(value)


def _read(descriptor: int, deadline: float) -> tuple[bytes, str]:
    """The output up to its end, the deadline or the size limit; and why it is incomplete."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    pieces: list[bytes] = []
    size = 0
    while size <= ANSWER_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            return b"".join(pieces), "the parser took too long"
        piece = os.read(descriptor, 1 << 20)
        if not piece:
            return b"".join(pieces), ""
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces), "the answer was too long"
