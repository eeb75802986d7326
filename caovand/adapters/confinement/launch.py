"""Become another program, such as an engine: join its cgroup, confine this process, run its
command.

This is a separate program, run as a file by the daemon's isolated Python, so that the environment
of the other program affects nothing else. Standard input is one JSON document, as
`popen.popen_arguments` makes it.

A confined process cannot gain privileges (no_new_privs), use the system calls that `call_filter`
refuses, reach other processes by ptrace, signal or abstract socket, write outside `writable`, or
read `hidden` paths. In /dev it has only DEVICES, and none of root's rights to the machine's memory
and log. See `man 7 landlock`: each version of the interface covers more; this code uses what the
kernel has.

CUDA's driver names its threads in /proc/PID/task/TID/comm and fails with error 304 if it cannot.
Landlock has no rule for future processes, so those programs may write below PROC. Machine settings
there that root could change are made read-only for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import json
import os
import platform
import resource
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

HOME = os.path.abspath(f"{__file__}/../../../..")
"""The folder that contains caovan, which an isolated Python does not find."""
CANNOT_RUN, NOT_FOUND = 126, 127
"""The exit statuses that a shell uses."""

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38

MIN_ABI = 2
"""Version 1 (Linux 5.13) forbids every rename between folders, which compilers need."""
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
VERSION = 1
PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE = 1 << 4, 1 << 5
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK = 1 << 6, 1 << 7, 1 << 8, 1 << 9
MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = 1 << 10, 1 << 11, 1 << 12
REFER, TRUNCATE = 1 << 13, 1 << 14
READ_RIGHTS = EXECUTE | READ_FILE | READ_DIR
MAKE_RIGHTS = MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_SYM
WRITE_RIGHTS = WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_RIGHTS | REFER
FILE_RIGHTS = EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE
HANDLED_RIGHTS = READ_RIGHTS | WRITE_RIGHTS | MAKE_CHAR | MAKE_BLOCK
TRUNCATE_ABI, NET_ABI, SCOPE_ABI = 3, 4, 6
SCOPE = 1 << 0 | 1 << 1
"""Neither abstract sockets nor signals reach a process outside."""

PROC = "/proc"
CORE_PATTERN = f"{PROC}/sys/kernel/core_pattern"
CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 32, 4096, 16384, 1 << 19

DEV = "/dev"
SHARED_MEMORY = f"{DEV}/shm"
DEVICES = (
    "null", "zero", "full", "random", "urandom",
    "nvidia*", "nvgpu", "nvhost*", "nvmap", "nvsciipc", "dri", "kfd", "accel", "dxg",
    "infiniband", "gdrdrv",
)  # fmt: skip
"""Devices that engines use: cards, also those of boards (nvgpu, nvmap) and of WSL (dxg), and
links."""
PR_CAPBSET_DROP = 24
CAP_SYS_RAWIO, CAP_SYSLOG = 17, 34
"""Capabilities for /proc/kcore and the like, and for the kernel's log: Landlock has no rule for
either."""
NVIDIA_MODPROBE = "/usr/bin/nvidia-modprobe"


def landlock_abi() -> int:
    """The version of the kernel's Landlock; 0 if it is missing or forbidden here."""
    return max(int(ctypes.CDLL(None).syscall(LANDLOCK_CREATE_RULESET, None, 0, VERSION)), 0)


def main() -> int:
    """Become the program described on standard input; return only on failure."""
    sys.path.append(HOME)
    launch = json.loads(sys.stdin.buffer.read())
    argv, env = launch["argv"], launch["env"]
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        if launch["cgroup"]:
            with open(launch["cgroup"], "w", encoding="ascii") as procs:
                procs.write(str(os.getpid()))
        if launch["unlimited_stack"]:
            raise_stack()
        libc = ctypes.CDLL(None, use_errno=True)
        _check(libc.prctl(PR_SET_PDEATHSIG, launch["ends_with"], 0, 0, 0))
        if launch["confined"] is not None:
            make_devices()
            confine(libc, **launch["confined"], keepers=launch["keepers"])
    except OSError as problem:
        print(f"cannot start {argv[0]}: {problem}", file=sys.stderr)
        return CANNOT_RUN
    # Python ignores both, which the program would inherit.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as problem:
        print(f"cannot execute {argv[0]}: {problem.strerror}", file=sys.stderr)
        return NOT_FOUND if problem.errno == errno.ENOENT else CANNOT_RUN


