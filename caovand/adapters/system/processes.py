"""Processes and cgroups, read from /proc and /sys, and signals to exactly one process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from caovand.adapters.privileges import engine_user
from caovand.core import limits
from caovand.core.facts.ownership import Process as Process  # noqa: PLC0414  (for others, too)
from caovand.core.printable import one_line

PR_SET_CHILD_SUBREAPER = 36
MAX_PARENT_POLLS = 5  # to find the parents of a process, which may exit meanwhile
# Variables that systemd, a terminal and a virtual environment set for the daemon alone.
PRIVATE_VARIABLES = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "INVOCATION_ID", "JOURNAL_STREAM"}
    | {"SYSTEMD_EXEC_PID"}
    | {"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
)


def become_subreaper() -> None:
    """Make orphans of our children our own children; raises OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


def inherited_environ(environ: Mapping[str, str], python: str) -> dict[str, str]:
    """The part of our environment that an engine gets, with its own environment's tools first.

    FlashInfer runs `ninja` from PATH: it is next to the engine's Python, seldom elsewhere.
    vLLM considers it unusable without `nvcc` on PATH: an engine's own is in its `cuda`.
    """
    kept = {name: value for name, value in environ.items() if name not in PRIVATE_VARIABLES}
    own = os.path.dirname(python)
    toolkit = os.path.join(os.path.dirname(own), "cuda", "bin")
    compiler = toolkit if own and os.path.isdir(toolkit) else ""
    places = [own, compiler, environ.get("PATH") or os.defpath]
    return {**kept, "PATH": os.pathsep.join(filter(None, places))}


def boot_id() -> str:
    """The identifier of the current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(errors="replace").strip()


def read(pid: int) -> Process | None:
    """Read the process `pid`; None if there is none."""
    found, uid = stat_of(pid), None
    with limits.suppress_absent():
        uid = os.stat(f"/proc/{pid}").st_uid
    if found is None or uid is None:
        return None
    name, fields = found
    # A process whose first thread has ended looks like a zombie while its other threads still run,
    # or hang in a driver: it is dead only when none is left.
    dead = fields[0] in "ZX" and int(fields[17]) <= 1
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[3]), uid, name, dead)


def stat_of(pid: int) -> tuple[str, list[str]] | None:
    """Read a process's name and the fields of /proc/PID/stat after it; None if there is none."""
    text = ""
    with limits.suppress_absent(), open(f"/proc/{pid}/stat", "rb") as file:
        text = file.read().decode("utf-8", "replace")
    if not text:
        return None
    # The name is in parentheses and may contain anything, even parentheses.
    begin, end = text.index("("), text.rindex(")")
    return one_line(text[begin + 1 : end]), text[end + 2 :].split()


def name_of(pid: int) -> str | None:
    """Read a process's name, as one line; None if it is gone or hidden.

    Names are any bytes: the kernel cuts them at the 15th, even inside a character.
    """
    try:
        text = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return one_line(text.removesuffix("\n"))


def command_of(pid: int) -> str:
    """Read a command line, as one line; empty if the process is gone, hidden or the kernel's."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return one_line(words.replace(b"\0", b" ").decode("utf-8", "replace").strip())


def has_terminal() -> bool:
    """Whether our session has a terminal: it has none once its first process has exited."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def all_processes() -> list[Process]:
    """All processes."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in map(read, pids) if process is not None]


def is_resource_tracker(process: Process) -> bool:
    """Whether this is Python's resource tracker, which removes shared objects when it exits."""
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"multiprocessing.resource_tracker" in words


def memory_mib(pids: Iterable[int]) -> int:
    """Memory in MiB that would be freed if these processes exited."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/statm", encoding="ascii", errors="replace") as file:
                size = file.read().split()
            pages += int(size[1]) - int(size[2])  # resident, without file-backed and shared pages
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def in_cgroup(folder: Path | None) -> set[int]:
    """Read the pids in a cgroup and the groups below it."""
    pids: set[int] = set()
    if folder is None:
        return pids
    for file in (folder / "cgroup.procs", *folder.glob("**/cgroup.procs")):
        with limits.suppress_absent():
            pids.update(int(line) for line in file.read_text(errors="replace").split())
    return pids


def environ_of(process: Process) -> frozenset[str]:
    """The environment a process started with; empty if it rewrote its title or has exited."""
    return frozenset(_as_its_user(read_environ, process))


def read_environ(pid: int) -> list[str]:
    """The variables of a process that our user can read, as NAME=VALUE."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def outputs(process: Process) -> set[str]:
    """The files to which a process writes its output and its errors, such as `pipe:[17]`."""
    return set(_as_its_user(read_outputs, process))


