"""Start and signal processes of the engine's user. Nothing else uses the daemon's capabilities.

A separate program, which the daemon executes before anything else, with CAP_SETUID and CAP_SETGID;
the daemon then drops both.

    python3 -I -S spawner.py SOCKET UID GID,GROUP...

Each message on SOCKET (SOCK_SEQPACKET) is a JSON object with descriptors, and gets one answer:

    {"op": "start", "argv": [...], "env": {...}, "session": bool, "ends_with": SIGNAL} with standard
        input, output, errors and perhaps an open cgroup.procs: executes argv as the engine's user,
        with no other descriptor, in that cgroup; {"pid": PID}. It is a child of the daemon, which
        reaps it, and gets the signal `ends_with` when the daemon dies.
    {"op": "signal", "signal": SIGNAL} with a pidfd: sends the signal; {}.
    {"op": "kill", "pid": PID}: KILLs a program that was started here, which the daemon cannot open;
        {}.

The answers come in the order of the messages.

Anything else is refused: {"refused": WHY}. What the kernel refuses is {"errno": NUMBER}.

Every request is carried out with the rights of the engine's user only: a program starts with them,
and to send a signal this process takes the engine's effective user and no effective capability. So
a message gives the daemon no more than that user's rights, which it may assume anyway. Otherwise
this process has the daemon's effective user: a user may slow down the processes it effectively
owns. This process cannot be traced, and it exits with the daemon.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
from collections.abc import Sequence
from typing import Any

MAX_MESSAGE = 64 << 10
MAX_DESCRIPTORS = 4
SIGNALS = (signal.SIGTERM, signal.SIGKILL)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CANNOT_RUN = 126
PR_SET_NAME, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 15, 4, 38
CAPABILITY_VERSION = 0x20080522
SETUID_AND_SETGID = 1 << 6 | 1 << 7
CLONE_PIDFD, CLONE_PARENT = 0x1000, 0x8000
SYS_CLONE = {"x86_64": 56, "aarch64": 220}

libc = ctypes.CDLL(None, use_errno=True)


class Unserved(Exception):
    """A request that the spawner rejects."""


class Spawner:
    """Serve the daemon at the other end of `link`, as the user `uid` with these groups."""

    def __init__(self, link: socket.socket, uid: int, groups: Sequence[int]) -> None:
        self._link, self._uid, self._groups = link, uid, groups
        self._started: dict[int, tuple[int, int]] = {}
        """The pid of each program, and the signal that stops it, by its pidfd."""
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)

    def serve(self) -> None:
        """Answer until the daemon is gone, then kill the programs that it left running."""
        while True:
            for descriptor, event in self._poll.poll():
                if descriptor in self._started:  # it has ended
                    self._poll.unregister(descriptor)
                    os.close(descriptor)
                    del self._started[descriptor]
                elif event & ~select.POLLIN:
                    self._end()
                    return
                else:
                    self._answer()

    def _end(self) -> None:
        for pidfd, (_, number) in self._started.items():
            with contextlib.suppress(OSError):
                self._send(pidfd, number)

    def _answer(self) -> None:
        received: list[int] = []
        answer: dict[str, Any]
        try:
            data, received, flags = _receive(self._link)
            answer = self._handle(data, received, flags)
        except OSError as problem:
            answer = {"errno": problem.errno or errno.EIO}
        except Exception as problem:
            answer = {"refused": f"{type(problem).__name__}: {problem}"[:500]}
        finally:
            for descriptor in received:
                os.close(descriptor)
        with contextlib.suppress(OSError):  # the daemon is gone
            self._link.send(json.dumps(answer).encode())

    def _handle(self, data: bytes, received: list[int], flags: int) -> dict[str, int]:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise Unserved("it is too long")
        request = json.loads(data)
        if not isinstance(request, dict):
            raise Unserved("it is not a JSON object")
        names, op = request.keys(), request.get("op")
        if op == "signal" and names == {"op", "signal"} and len(received) == 1:
            self._send(received[0], _signal(request["signal"]))
            return {}
        if op == "kill" and names == {"op", "pid"} and not received:
            self._kill(request["pid"])
            return {}
        if op == "start" and names == {"op", "argv", "env", "session", "ends_with"}:
            if len(received) not in (3, 4):
                raise Unserved(f"it has {len(received)} descriptors")
            return {"pid": self._start(request, received)}
        raise Unserved("the spawner has no such operation")

    def _kill(self, pid: object) -> None:
        pidfds = [pidfd for pidfd, (its, _) in self._started.items() if its == pid]
        if type(pid) is not int or not pidfds:
            raise Unserved("the spawner did not start that process")
        self._send(pidfds[0], signal.SIGKILL)

    def _send(self, pidfd: int, number: int) -> None:
        """Signal a process as the engine's user."""
        capabilities(effective=SETUID_AND_SETGID, permitted=SETUID_AND_SETGID)
        try:
            os.setresuid(-1, self._uid, -1)
            capabilities(effective=0, permitted=SETUID_AND_SETGID)
            signal.pidfd_send_signal(pidfd, number)
        finally:
            os.setresuid(-1, os.getuid(), -1)
            capabilities(effective=0, permitted=SETUID_AND_SETGID)
            libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # changing the user may undo it

    def _start(self, asked: dict[str, Any], received: list[int]) -> int:
        argv, env, session = asked["argv"], asked["env"], asked["session"]
        words = [*argv, *env, *env.values()] if type(argv) is list and type(env) is dict else [0]
        if not argv or not all(type(word) is str and "\0" not in word for word in words):
            raise Unserved("argv and env must be strings")
        if type(session) is not bool or any("=" in name or not name for name in env):
            raise Unserved("session must be true or false, and variable names must not contain =")
        ends_with = _signal(asked["ends_with"])
        pidfd = ctypes.c_int(-1)
        flags = CLONE_PARENT | CLONE_PIDFD | signal.SIGCHLD
        number = SYS_CLONE[os.uname().machine]
        pid = int(libc.syscall(number, flags, None, ctypes.byref(pidfd), None, None))
        if pid == 0:
            self._become(argv, env, session, received)
        if pid < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._started[pidfd.value] = (pid, ends_with)
        self._poll.register(pidfd.value, select.POLLIN)
        return pid

    def _become(
        self, argv: list[str], env: dict[str, str], session: bool, received: list[int]
    ) -> None:
        """Execute a program in this new process, which has no privileges by then; never return."""
        try:
            # only a process of the same user may be moved there by the daemon's user
            if len(received) == 4:
                os.write(received[3], str(os.getpid()).encode())
            if session:
                os.setsid()
            become(self._uid, self._groups)
            for number, descriptor in enumerate(received[:3]):
                os.dup2(descriptor, number)
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
                signal.signal(ignored, signal.SIG_DFL)
            os.chdir("/")
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            os.execve(argv[0], argv, env)
        except BaseException as problem:
            os.write(received[2], f"caovan: cannot start {argv[0]}: {problem}\n".encode())
        finally:
            os._exit(CANNOT_RUN)


