"""The engine's processes, read from /proc: who belongs to it, and ending exactly those.

vLLM renames its processes, which empties /proc/PID/environ, so a marker there does not survive.
A process is the engine's if it is in the engine's session or cgroup, descends from such a one,
or was adopted by us (we are the subreaper) from a session that is not our own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
# What systemd, a terminal and a virtual environment give to the daemon alone.
PRIVATE_VARIABLES = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "INVOCATION_ID", "JOURNAL_STREAM"}
    | {"SYSTEMD_EXEC_PID"}
    | {"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
)


@dataclass(frozen=True)
class Process:
    """One process; (pid, start) names it for ever, start is in clock ticks since boot."""

    pid: int
    start: int
    parent: int
    session: int
    uid: int
    name: str
    zombie: bool = False


def become_subreaper() -> None:
    """Make orphans of our children our own children; OSError where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


def inherited(environ: Mapping[str, str], python: str) -> dict[str, str]:
    """The part of our environment that is the engine's too, the tools of its own environment first.

    FlashInfer runs `ninja` from PATH: it is installed beside the engine's Python, and seldom else.
    """
    kept = {name: value for name, value in environ.items() if name not in PRIVATE_VARIABLES}
    places = [os.path.dirname(python), environ.get("PATH") or os.defpath]
    return {**kept, "PATH": os.pathsep.join(filter(None, places))}


def boot_id() -> str:
    """What tells this boot from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def read(pid: int) -> Process | None:
    """The process `pid`, None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    # The name stands in parentheses and may hold anything, parentheses too.
    name = text[text.index("(") + 1 : text.rindex(")")]
    rest = text[text.rindex(")") + 2 :].split()
    # A first thread that ended looks like a zombie while others of its process still run, or
    # hang in a driver: only with none left is the process dead.
    dead = rest[0] in "ZX" and int(rest[17]) <= 1
    return Process(pid, int(rest[19]), int(rest[1]), int(rest[3]), uid, name, dead)


def every() -> list[Process]:
    """All processes there are."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in map(read, pids) if process is not None]


def is_resource_tracker(process: Process) -> bool:
    """Whether it is Python's, which removes at its end what its users shared."""
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"multiprocessing.resource_tracker" in words


def held_mib(pids: Iterable[int]) -> int:
    """Memory that these processes would give back by ending, in MiB."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                size = file.read().split()
            pages += int(size[1]) - int(size[2])  # resident, without what is of files or shared
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def in_cgroup(folder: Path | None) -> set[int]:
    """The pids in a cgroup and the groups below it."""
    pids: set[int] = set()
    if folder is None:
        return pids
    for file in (folder / "cgroup.procs", *folder.glob("**/cgroup.procs")):
        with contextlib.suppress(OSError):
            pids.update(int(line) for line in file.read_text().split())
    return pids


def members(session: int, cgroup: Path | None, since: int) -> list[Process]:
    """The engine's living processes, zombies reaped where they are ours.

    `session` is the pid of the engine's first process, `since` its start: nothing older is its.
    """
    table = {process.pid: process for process in every()}
    us = os.getpid()
    grouped = in_cgroup(cgroup)
    ours = {
        process.pid
        for process in table.values()
        if process.start >= since
        and process.pid != us
        and (
            process.session == session
            or process.pid in grouped
            or (process.parent == us and process.session != os.getsid(0))
        )
    }
    ours |= descendants(table.values(), ours) - {us}
    found = [table[pid] for pid in sorted(ours)]
    for process in found:
        if process.zombie and process.parent == us and process.pid != session:
            with contextlib.suppress(OSError):
                os.waitpid(process.pid, os.WNOHANG)
    return [process for process in found if not process.zombie]


def descendants(table: Iterable[Process], roots: Iterable[int]) -> set[int]:
    """The pids below `roots`, the roots left out."""
    children: dict[int, list[int]] = {}
    for process in table:
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


def send(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process, never one that has got its pid since.

    One that is gone is fine; one that may not be signalled lives on, and its caller sees that.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        now = read(process.pid)
        if now is not None and now.start == process.start:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def engine_cgroup(environ: dict[str, str] | os._Environ[str]) -> Path | None:
    """The sub-group `engine` of our unit's delegated cgroup, made; None where there is none.

    Only as the main process of a unit: elsewhere, such as in a terminal that is a unit of its own,
    the group is everybody's there, and a neighbour's engine would count as ours.
    """
    us = str(os.getpid())
    # Before version 248 systemd did not say who the main process is.
    if "INVOCATION_ID" not in environ or environ.get("SYSTEMD_EXEC_PID", us) != us:
        return None
    mounts = {
        "0::": ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
        "name=systemd:": ("/sys/fs/cgroup/systemd",),
    }
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        for mark, roots in mounts.items():
            _, found, path = line.partition(mark)
            if not found or not path.endswith(".service"):
                continue
            for root in roots:
                group = Path(root + path) / "engine"
                with contextlib.suppress(OSError):
                    group.mkdir(exist_ok=True)
                    if os.access(group / "cgroup.procs", os.W_OK):
                        return group
    return None
