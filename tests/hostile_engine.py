"""Attacks that an engine might try on its daemon, and system calls that it needs.

As a program: `hostile_engine.py FOLDER NAME=PID... NAME...`. FOLDER holds the daemon's folders and
keys ("-": attack processes only). A NAME without a pid is a child of `daemon`, for which the
program waits. It prints the outcome of each attempt as a JSON object. A successful attempt does no
harm.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
ASK = b'{"v":1,"id":"1","op":"status","args":{}}\n'
MACHINE = ("x86_64", "aarch64").index(os.uname().machine)
SYSCALLS = {
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "tgkill": (234, 131),
    "ioprio_get": (252, 31), "ioprio_set": (251, 30), "rt_sigqueueinfo": (129, 138),
    "sched_getattr": (315, 275), "sched_setattr": (314, 274),
}  # fmt: skip
WAIT_S = 300.0
DID, DENIED = "did", "denied"
BY_A_THREAD = "end by a thread"
"""By the id of a thread other than the main one; `kill` accepts those too."""
REFUSALS = (errno.EPERM, errno.EACCES, errno.EROFS)
"""Errors for missing rights; an engine that runs as root sees the daemon's folder in /proc
read-only."""

Ways = Mapping[str, Callable[[], object]]


def call(name: str, *args: object) -> int:
    """Make a system call and return its result; raises OSError."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in args]
    done = ctypes.CDLL(None, use_errno=True).syscall(SYSCALLS[name][MACHINE], *words)
    if done < 0:
        raise OSError(ctypes.get_errno(), name)
    return int(done)


def _memory(pid: int, name: str, mode: str) -> Ways:
    def transfers() -> None:
        here = ctypes.create_string_buffer(8)
        vector = (ctypes.c_void_p * 2)(ctypes.addressof(here), 8)
        try:
            call(name, pid, vector, 1, vector, 1, 0)
        except OSError as problem:
            # the call was permitted, but nothing is mapped at that address
            if problem.errno != errno.EFAULT:
                raise

    return {"/proc": lambda: open(f"/proc/{pid}/mem", mode).close(), name: transfers}


def _ends(pid: int) -> Ways:
    group = os.getpgid(pid)
    info = (ctypes.c_int * 32)(0, 0, -1)  # SI_QUEUE, the code that processes may send to each other
    ways: dict[str, Callable[[], object]] = {
        "kill": lambda: os.kill(pid, 0),
        "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 0),
        "tgkill": lambda: call("tgkill", pid, pid, 0),
        "sigqueue": lambda: call("rt_sigqueueinfo", pid, 0, info),
    }
    if group != os.getpgrp():  # signalling our own group is allowed
        ways["group"] = lambda: os.kill(-group, 0)
    return ways


def _ends_by_a_thread(pid: int) -> Ways:
    threads = [int(name) for name in os.listdir(f"/proc/{pid}/task") if name != str(pid)]
    return {"kill": lambda: os.kill(threads[0], 0)}


def _lowers(pid: int) -> Ways:
    own = resource.RLIMIT_CORE
    attributes = ctypes.create_string_buffer(48)

    def sets_attributes() -> None:
        call("sched_getattr", pid, attributes, len(attributes), 0)
        call("sched_setattr", pid, attributes, 0)

    return {
        "nice": lambda: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)),
        "ioprio": lambda: call("ioprio_set", 1, pid, call("ioprio_get", 1, pid)),
        "attributes": sets_attributes,
        "limits": lambda: resource.prlimit(pid, own, resource.prlimit(pid, own)),
    }


def _schedules(pid: int) -> Ways:
    return {
        "scheduler": lambda: os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0)),
        "parameters": lambda: os.sched_setparam(pid, os.sched_param(0)),
        "cores": lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid)),
    }


TO_PROCESSES: Mapping[str, Callable[[int], Ways]] = {
    "read the memory of": lambda pid: _memory(pid, "process_vm_readv", "rb"),
    "write the memory of": lambda pid: _memory(pid, "process_vm_writev", "r+b"),
    "end": _ends,
    BY_A_THREAD: _ends_by_a_thread,
    "lower the priority of": _lowers,
    "schedule": _schedules,
}


def _uses_control(folder: Path) -> Ways:
    words = {"a line": ASK, "ZeroMQ": GREETING}
    return {name: lambda ask=ask: _is_answered(folder / "run/control", ask)  # type: ignore[misc]
            for name, ask in words.items()}  # fmt: skip


def _replaces_sockets(folder: Path) -> Ways:
    def renames() -> None:
        place = folder / "run/status"
        place.rename(place.with_name("theirs"))
        place.with_name("theirs").rename(place)

    return {"rename": renames}


