"""Programs of the engine's user, which the spawner starts and the daemon watches and reaps."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from subprocess import TimeoutExpired
from types import TracebackType
from typing import BinaryIO, Protocol

MAX_OUTPUT = 16 << 20
"""Bytes of a program's output that are kept: a child of the program may print forever."""


class Keeper(Protocol):
    """May signal programs of the engine's user."""

    def signal(self, pidfd: int, number: int) -> None:
        """Signal a process of that user; raises OSError."""

    def abandon(self, pid: int) -> None:
        """KILL a program that nobody can watch, and reap it in time."""


class ProgramOfUser:
    """A running program of the engine's user, with the part of subprocess.Popen that is used
    here."""

    def __init__(self, user: Keeper, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._user, self._lock = user, threading.Lock()
        try:
            self._watch = os.pidfd_open(pid)
        except OSError:  # too many files are open
            user.abandon(pid)
            raise

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it lives."""
        with self._lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # someone else reaped it
                    pid, status = self.pid, 0
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                    os.close(self._watch)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for it to exit; return the exit status, or raise subprocess.TimeoutExpired."""
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


class Captured(ProgramOfUser):
    """A program whose output and errors are kept in memory until it has exited."""

    def __init__(self, user: Keeper, pid: int, output: BinaryIO, errors: BinaryIO) -> None:
        super().__init__(user, pid)
        self._files = output, errors

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for it to exit, and return its output; raises subprocess.TimeoutExpired."""
        self.wait(timeout)
        output, errors = map(_content, self._files)
        return output, errors

    def __enter__(self) -> Captured:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for it to exit and discard its output, as subprocess.Popen does."""
        for file in self._files:
            file.close()
        self.wait()


def _content(file: BinaryIO) -> str:
    with file:
        file.seek(0)
        return file.read(MAX_OUTPUT).decode("utf-8", "replace")