def raise_stack() -> None:
    """Raise the stack limit to this user's maximum."""
    most = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    try:
        resource.setrlimit(resource.RLIMIT_STACK, most)
    except (OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))


def make_devices() -> None:
    """Create the device node of CUDA's memory, which an unprivileged process could not create
    later."""
    lacks = os.path.exists("/proc/driver/nvidia/version") and not os.path.exists("/dev/nvidia-uvm")
    if lacks and os.path.exists(NVIDIA_MODPROBE):
        subprocess.run([NVIDIA_MODPROBE, "-c0", "-u"], check=False, env={}, cwd="/")


def confine(
    libc: Any,
    hidden: Sequence[str],
    readable: Sequence[str],
    writable: Sequence[str],
    *,
    alone: bool = False,
    keepers: Iterable[int] = (),
) -> None:
    """Confine this thread and everything it starts, as far as the kernel can; raises OSError.

    It may not touch its parent and `keepers`; with `alone` it may signal no other process.
    """
    from caovand.adapters.confinement import call_filter  # noqa: PLC0415  (before files are hidden)

    _check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    for capability in (CAP_SYS_RAWIO, CAP_SYSLOG):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails without any rights to drop
    for folder in writable:
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
    abi = landlock_abi()
    if PROC in writable and os.getuid() == 0:
        protect_machine(libc)
    if abi >= MIN_ABI:
        hidden = [os.path.realpath(path) for path in hidden]
        restrict(libc, abi, engine_rules(hidden, readable, writable))
    if platform.machine() in call_filter.MACHINES:
        code = call_filter.program(
            platform.machine(),
            {os.getppid(), *keepers},
            truncation=abi >= TRUNCATE_ABI,
            signals=abi >= SCOPE_ABI,
            alone=alone,
        )
        call_filter.install(libc, code)


def protect_machine(libc: Any) -> None:
    """Make all of /proc but the processes read-only, for this process and the one that started it.

    Needed only for root, whom no file mode stops. If root may not mount, as in most containers,
    /proc/sys is read-only already; a message is printed if it is not.
    """
    first = (f"{PROC}/sys", f"{PROC}/sysrq-trigger", f"{PROC}/{os.getppid()}")
    with os.scandir(PROC) as entries:
        rest = [
            entry.path for entry in entries if not entry.is_symlink() and not entry.name.isdigit()
        ]
    error = 0
    try:
        _check(libc.unshare(CLONE_NEWNS))
        _mount(libc, "/", MS_REC | MS_SLAVE)
        for path in dict.fromkeys((*first, *rest)):
            error = _make_read_only(libc, path) or error
    except OSError as problem:
        error = problem.errno or 0
    if error and os.access(CORE_PATTERN, os.W_OK):
        text = os.strerror(error)
        print(f"caovan: cannot make /proc/sys read-only for the engine: {text}", file=sys.stderr)


def _make_read_only(libc: Any, path: str) -> int:
    """Make a path read-only, including what a container masks below it; return errno, or 0."""
    try:
        _mount(libc, path, MS_BIND | MS_REC)
        _mount(libc, path, MS_BIND | MS_REMOUNT | MS_RDONLY)
    except OSError as problem:
        return problem.errno or errno.EIO
    return 0


def _mount(libc: Any, path: str, flags: int) -> None:
    name = os.fsencode(path)
    _check(libc.mount(name, name, None, ctypes.c_ulong(flags), None))


