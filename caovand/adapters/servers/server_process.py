"""One of caovan's own servers, the page or the gateway: a process that the daemon starts and stops.

It stays in the daemon's session, since a child in another one counts as an engine's orphan. The
kernel stops it with the daemon, by SIGTERM: that signal is bound to the forking thread, so this
must be called in the main thread. The gateway then ends answers in progress with errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from caovand import HOME
from caovand.adapters.confinement.popen import Confinement, popen_arguments
from caovand.core.printable import one_line
from caovand.core.problem import Problem

READY = "ready"
"""The line it prints once it listens; an earlier line is a problem."""
INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH")
# per process; a process that prints more is broken, and its output is ignored
MAX_OUTPUT = 64 << 10
READ_BYTES = 4096
MAX_LINE = 500
END_S = 2.0


@dataclass(frozen=True)
class ServerKind:
    """A server: its section of the configuration, its socket and its module have the same `name`;
    `title` is for people. `backlog` is how many connections may wait for it.
    """

    name: str
    title: str
    backlog: int

    @property
    def no_library(self) -> Problem:
        """Why it cannot run where `has_library` is False."""
        return Problem(
            f"serve {self.title}",
            "the library aiohttp (3.8.1 or newer) is not installed",
            "apt install python3-aiohttp, or pip install 'aiohttp>=3.8.1' into caovan's"
            " environment",
        )


PAGE = ServerKind("page", "the page", 64)
GATEWAY = ServerKind("gateway", "the gateway", 1024)


@dataclass(frozen=True)
class ServerCommand:
    """How a server is started: with its own arguments `words`, and the daemon's sockets in
    `runtime`.

    The process gets only those variables of `environ` that it needs: others may be secrets.
    """

    kind: ServerKind
    words: Sequence[str]
    runtime: Path
    environ: Mapping[str, str]
    confinement: Confinement

    def argv(self, listener: socket.socket) -> list[str]:
        """The command line of a server on this socket."""
        isolated = ["-I"] if sys.flags.isolated else []
        sockets = ["--listener", str(listener.fileno()), "--socket"]
        sockets += [str(self.runtime / self.kind.name), "--parent", str(os.getpid())]
        return [sys.executable, *isolated, "-m", f"caovand.{self.kind.name}", *self.words, *sockets]

    def variables(self) -> dict[str, str]:
        """Its environment."""
        kept = {name: self.environ[name] for name in INHERITED if name in self.environ}
        folders = [HOME, *filter(None, [self.environ.get("PYTHONPATH", "")])]
        return {**kept, "PYTHONPATH": os.pathsep.join(folders), "MALLOC_ARENA_MAX": "2"}


class ServerProcess:
    """A running server on the socket `listener`.

    `on_line` is called with each line of its output; `on_end` with its exit status, unless we
    stopped it.
    """

    def __init__(
        self,
        command: ServerCommand,
        listener: socket.socket,
        on_line: Callable[[str], None],
        on_end: Callable[[int], None],
    ) -> None:
        """Start it on the running loop; raises OSError on failure."""
        self._on_line, self._on_end = on_line, on_end
        self._loop = asyncio.get_running_loop()
        self._read, self._seen = b"", 0
        self._output, write_end = os.pipe()
        try:
            argv, env = command.argv(listener), command.variables()
            with popen_arguments(argv, env, command.confinement) as launch:
                self._process = subprocess.Popen(
                    **launch,
                    stdout=write_end,
                    stderr=write_end,
                    cwd="/",
                    pass_fds=(listener.fileno(),),
                )
            self._watch = self._open_pidfd()
        except OSError:
            os.close(self._output)
            raise
        finally:
            os.close(write_end)
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._on_output)
        self._loop.add_reader(self._watch, self._on_exit)

    def _open_pidfd(self) -> int:
        try:
            return os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        """The pid of its process."""
        return self._process.pid

    def end(self) -> None:
        """Stop it: the gateway sends errors to its clients, which takes at most END_S."""
        if self._watch >= 0:
            self._release()
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
                return
            self._process.kill()
            # A process that hangs in the kernel is reaped by our successor.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)

    def _on_output(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._output, READ_BYTES)
            self._seen += len(data)
            *lines, self._read = (self._read + data).split(b"\n")
            for line in lines:
                self._on_line(one_line(line.decode("utf-8", "replace")[:MAX_LINE]))
            if not data or self._seen > MAX_OUTPUT:
                self._close_output()

    def _on_exit(self) -> None:
        status = self._process.poll()
        if status is None:
            return
        while self._output >= 0:
            before = self._seen
            self._on_output()
            if self._seen == before:
                break
        self._release()
        self._on_end(status)

    def _release(self) -> None:
        self._close_output()
        self._loop.remove_reader(self._watch)
        os.close(self._watch)
        self._watch = -1

    def _close_output(self) -> None:
        if self._output >= 0:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = -1


def has_library() -> bool:
    """Whether aiohttp, which the page and the gateway need, is installed."""
    return importlib.util.find_spec("aiohttp") is not None
