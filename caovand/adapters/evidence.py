"""What only the living tell: the engine's processes, where each of them waits, and the memory.

Everything here may block on a hung driver: it is for threads that nobody waits for without limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from caovand.adapters import trust
from caovand.adapters.processes import Process

MOST_THREADS = 64
MOST_PROCESSES = 64
MOST_SPIED = 256 << 10  # characters of one process: deep recursion in hundreds of threads
_FIELDS = ("State", "VmRSS", "Threads")
_MEMORY = ("MemTotal", "MemFree", "MemAvailable", "SwapTotal", "SwapFree", "Shmem")

Clock = Callable[[], float]


def process_tree(members: Iterable[Process]) -> list[dict[str, Any]]:
    """Each process with its parent, state and memory, as far as it is still there."""
    rows = []
    for process in list(members)[:MOST_PROCESSES]:
        told = _colons(_text(Path(f"/proc/{process.pid}/status")), _FIELDS)
        row = {"pid": process.pid, "parent": process.parent, "name": process.name}
        rows.append({**row, **(told or {"State": "gone"})})
    return rows


def host_memory() -> dict[str, str]:
    """The lines of /proc/meminfo that matter, and the load."""
    told = _colons(_text(Path("/proc/meminfo")), _MEMORY)
    return {**told, "loadavg": _text(Path("/proc/loadavg")).strip()}


def stacks(
    members: Sequence[Process], engine_python: str, limit_s: float, clock: Clock = time.monotonic
) -> str:
    """Where each process is: py-spy's view where it is there and may look, else the kernel's."""
    deadline = clock() + limit_s
    spy = find_py_spy(engine_python)
    parts = []
    for process in members[:MOST_PROCESSES]:
        parts.append(f"=== {process.name} (pid {process.pid})")
        left_s = deadline - clock()
        if left_s <= 0:
            parts.append("(no time left)")
            continue
        seen, why_not = _py_spy(spy, process.pid, left_s) if spy else ("", "")
        parts += [f"(py-spy: {why_not})"] if why_not else []
        parts.append(seen or _kernel_view(process.pid))
    return "\n".join(parts) + "\n"


def find_py_spy(engine_python: str) -> str | None:
    """py-spy beside the engine's Python, beside ours, or on PATH."""
    beside = (Path(python).parent / "py-spy" for python in (engine_python, sys.executable))
    found = (str(path) for path in beside if os.access(path, os.X_OK))
    return next(found, None) or trust.program("py-spy", os.environ)


def _py_spy(spy: str, pid: int, limit_s: float) -> tuple[str, str]:
    """The stacks of a process, or why there are none: not Python, or ptrace forbidden."""
    # A process that is paused to be looked at might stay so if we are killed meanwhile.
    argv = [spy, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=limit_s, cwd="/", check=False)
    except subprocess.TimeoutExpired:
        return "", "no answer in time"
    except OSError as problem:
        return "", str(problem)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip() or f"status {done.returncode}"
        return "", said.splitlines()[0][:300]
    # Its first line is the command line, which may hold a key.
    rows = done.stdout.decode("utf-8", "replace").splitlines()
    return "\n".join(row for row in rows if not row.startswith("Process "))[:MOST_SPIED], ""


def _kernel_view(pid: int) -> str:
    folder = Path(f"/proc/{pid}/task")
    try:
        threads = sorted(folder.iterdir(), key=lambda path: int(path.name))[:MOST_THREADS]
    except OSError:
        return "(gone)"
    rows = []
    for thread in threads:
        told = _colons(_text(thread / "status"), ("Name", "State"))
        waits = _text(thread / "wchan").strip()
        rows.append(f"thread {thread.name} {' '.join(told.values())} waits in {waits or '?'}")
        rows += [f"    {line}" for line in _text(thread / "stack").splitlines()]
    return "\n".join(rows)


def _colons(text: str, names: Sequence[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs if name in names}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
