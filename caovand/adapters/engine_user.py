"""The engine's own user, where the daemon has one: programs, signals and calls as that user.

A packaged unit gives the daemon CAP_SETUID and CAP_SETGID. It passes them on to the spawner before
it does anything else, and drops them. Without them, or without the user, engines run as the
daemon's user.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Any, BinaryIO, TypeVar

from caovand import HOME
from caovand.adapters import rights, spawner

NAME = "caovan-engine"
VARIABLE = "CAOVAN_ENGINE_USER"
"""Names another user, as in tests."""
STARTS = Path(spawner.__file__)
CALLS = Path(__file__).with_name("engine_calls.py")
ANSWER_S = 10.0
CALL_S = 10.0
MARGIN_S = 2.0
"""A call has ended by then; what has not answered was stopped."""
END_S = 5.0
MAX_ANSWER = 64 << 20
READ_BYTES = 1 << 20

Result = TypeVar("Result")


class SpawnerEnded(Exception):
    """No engine can be started or ended any more."""


class Program:
    """A running program of the engine's user; the part of subprocess.Popen that is used here."""

    def __init__(self, user: EngineUser, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._user, self._lock = user, threading.Lock()
        try:
            self._watch = os.pidfd_open(pid)
        except OSError:  # too many files are open
            user.abandon(pid)
            raise

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it lives."""
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # somebody else reaped it
                    pid, status = self.pid, 0
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                    os.close(self._watch)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit status, or subprocess.TimeoutExpired."""
        while (status := self.poll()) is None:
            poll = select.poll()
            poll.register(self._watch, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Signal it, if it still lives."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self.returncode is None:
                self._user.signal(self._watch, number)

    def kill(self) -> None:
        """KILL it."""
        self.send_signal(signal.SIGKILL)


class Captured(Program):
    """A program whose output and errors are kept in memory until it has ended."""

    def __init__(self, user: EngineUser, pid: int, output: BinaryIO, errors: BinaryIO) -> None:
        super().__init__(user, pid)
        self._files = output, errors

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end, and return what it printed; subprocess.TimeoutExpired."""
        self.wait(timeout)
        output, errors = map(_content, self._files)
        return output, errors

    def close(self) -> None:
        """Forget what it printed."""
        for file in self._files:
            file.close()


def _content(file: BinaryIO) -> str:
    with file:
        file.seek(0)
        return file.read().decode("utf-8", "replace")


class EngineUser:
    """The user `name`, whose programs the spawner starts, the program `process` behind `link`."""

    def __init__(self, name: str, uid: int, process: subprocess.Popen[bytes], link: Any) -> None:
        self.name, self.uid = name, uid
        self.ended = os.pidfd_open(process.pid)
        """Readable once the spawner has ended."""
        self._process, self._link = process, link
        self._lock, self._calling = threading.Lock(), threading.Lock()
        self._calls: tuple[socket.socket, Program] | None = None
        self._late: deque[str] = deque()
        """What was asked without an answer so far, which comes before that to the next message."""
        self._abandoned: set[int] = set()
        """Programs that nobody waits for."""

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
        """Start a program with three descriptors; its pid, or OSError.

        It joins `cgroup`, begins a `session` of its own, and gets the signal `ends_with` if we die.
        """
        with contextlib.ExitStack() as opened:
            descriptors = list(stdio)
            if cgroup is not None:
                descriptors.append(os.open(cgroup / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
                opened.callback(os.close, descriptors[-1])
            asked = {"argv": list(argv), "env": dict(env), "session": session}
            more = {"op": "start", "ends_with": int(ends_with)}
            return self._ask({**asked, **more}, descriptors)["pid"]

    def capture(self, argv: Sequence[str], env: Mapping[str, str], stdin: int) -> Captured:
        """Start a program and keep what it prints; OSError."""
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(open(os.memfd_create("output"), "w+b")) for _ in "12"]
            pid = self.start(argv, env, [stdin, *(file.fileno() for file in files)])
            program = Captured(self, pid, *files)
            opened.pop_all()
        return program

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: int, timeout_s: float
    ) -> CompletedProcess[str]:
        """Run a program to its end; OSError, or subprocess.TimeoutExpired."""
        program = self.capture(argv, env, stdin)
        try:
            output, errors = program.communicate(timeout_s)
        finally:
            program.kill()
            status = program.wait()
            program.close()
        return CompletedProcess(argv, status, output, errors)

    def signal(self, pidfd: int, number: int) -> None:
        """Signal a process of this user; OSError."""
        self._ask({"op": "signal", "signal": int(number)}, [pidfd])

    def abandon(self, pid: int) -> None:
        """KILL a program that nobody can watch, and reap it in time."""
        self._abandoned.add(pid)
        with contextlib.suppress(OSError):  # a late answer is as good
            self._ask({"op": "kill", "pid": pid}, [])
            self._reap()

    def _ask(self, asked: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, int]:
        with self._lock:
            while self._late:
                self._drop(self._received())
            self._reap()
            answer = self._exchanged(asked, descriptors)
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        if "refused" in answer:
            raise OSError(None, f"the spawner refuses: {answer['refused']}")
        return answer

    def _exchanged(self, asked: Mapping[str, Any], descriptors: Sequence[int]) -> dict[str, Any]:
        socket.send_fds(self._link, [json.dumps(asked).encode()], descriptors)
        self._late.append(asked["op"])
        answer = self._received()
        self._late.pop()
        return answer

    def _received(self) -> dict[str, Any]:
        data = self._link.recv(spawner.MAX_MESSAGE)
        if not data:
            raise OSError(None, "the spawner has ended")
        return dict(json.loads(data))

    def _drop(self, answer: Mapping[str, Any]) -> None:
        """Take the oldest late answer; end what was started when nobody waited any more."""
        if self._late.popleft() == "start" and "pid" in answer:
            self._abandoned.add(answer["pid"])
            message = json.dumps({"op": "kill", "pid": answer["pid"]}).encode()
            self._link.send(message)
            self._late.append("kill")

    def _reap(self) -> None:
        for pid in list(self._abandoned):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0]
            except ChildProcessError:  # somebody else reaped it
                ended = pid
            if ended:
                self._abandoned.discard(pid)

    def call(self, name: str, args: Sequence[Any], limit_s: float) -> Any:
        """Call a function by its name, as this user; OSError, also where it takes too long."""
        request = json.dumps([name, args, limit_s])
        try:
            data = self._called(request, limit_s + MARGIN_S)
        except TimeoutError:
            data = self._called(request, ANSWER_S - MARGIN_S)
        try:
            answer: dict[str, Any] = dict(json.loads(data))
        except (ValueError, TypeError, RecursionError):
            answer = {"error": "it ended without an answer"}
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        if "error" in answer:
            raise OSError(None, f"cannot call {name} as {self.name}: {answer['error']}")
        return answer.get("result")

    def _called(self, text: str, limit_s: float) -> bytes:
        """The answer to one request; TimeoutError ends the helper that did not give it."""
        read_end, write_end = os.pipe()
        with open(read_end, "rb", buffering=0) as answers:
            try:
                with open(in_memory(text), "rb") as request:
                    helper = self._send_call([request.fileno(), write_end])
            finally:
                os.close(write_end)
            try:
                return _read(answers, limit_s)
            except TimeoutError:
                with self._calling:
                    if self._calls is helper:  # before Linux 6.12, an engine may have stopped it
                        self._end_calls()
                raise

    def _send_call(self, descriptors: Sequence[int]) -> tuple[socket.socket, Program]:
        """Send a request to the helper, to a new one if there is none; return the helper."""
        with self._calling:
            if self._calls is not None:
                with contextlib.suppress(OSError):
                    socket.send_fds(self._calls[0], [b"call"], descriptors)
                    return self._calls
                self._end_calls()  # before Linux 6.12, an engine may have ended it
            self._calls = self._caller()
            socket.send_fds(self._calls[0], [b"call"], descriptors)
            return self._calls

    def _caller(self) -> tuple[socket.socket, Program]:
        """Start the program that makes calls; the socket that it listens to."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(ANSWER_S)  # a stopped one's buffer fills
        env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        with theirs, open(os.devnull, "r+b") as nothing:
            words = [sys.executable, "-I", "-S", str(CALLS), HOME]
            stdio = [theirs.fileno(), nothing.fileno(), nothing.fileno()]
            return ours, Program(self, self.start(words, env, stdio))

    def _end_calls(self) -> None:
        if self._calls is not None:
            link, program = self._calls
            self._calls = None
            link.close()
            with contextlib.suppress(OSError, TimeoutExpired):
                program.kill()
                program.wait(END_S)

    def close(self) -> None:
        """End both programs, so that nothing of us is left when we end."""
        with self._calling:
            self._end_calls()
        self._link.close()
        with contextlib.suppress(TimeoutExpired):
            self._process.wait(END_S)


def _read(answers: Any, limit_s: float) -> bytes:
    """All that comes until the other end is closed; OSError where that takes longer."""
    poll = select.poll()
    poll.register(answers, select.POLLIN)
    parts: list[bytes] = []
    while sum(map(len, parts)) <= MAX_ANSWER:
        if not poll.poll(limit_s * 1000):
            break
        part = answers.read(READ_BYTES)
        if not part:
            return b"".join(parts)
        parts.append(part)
    raise TimeoutError("it took too long")


def in_memory(text: str) -> int:
    """An open file with this text, so that neither side waits for the other."""
    descriptor = os.memfd_create("text")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


@dataclass
class _Own:
    """The engine's user of this process, or why there is none."""

    user: EngineUser | None = None
    why_none: str = "this is no daemon"


_own = _Own()


def current() -> EngineUser | None:
    """The engine's user of this process; None where engines run as our own."""
    return _own.user


def why_none() -> str:
    """Why engines run as our own user; "" where they do not."""
    return _own.why_none


def as_engine(function: Callable[..., Result], *args: Any, limit_s: float = CALL_S) -> Result:
    """Call a function of a module of caovan's as the engine's user, or here if that is our own.

    Arguments and result are what JSON has; OSError.
    """
    user = current()
    if user is None:
        return function(*args)
    name = f"{function.__module__}:{function.__qualname__}"
    return user.call(name, args, limit_s)  # type: ignore[no-any-return]


def begin(environ: Mapping[str, str]) -> None:
    """Start the spawner and drop all rights, where there are such a user and such rights.

    Before anything else in the daemon: what runs with its rights must not have read anything yet.
    """
    if os.getuid() == 0:
        _own.why_none = "the daemon runs as root"
        return
    try:
        _own.user, _own.why_none = _begun(environ.get(VARIABLE) or NAME), ""
    except _Alone as problem:
        _own.why_none = str(problem)
    except OSError as problem:
        _own.why_none = f"the spawner does not start: {problem}"
    finally:
        rights.drop()


def end() -> None:
    """End the spawner, so that nothing of the daemon is left when it ends."""
    if _own.user is not None:
        _own.user.close()


class _Alone(Exception):
    """Why the daemon's own user has to do."""


def _begun(name: str) -> EngineUser:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise _Alone(f"there is no user {name}") from None
    needed = spawner.SETUID_AND_SETGID
    if rights.held("CapPrm") & needed != needed:
        raise _Alone("the daemon has not the capabilities CAP_SETUID and CAP_SETGID")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    groups = os.getgrouplist(found.pw_name, found.pw_gid)
    groups = [found.pw_gid, *(group for group in groups if group != found.pw_gid)]
    words = [sys.executable, "-I", "-S", str(STARTS), str(theirs.fileno()), str(found.pw_uid)]
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
    ours.settimeout(ANSWER_S)
    if ours.recv(spawner.MAX_MESSAGE) != b"{}":
        process.kill()
        process.wait()
        raise OSError(None, f"it ended with status {process.returncode}")
    return EngineUser(found.pw_name, found.pw_uid, process, ours)