def read_outputs(pid: int) -> list[str]:
    """The files behind descriptors 1 and 2 of a process that our user can read."""
    files = []
    for number in (1, 2):
        with contextlib.suppress(OSError):
            files.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return files


def _as_its_user(read_of: Callable[[int], list[str]], process: Process) -> list[str]:
    user = engine_user.current()
    if user is None or process.uid != user.uid:
        return read_of(process.pid)
    with contextlib.suppress(OSError):
        return engine_user.as_engine(read_of, process.pid)
    return []


def reap(found: Iterable[Process], session: int) -> list[Process]:
    """Reap our dead children among these processes, except the session's first.

    Returns those.
    """
    us = os.getpid()
    dead = [p for p in found if p.zombie and p.parent == us and p.pid != session]
    for process in dead:
        with contextlib.suppress(OSError):
            os.waitpid(process.pid, os.WNOHANG)
    return dead


def is_populated(group: Path | None) -> bool:
    """Whether the kernel counts processes in or below a cgroup; False if it does not say."""
    if group is not None:
        with limits.suppress_absent():
            return b"populated 1" in (group / "cgroup.events").read_bytes().splitlines()
    return False


def kill_group(group: Path | None) -> bool:
    """Send SIGKILL to all processes in a cgroup at once, even forking ones; False if the kernel
    cannot.
    """
    if group is None:
        return False
    try:
        (group / "cgroup.kill").write_text("1")
    except OSError:  # before Linux 5.14, or version 1
        return False
    return True


def former_cgroup(group: Path | None) -> Path | None:
    """The sibling group that versions without slots created for their engine, if any."""
    former = group.with_name("engine") if group else None
    return former if former and former.is_dir() else None


def descendants(table: Iterable[Process], roots: Iterable[int]) -> set[int]:
    """The pids below `roots`, without the roots."""
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


def descends(pid: int) -> bool:
    """Whether we, or our descendants, may have started this process.

    Orphans of our children become our children, whatever they do. A process that is gone, or whose
    parents keep ending, counts as ours. Where /proc hides the processes of others (`hidepid`), one
    that stays hidden, or has such a parent, is another user's, which none of our descendants can
    become.
    """
    us = os.getpid()
    for _ in range(MAX_PARENT_POLLS):
        at: int = pid
        below: int | None = None
        while at > 1 and at != us and (process := read(at)) is not None:
            at, below = process.parent, at
        if below is None and at > 1 and at != us and _is_anothers(pid):
            return False
        if below is not None and at not in (0, 1, us):
            again = read(below)
            if again is not None and again.parent == at and read(at) is None:
                return False
        if at == us:
            return pid != us
        if at <= 1:
            return False
    return True


def _is_anothers(pid: int) -> bool:
    """Whether a process exists that we cannot signal."""
    try:
        os.kill(pid, 0)
    except OSError as problem:
        return isinstance(problem, PermissionError)
    return False


def send(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process, never another that has got its pid since.

    Returns False if we cannot signal it; a process that is gone is fine.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as problem:
        if limits.limit_reached(problem):
            raise
        return True
    try:
        now = read(process.pid)
        if now is not None and now.start == process.start:
            user = engine_user.current()
            if user is not None and now.uid == user.uid:
                user.signal(descriptor, number)
            else:
                signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        pass
    except (PermissionError, engine_user.SpawnerEnded):
        return False
    finally:
        os.close(descriptor)
    return True


def engine_cgroup(environ: Mapping[str, str], slot: str) -> Path | None:
    """Create the sub-group `engine-SLOT` of our unit's delegated cgroup; None if there is none.

    Only as the main process of a unit: elsewhere, such as in a terminal that is itself a unit, the
    group is shared, and another user's engine would count as ours.
    """
    us = str(os.getpid())
    # Before version 248 systemd did not say who the main process is.
    if "INVOCATION_ID" not in environ or environ.get("SYSTEMD_EXEC_PID", us) != us:
        return None
    mounts = {
        "0::": ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
        "name=systemd:": ("/sys/fs/cgroup/systemd",),
    }
    groups = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    for line in groups.splitlines():
        for mark, roots in mounts.items():
            _, found, path = line.partition(mark)
            if not found or not path.endswith(".service"):
                continue
            for root in roots:
                group = Path(root + path) / f"engine-{slot}"
                with contextlib.suppress(OSError):
                    group.mkdir(exist_ok=True)
                    if os.access(group / "cgroup.procs", os.W_OK):
                        return group
    return None
