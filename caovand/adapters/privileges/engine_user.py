"""The engine's own user, if the daemon has one: programs, signals and calls as that user.

A packaged unit grants the daemon CAP_SETUID and CAP_SETGID. The daemon passes them to the spawner
before it does anything else, and drops them. Without them, or without the user, engines run as the
daemon's user.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Any, TypeVar

from caovand.adapters.privileges import capabilities, spawner
from caovand.adapters.privileges.helper import Helper
from caovand.adapters.privileges.link import SpawnerEnded as SpawnerEnded  # noqa: PLC0414
from caovand.adapters.privileges.link import SpawnerLink
from caovand.adapters.privileges.program import Captured, ProgramOfUser

NAME = "caovan-engine"
SERVICE_USER = "caovan"
"""The user of the installed daemon."""
VARIABLE = "CAOVAN_ENGINE_USER"
"""The variable that names another user, for tests."""
SPAWNER = Path(spawner.__file__)
BEGIN_S = 10.0
CALL_S = 10.0
END_S = 5.0

CallResult = TypeVar("CallResult")


class EngineUser:
    """The user `name`. Its programs are started by the spawner: process `process`, reached over
    `link`."""

    def __init__(
        self, name: str, uid: int, process: subprocess.Popen[bytes], link: socket.socket
    ) -> None:
        self.name, self.uid = name, uid
        self._process, self._pidfd = process, os.pidfd_open(process.pid)
        self._link = SpawnerLink(link, self._wake)
        self.ended = select.epoll()
        """Readable once the spawner has exited or was abandoned."""
        self.ended.register(self._pidfd, select.EPOLLIN)
        self.ended.register(link, 0)  # its end is reported anyway
        self._helper = Helper(name, self._program)
        self.call = self._helper.call
        """Call a function of caovan's as this user."""

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        stdio: Sequence[int],
        *,
        cgroup: Path | None = None,
        session: bool = False,
        ends_with: signal.Signals = signal.SIGKILL,
    ) -> int:
        """Start a program with three descriptors; return its pid, or raise OSError.

        It joins `cgroup`, begins its own `session`, and gets the signal `ends_with` if we die.
        """
        with contextlib.ExitStack() as opened:
            descriptors = list(stdio)
            if cgroup is not None:
                descriptors.append(os.open(cgroup / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
                opened.callback(os.close, descriptors[-1])
            request = {"argv": list(argv), "env": dict(env), "session": session}
            more = {"op": "start", "ends_with": int(ends_with)}
            return self._link.ask({**request, **more}, descriptors)["pid"]

    def capture(self, argv: Sequence[str], env: Mapping[str, str], stdin: int) -> Captured:
        """Start a program and capture its output; raises OSError."""
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(open(os.memfd_create("output"), "w+b")) for _ in "12"]
            pid = self.start(argv, env, [stdin, *(file.fileno() for file in files)])
            program = Captured(self, pid, *files)
            opened.pop_all()
        return program

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: int, timeout_s: float
    ) -> CompletedProcess[str]:
        """Run a program to completion; raises OSError, or subprocess.TimeoutExpired."""
        with self.capture(argv, env, stdin) as program:
            try:
                output, errors = program.communicate(timeout_s)
            finally:
                program.kill()
        return CompletedProcess(argv, program.wait(), output, errors)

    def signal(self, pidfd: int, number: int) -> None:
        """Signal a process of this user; raises OSError."""
        self._link.ask({"op": "signal", "signal": int(number)}, [pidfd])

    def abandon(self, pid: int) -> None:
        """SIGKILL a program that nobody watches; the spawner reaps it."""
        self._link.abandon(pid)

    @property
    def spawner(self) -> int:
        """The spawner's pid."""
        return self._process.pid

    @property
    def why_ended(self) -> str:
        """Why no more programs can be started or signalled; "" while they can."""
        return self._link.why_ended

    def close(self) -> None:
        """Kill the spawner and everything that it started, so that none of our processes outlives
        us.
        """
        self._helper.close()
        self._link.close()
        try:
            self._process.wait(END_S)
        except TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wake(self) -> None:
        """Wake a stopped spawner, so that it notices that it was abandoned, and kills what it
        started.
        """
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def _program(
        self, argv: Sequence[str], env: Mapping[str, str], stdio: Sequence[int]
    ) -> ProgramOfUser:
        # Engines could signal it if it were in our process group.
        return ProgramOfUser(self, self.start(argv, env, stdio, session=True))


@dataclass
class _Own:
    """The engine's user of this process, or why there is none."""

    user: EngineUser | None = None
    why_none: str = "this process is not the daemon"


_own = _Own()


def current() -> EngineUser | None:
    """The engine's user of this process; None if engines run as our own user."""
    return _own.user


def why_none() -> str:
    """Why engines run as our own user; "" if they do not."""
    return _own.why_none


def as_engine(
    function: Callable[..., CallResult], *args: Any, limit_s: float = CALL_S
) -> CallResult:
    """Call a function in a module of caovan as the engine's user, or directly if that is our own.

    Arguments and result are JSON values; raises OSError.
    """
    user = current()
    if user is None:
        return function(*args)
    name = f"{function.__module__}:{function.__qualname__}"
    return user.call(name, args, limit_s)  # type: ignore[no-any-return]


def begin(environ: Mapping[str, str]) -> None:
    """Start the spawner and drop all privileges, if there are such a user and such privileges.

    Call it before anything else in the daemon: a process with these privileges must not have read
    anything yet.
    """
    if os.getuid() == 0:
        _own.why_none = "the daemon runs as root"
        return
    try:
        _own.user, _own.why_none = _start_spawner(environ.get(VARIABLE) or NAME), ""
    except _Alone as problem:
        _own.why_none = str(problem)
    except OSError as problem:
        _own.why_none = f"the spawner does not start: {problem}"
    finally:
        capabilities.drop_overrides()


def end() -> None:
    """End the spawner, so that no process of the daemon outlives it."""
    if _own.user is not None:
        _own.user.close()


class _Alone(Exception):
    """Why engines must run as the daemon's own user."""


def _start_spawner(name: str) -> EngineUser:
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise _Alone(f"the user {name} does not exist") from None
    needed = spawner.SETUID_AND_SETGID
    if capabilities.read_set("CapPrm") & needed != needed:
        raise _Alone("the daemon lacks the capabilities CAP_SETUID and CAP_SETGID")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    groups = [account.pw_gid, *(group for group in groups if group != account.pw_gid)]
    words = [sys.executable, "-I", "-S", str(SPAWNER), str(theirs.fileno()), str(account.pw_uid)]
    env = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
    with theirs:
        process = subprocess.Popen(
            [*words, ",".join(map(str, groups))],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd="/",
        )
    ours.settimeout(BEGIN_S)
    try:
        reason = "" if ours.recv(spawner.MAX_MESSAGE) == b"{}" else "it ended"
    except TimeoutError:
        reason = f"it did not answer for {BEGIN_S:g} s"
    if reason:
        ours.close()
        process.kill()
        raise OSError(None, f"{reason} (status {process.wait()})")
    return EngineUser(account.pw_name, account.pw_uid, process, ours)