def become(uid: int, groups: Sequence[int]) -> None:
    """Switch to another user for good, without any capability; raises OSError."""
    capabilities(effective=SETUID_AND_SETGID, permitted=SETUID_AND_SETGID)
    os.setgroups(groups)
    os.setresgid(groups[0], groups[0], groups[0])
    os.setresuid(uid, uid, uid)
    capabilities(effective=0, permitted=0)
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (groups[0],) * 3:
        raise OSError(errno.EPERM, "the user id did not change")


def capabilities(effective: int, permitted: int, inheritable: int = 0) -> None:
    """Set our capabilities; programs that we start get the inheritable ones. Raises OSError."""
    low, high = ([mask >> shift & 0xFFFFFFFF for mask in (effective, permitted, inheritable)]
                 for shift in (0, 32))  # fmt: skip
    data = struct.pack("=6I", *low, *high)
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "cannot set capabilities")


def _signal(number: object) -> int:
    if type(number) is not int or number not in SIGNALS:
        raise Unserved("the signal must be TERM or KILL")
    return number


def _receive(link: socket.socket) -> tuple[bytes, list[int], int]:
    """Receive a message, its descriptors and flags; raises OSError."""
    received = array.array("i")
    space = socket.CMSG_LEN(MAX_DESCRIPTORS * received.itemsize)
    data, controls, flags, _ = link.recvmsg(MAX_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in controls:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
    return data, list(received), flags


def main() -> None:
    """Serve the daemon that started this process."""
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    uid, groups = int(sys.argv[2]), [int(group) for group in sys.argv[3].split(",")]
    if uid in (0, os.getuid()) or 0 in groups:
        raise SystemExit("the engine's user must be neither root nor the daemon's")
    # systemd sends TERM to the whole unit, a terminal INT: the daemon may still need this process.
    # Blocked, not ignored: a signal for a new program stays pending until that program has begun.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    with contextlib.suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        fcntl.ioctl(terminal, termios.TIOCNOTTY)  # a process with a terminal could type into it
    libc.prctl(PR_SET_NAME, b"caovan-spawner", 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    capabilities(effective=0, permitted=SETUID_AND_SETGID)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    link.send(b"{}")
    Spawner(link, uid, groups).serve()


if __name__ == "__main__":
    main()