def engine_rules(
    hidden: Sequence[str], readable: Iterable[str], writable: Iterable[str]
) -> Iterator[tuple[str, int]]:
    """Rules for reading everything but `hidden`, with `readable` inside it, and for writing
    `writable`."""
    write = READ_RIGHTS | WRITE_RIGHTS
    roots = writable_roots(writable, hidden)
    yield "/", READ_DIR  # names alone: a search for a file may list folders
    yield from ((path, READ_RIGHTS) for path in except_for("/", (*hidden, DEV)))
    yield from ((path, READ_FILE | WRITE_FILE | READ_DIR) for path in devices())
    for folder in readable:
        if not in_one_of(folder, roots):
            yield from (
                (path, READ_RIGHTS) for path in except_for(os.path.realpath(folder), hidden)
            )
    yield from ((path, write) for path in (*roots, SHARED_MEMORY))


def restrict(libc: Any, abi: int, rules: Iterable[tuple[str, int]]) -> None:
    """Restrict this thread, and everything it starts, to files that rules allow; raises OSError."""
    handled = HANDLED_RIGHTS if abi >= TRUNCATE_ABI else HANDLED_RIGHTS & ~TRUNCATE
    attributes = struct.pack("=QQQ", handled, 0, SCOPE)
    size = 24 if abi >= SCOPE_ABI else 16 if abi >= NET_ABI else 8
    ruleset = _check(libc.syscall(LANDLOCK_CREATE_RULESET, attributes, size, 0))
    for path, rights in rules:
        _add_rule(libc, ruleset, path, rights & handled)
    _check(libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def except_for(path: str, hidden: Sequence[str]) -> Iterator[str]:
    """The path, or its contents without `hidden`; all of it if it lies in a hidden path itself.

    Links are left out: their targets are reached on their own path, or are hidden.
    """
    if path in hidden:
        return
    if not any(hidden_path.startswith(path.rstrip("/") + "/") for hidden_path in hidden):
        yield path
        return
    try:
        with os.scandir(path) as listing:
            entries = [entry.path for entry in listing if not entry.is_symlink()]
    except OSError:  # it may be entered but not listed
        start = path.rstrip("/") + "/"
        below = {
            hidden_path[len(start) :].partition("/")[0]
            for hidden_path in hidden
            if hidden_path.startswith(start)
        }
        entries = [start + name for name in sorted(below)]
    for entry in entries:
        yield from except_for(entry, hidden)


def writable_roots(writable: Iterable[str], hidden: Sequence[str]) -> dict[str, None]:
    """The folders to write to, without links; a path below one of them needs no rule.

    An earlier engine may have replaced a folder by a link to the daemon's state: such a link is not
    followed.
    """
    roots: dict[str, None] = {}
    for folder in sorted(writable, key=len):
        real = os.path.realpath(folder)
        if not in_one_of(folder, roots):
            roots.update(dict.fromkeys(except_for(real, hidden)))
        elif not in_one_of(os.path.join(real, "."), roots):
            hint = "an engine could have made this link: if you did, add its target to [engine]"
            print(f"caovan: the engine cannot write to {folder}: {hint} writable", file=sys.stderr)
    return roots


def in_one_of(path: str, folders: Container[str]) -> bool:
    """Whether the path lies in one of these folders, directly or through a link on the way."""
    return any(
        above in folders
        for folder in folders_above(path)
        for above in folders_above(os.path.join(os.path.realpath(folder), "."))
    )


def folders_above(path: str) -> Iterator[str]:
    """The parent folders of a path, innermost first."""
    while (above := os.path.dirname(path)) != path:
        path = above
        yield path


def devices() -> Iterator[str]:
    """The devices in /dev that an engine may use."""
    return (path for name in DEVICES for path in glob.iglob(f"{DEV}/{name}"))


def _add_rule(libc: Any, ruleset: int, path: str, rights: int) -> None:
    """Add a rule; a path that is gone, or is in no file system, needs none."""
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        kept = rights if stat.S_ISDIR(os.fstat(place).st_mode) else rights & FILE_RIGHTS
        rule = struct.pack("=Qi", kept, place)
        if kept and libc.syscall(LANDLOCK_ADD_RULE, ruleset, PATH_BENEATH, rule, 0) < 0:
            number = ctypes.get_errno()
            if number != errno.EBADFD:
                raise OSError(number, os.strerror(number), path)
    finally:
        os.close(place)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot confine the engine: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    sys.exit(main())