TO_FOLDERS: Mapping[str, Callable[[Path], Ways]] = {
    "use control": _uses_control,
    "take the key from the page's socket": lambda folder: {
        name: lambda name=name: _is_answered(folder / "run" / name, ASK)  # type: ignore[misc]
        for name in ("page", "gateway")
    },
    "replace sockets": _replaces_sockets,
    "write state": lambda folder: {"a file": lambda: _writes(folder / "state")},
    "write logs": lambda folder: {"the log": (folder / "log/engine.log").open("ab").close},
    "read the API key's file": lambda folder: {"it": (folder / "api.key").read_text},
    "read cluster.key": lambda folder: {"it": (folder / "keys/cluster.key").read_text},
}
BY_SOCKETS = frozenset({"use control", "take the key from the page's socket"})
NEEDED: dict[str, Callable[[Path], bool]] = {
    "write the cache": lambda folder: _writes(folder / "cache"),
    "write its temporary folder": lambda folder: _writes(Path(tempfile.gettempdir())),
    "share memory": lambda folder: _writes(Path("/dev/shm")),
    "rename between folders": lambda folder: _moves(folder / "cache"),
    "read /usr, /sys and itself": lambda folder: all(
        os.listdir(place) for place in ("/", "/usr/lib", "/sys/devices", "/proc/self/fd")
    ),
    "signal its own": lambda folder: os.kill(os.getppid(), 0) is None,
    "name a thread of its child's, as CUDA does": lambda folder: _names_threads(),
    "schedule itself and its children": lambda folder: _schedules_its_own(),
    "use devices": lambda folder: bool(open("/dev/null", "r+b")),  # noqa: SIM115
}


def _writes(folder: Path) -> bool:
    with tempfile.TemporaryFile(dir=folder) as file:
        return bool(file.write(b"x"))


def _in_a_child(does: Callable[[], object]) -> bool:
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError):
            does()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _names_threads() -> bool:
    name = "cuda00001400006"
    return _in_a_child(lambda: Path(f"/proc/self/task/{os.getpid()}/comm").write_text(name))


def _schedules_its_own() -> bool:
    """As OpenMP, ZeroMQ and NUMA libraries do, also by thread id."""
    ends, end = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        os.read(ends, 1)
        os._exit(0)
    try:
        for pid in (0, os.getpid(), child):
            for way in _schedules(pid).values():
                way()
        os.nice(0)
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))
        call("ioprio_set", 1, 0, call("ioprio_get", 1, 0))
        return True
    finally:
        os.close(end)
        os.close(ends)
        os.waitpid(child, 0)


def _moves(cache: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=cache) as one:
        (Path(one) / "from").write_text("x")
        (Path(one) / "from").rename(cache / "moved")
        (cache / "moved").unlink()
        return True


def _is_answered(place: Path, words: bytes) -> None:
    """Send a request to a socket; PermissionError if it closes without a reply."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(60)
        link.connect(str(place))
        with contextlib.suppress(ConnectionError):
            link.sendall(words)
            if link.recv(16):
                return
    raise PermissionError(errno.EPERM, "closed")


def outcome(ways: Callable[[], Ways]) -> str:
    """DID if all ways work, DENIED if all fail for missing rights; otherwise the errors."""
    found = {}
    try:
        for name, way in ways().items():
            found[name] = _ended(way)
    except OSError as problem:
        found["at all"] = _named(problem)
    ends = set(found.values())
    return ends.pop() if len(ends) == 1 else ", ".join(f"{n}: {e}" for n, e in found.items())


def _ended(way: Callable[[], object]) -> str:
    try:
        way()
    except OSError as problem:
        return _named(problem)
    return DID


def _named(problem: OSError) -> str:
    code = problem.errno or 0
    return DENIED if code in REFUSALS else errno.errorcode.get(code, repr(problem))


def tried(targets: Mapping[str, int], folder: Path | None) -> dict[str, str]:
    """The outcome of each attempt, named as by `outcome`; blocking."""
    found = {
        f"{name} the {target}": outcome(lambda attempt=attempt, pid=pid: attempt(pid))  # type: ignore[misc]
        for target, pid in targets.items()
        for name, attempt in TO_PROCESSES.items()
        if name != BY_A_THREAD or len(os.listdir(f"/proc/{pid}/task")) > 1
    }
    if folder is not None:
        for name, of in TO_FOLDERS.items():
            found[name] = outcome(lambda of=of: of(folder))  # type: ignore[misc]
    return found


def works(folder: Path) -> dict[str, bool]:
    """Which operations that an engine needs are allowed."""
    found = {}
    for name, attempt in NEEDED.items():
        found[name] = False
        with contextlib.suppress(OSError):
            found[name] = attempt(folder)
    return found


def _child(daemon: int, name: str) -> int:
    """Wait for a child of the daemon with this name or command line; returns its pid."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                place = Path("/proc", entry)
                text = (place / "stat").read_text() if entry.isdigit() else ""
                comm, rest = text[text.find("(") + 1 : text.rfind(")")], text[text.rfind(")") + 2 :]
                if text and int(rest.split()[1]) == daemon:
                    words = (place / "cmdline").read_bytes().decode().split("\0")
                    if f"caovan-{name}" == comm or f"caovand.{name}" in words:
                        return int(entry)
        time.sleep(0.01)
    raise SystemExit(f"no {name} of process {daemon}")


def main() -> None:
    """Try what the arguments name, and print the outcomes."""
    targets: dict[str, int] = {}
    for word in sys.argv[2:]:
        name, _, pid = word.partition("=")
        targets[name] = int(pid) if pid else _child(targets["daemon"], name)
    folder = None if sys.argv[1] == "-" else Path(sys.argv[1])
    result: dict[str, object] = {"tried": tried(targets, folder)}
    if folder is not None:
        result["works"] = works(folder)
    print(re.sub(r"\s+", " ", json.dumps(result)), flush=True)


if __name__ == "__main__":
    main()
