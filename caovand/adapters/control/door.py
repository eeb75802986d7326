"""A Unix socket that admits a bounded number of connections and turns the rest away cheaply.

Accepting is paced: a flood of connections costs a few percent of a core, and a connection that
is turned away never reaches the code behind the door.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

LONGEST_PATH = 107
# What the kernel queues for us. Short: whoever waits in it waits behind a flood.
BACKLOG = 32
BATCH = 32
PAUSE_S = 0.016  # after a batch with somebody turned away: 2,000 connections/s at most
EXHAUSTED_S = 1.0  # until the next try where the process has no descriptor left
# Kept for the engine's pipes, probes and the daemon's files.
SPARE_DESCRIPTORS = 64
_UCRED = struct.Struct("iII")  # pid, uid, gid

Serve = Callable[[socket.socket], Awaitable[None]]


class CannotBind(Exception):
    """A control socket could not be made."""


class Door:
    """Listens at `path` and runs `serve` for each connection it admits, closing it afterwards.

    `most` connections are served at a time, `each` of one user; of those, `rate` a second from one
    user (None: any number) and ten times that in all; `spare` more are for root and ourselves, who
    have no share of their own. `refusal` is sent to a connection that is
    turned away.
    """

    def __init__(
        self,
        path: Path,
        mode: int,
        gid: int | None,
        serve: Serve,
        *,
        most: int,
        each: int,
        rate: int | None = None,
        spare: int = 0,
        refusal: bytes = b"",
    ) -> None:
        self._serve, self._most, self._each = serve, most, each
        self._rate, self._spare, self._refusal = rate, spare, refusal
        self._inside: Counter[int] = Counter()
        self._recent: Counter[int] = Counter()
        self._second = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = _listen(path, mode, gid)

    def start(self) -> None:
        """Begin to accept; on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accept nobody any more and end what is being served."""
        if self._listener.fileno() >= 0:
            with contextlib.suppress(AttributeError):  # it was never opened
                self._loop.remove_reader(self._listener)
            self._listener.close()
        for task in list(self._tasks):
            task.cancel()

    def _accept(self) -> None:
        turned_away = False
        for _ in range(BATCH):
            try:
                link, _address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError:  # no descriptor, no memory: later
                self._pause(EXHAUSTED_S)
                return
            link.setblocking(False)
            uid = peer_uid(link)
            if self._has_room(uid):
                self._inside[uid] += 1
                task = self._loop.create_task(self._run(link, uid))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                turned_away = True
                with contextlib.suppress(OSError):
                    link.send(self._refusal)
                link.close()
        if turned_away:
            self._pause(PAUSE_S)

    def _pause(self, pause_s: float) -> None:
        self._loop.remove_reader(self._listener)
        self._loop.call_later(pause_s, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() < 0:
            return
        try:
            self._loop.add_reader(self._listener, self._accept)
        except OSError:  # the kernel has no memory for it, or no watch left
            self._loop.call_later(EXHAUSTED_S, self._resume)

    def _has_room(self, uid: int) -> bool:
        if self._spare and uid in (0, os.geteuid()):
            return self._inside.total() < self._most + self._spare and self._may_open()
        if self._inside.total() >= self._most or self._inside[uid] >= self._each:
            return False
        if self._rate is not None:
            second = int(self._loop.time())
            if second != self._second:
                self._second = second
                self._recent.clear()
            spent = self._recent.total() >= 10 * self._rate or self._recent[uid] >= self._rate
            if spent:
                return False
            self._recent[uid] += 1
        return self._may_open()

    @staticmethod
    def _may_open() -> bool:
        return spare_descriptors() > SPARE_DESCRIPTORS

    async def _run(self, link: socket.socket, uid: int) -> None:
        try:
            await self._serve(link)
        except (OSError, asyncio.TimeoutError):
            pass  # a client that went away, or does not read, is its own loss
        finally:
            link.close()
            self._inside[uid] -= 1
            if not self._inside[uid]:
                del self._inside[uid]


def peer_uid(link: socket.socket) -> int:
    """The user at the other end of a connected Unix socket: as which it listens, or connected."""
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(found)[1])


def spare_descriptors() -> int:
    """How many more descriptors this process may open."""
    with contextlib.suppress(OSError):
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/proc/self/fd"))
    return 0


def _listen(path: Path, mode: int, gid: int | None) -> socket.socket:
    """A listening socket at `path`, made under a umask: there is no moment with other rights."""
    check_length(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    old = os.umask(0o777 & ~mode)
    try:
        # Of a daemon that was killed; the lock says that none lives.
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        listener.bind(str(path))
        if gid is not None:
            os.chown(path, -1, gid)
        os.chmod(path, mode)
        listener.listen(BACKLOG)
    except OSError as problem:
        listener.close()
        raise CannotBind(f"cannot bind {path}: {problem.strerror}") from problem
    finally:
        os.umask(old)
    return listener


def check_length(path: Path) -> None:
    """Raise CannotBind for a path that is too long for a socket."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise CannotBind(
            f"cannot bind {path}: a socket path has at most {LONGEST_PATH} bytes;"
            " set RUNTIME_DIRECTORY to a shorter folder"
        )
