"""Evidence that is lost when the engine ends: its processes, their stacks, and memory.

Everything here may block on a hung driver: call it in a thread, and limit the wait.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from caovand.adapters.files import trust
from caovand.adapters.files.safe_files import read_or_empty
from caovand.adapters.privileges.engine_user import as_engine, current
from caovand.core.facts.ownership import Process

MAX_THREADS = 64
MAX_PROCESSES = 64
MAX_SPIED = 256 << 10  # characters per process: deep recursion in hundreds of threads
_FIELDS = ("State", "VmRSS", "Threads")
_MEMORY = ("MemTotal", "MemFree", "MemAvailable", "SwapTotal", "SwapFree", "Shmem")

Clock = Callable[[], float]


def process_tree(members: Iterable[Process]) -> list[dict[str, Any]]:
    """Each process that still exists, with its parent, state and memory."""
    rows = []
    for process in list(members)[:MAX_PROCESSES]:
        fields = _colons(read_or_empty(Path(f"/proc/{process.pid}/status")), _FIELDS)
        row = {"pid": process.pid, "parent": process.parent, "name": process.name}
        rows.append({**row, **(fields or {"State": "gone"})})
    return rows


def host_memory() -> dict[str, str]:
    """The relevant lines of /proc/meminfo, and the load."""
    fields = _colons(read_or_empty(Path("/proc/meminfo")), _MEMORY)
    return {**fields, "loadavg": read_or_empty(Path("/proc/loadavg")).strip()}


def stacks(
    members: Sequence[Process], engine_python: str, limit_s: float, clock: Clock = time.monotonic
) -> str:
    """Read each process's stacks, with py-spy if installed and permitted, else from the kernel."""
    deadline = clock() + limit_s
    spy = find_py_spy(engine_python)
    parts = []
    for process in members[:MAX_PROCESSES]:
        parts.append(f"=== {process.name} (pid {process.pid})")
        left_s = deadline - clock()
        if left_s <= 0:
            parts.append("(no time left)")
            continue
        try:
            parts += as_engine(stacks_of, spy or "", process.pid, left_s, limit_s=left_s)
        except OSError as problem:
            parts.append(f"(unknown: {problem})")
    return "\n".join(parts) + "\n"


def stacks_of(spy: str, pid: int, limit_s: float) -> list[str]:
    """The stacks of a process of our user, read with the program `spy` if there is one."""
    seen, why_not = _py_spy_stacks(spy, pid, limit_s) if spy else ("", "")
    return [*([f"(py-spy: {why_not})"] if why_not else []), seen or _kernel_stacks(pid)]


def find_py_spy(engine_python: str) -> str | None:
    """py-spy from the engine's environment, from ours, or on PATH.

    Without an engine's user it would run as our own, unconfined: then only a copy that neither an
    engine nor an installer of its packages can have put there.
    """
    own_user = current() is not None
    pythons = (engine_python, sys.executable) if own_user else (sys.executable,)
    places = (Path(python).parent / "py-spy" for python in pythons)
    executables = (str(path) for path in places if os.access(path, os.X_OK))
    on_path = trust.program if own_user else trust.find_root_owned_program
    return next(executables, None) or on_path("py-spy", os.environ)


def _py_spy_stacks(spy: str, pid: int, limit_s: float) -> tuple[str, str]:
    """The stacks of a process, or why py-spy has none: not Python, or ptrace forbidden."""
    # Nonblocking: a process paused for inspection would stay paused if we were killed meanwhile.
    argv = [spy, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=limit_s, cwd="/", check=False)
    except subprocess.TimeoutExpired:
        return "", "no answer in time"
    except OSError as problem:
        return "", str(problem)
    if done.returncode:
        error = done.stderr.decode("utf-8", "replace").strip() or f"status {done.returncode}"
        return "", error.splitlines()[0][:300]
    # Its first line is the command line, which may contain a key.
    rows = done.stdout.decode("utf-8", "replace").splitlines()
    return "\n".join(row for row in rows if not row.startswith("Process "))[:MAX_SPIED], ""


def _kernel_stacks(pid: int) -> str:
    folder = Path(f"/proc/{pid}/task")
    try:
        threads = sorted(folder.iterdir(), key=lambda path: int(path.name))[:MAX_THREADS]
    except OSError:
        return "(gone)"
    rows = []
    for thread in threads:
        fields = _colons(read_or_empty(thread / "status"), ("Name", "State"))
        waits = read_or_empty(thread / "wchan").strip()
        rows.append(f"thread {thread.name} {' '.join(fields.values())} waits in {waits or '?'}")
        rows += [f"    {line}" for line in read_or_empty(thread / "stack").splitlines()]
    return "\n".join(rows)


def _colons(text: str, names: Sequence[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs if name in names}
