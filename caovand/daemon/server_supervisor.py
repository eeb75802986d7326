"""Supervise the process of the page or the gateway, and restart it when it exits.

Nothing waits for it, and its problems never affect the engine. The daemon owns the listening
socket, so clients that arrive during a restart wait; systemd keeps the socket open even while the
daemon restarts.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from caovand.adapters.confinement.popen import Confinement
from caovand.adapters.servers.listening import Listeners
from caovand.adapters.servers.server_process import READY, ServerCommand, ServerKind, ServerProcess
from caovand.core import limits
from caovand.core.addresses import join_address, split_address
from caovand.core.lifecycle.backoff import delay

STABLE_S = 60.0
CONFINED_TO_NOTHING = Confinement((), (), ())
"""The process writes no files, and reads what its user can read."""
REMEDY = "caovand restarts it"

StartServer = Callable[..., ServerProcess]


class ServerSupervisor:
    """A server of the daemon with its sockets in `runtime`; `notice` receives each change.
    `problem` says why the server is down; "" if it runs, or is off.
    """

    def __init__(
        self,
        kind: ServerKind,
        runtime: Path,
        environ: Mapping[str, str],
        notice: Callable[[str, str], None],
        listeners: Listeners,
        start: StartServer = ServerProcess,
    ) -> None:
        self.kind, self.problem = kind, ""
        self._runtime, self._environ, self._notice, self._start = runtime, environ, notice, start
        self._listeners = listeners
        self._listen, self._words = "", tuple[str, ...]()
        self._confinement = CONFINED_TO_NOTHING
        self._wanted: object = None
        self._process: ServerProcess | None = None
        self._listener: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ready_at: float | None = None
        self._attempts = 0
        self._printed = ""

    def settle(
        self,
        listen: str,
        words: Sequence[str] = (),
        secret: str | None = "",
        confinement: Confinement = CONFINED_TO_NOTHING,
    ) -> None:
        """Start, move or stop the server as configured; retry a failed one at once.

        `words` are its own arguments, `secret` the contents of a file that they name, and
        `confinement` what it may access from its next start on.
        """
        self._confinement = confinement
        settings = (listen, tuple(words), secret)
        if settings == self._wanted and self._ready_at is not None:
            return
        self._end()
        if listen != self._listen:
            self._stop_listening()
        if not listen:
            self._listeners.forget(self.kind.name)
        self._listen, self._words = listen, ("--listen", listen, *words)
        self._wanted, self.problem, self._attempts = settings, "", 0
        if listen:
            self._try()

    def close(self) -> None:
        """Stop it; if systemd keeps its socket, clients wait for the next daemon."""
        self._end()
        self._stop_listening()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._process is not None:
            self._process.end()
        self._process = self._ready_at = None

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def describe(self) -> dict[str, Any] | None:
        """The server's entry in the status; None if it is off."""
        if not self._listen:
            return None
        serves = self._ready_at is not None
        pid = self._process.pid if self._process else None
        return {"url": url(self._listen), "serving": serves, "problem": self.problem, "pid": pid}

    def _try(self) -> None:
        self._timer, self._printed = None, ""
        try:
            if self._listener is None:
                self._listener = self._listeners.listen(
                    self.kind.name, self._listen, self.kind.backlog
                )
        except OSError as problem:
            # Python's message repeats the address; a resolver's error numbers are negative.
            number = problem.errno or 0
            reason = os.strerror(number) if number > 0 else problem.strerror or str(problem)
            remedy = f"set another [{self.kind.name}] listen"
            self._failed(f"cannot serve {self.kind.title}: {self._listen}: {reason}; {remedy}")
            return
        try:
            command = ServerCommand(
                self.kind, self._words, self._runtime, self._environ, self._confinement
            )
            self._process = self._start(command, self._listener, self._on_line, self._on_end)
        except OSError as problem:
            fact = limits.limit_reached(problem) or problem.strerror or str(problem)
            self._failed(f"cannot start {self.kind.title}'s process: {fact}; {REMEDY}")

    def _on_line(self, line: str) -> None:
        if line != READY:
            self._printed = line or self._printed
            return
        self._ready_at = asyncio.get_running_loop().time()
        self.problem = ""
        self._notice("noticed", f"{self.kind.title} is served on {url(self._listen)}")

    def _on_end(self, status: int) -> None:
        ready_at, self._process, self._ready_at = self._ready_at, None, None
        if ready_at is None:  # it may never serve
            self._stop_listening()
            self._listeners.forget(self.kind.name)
        if ready_at is None and self._printed.startswith("cannot "):
            self._failed(self._printed)
            return
        if ready_at is not None and asyncio.get_running_loop().time() - ready_at >= STABLE_S:
            self._attempts = 0
        words = f": {self._printed}" if self._printed else ""
        self._failed(f"{self.kind.title}'s process exited with {_named(status)}{words}; {REMEDY}")

    def _failed(self, problem: str) -> None:
        if problem != self.problem:
            self._notice("noticed", problem)
        self.problem = problem
        self._attempts += 1
        wait_s = delay(self._attempts, random.random())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._try)


def url(listen: str) -> str:
    """The URL for clients."""
    return f"http://{join_address(*split_address(listen))}/"


def _named(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
