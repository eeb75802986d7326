"""A listening socket that admits a bounded number of connections and rejects the rest cheaply.

Accepting is paced: a flood of connections costs a few percent of a core, and a rejected connection
never reaches the code behind the door.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import resource
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

MAX_PATH = 107
# The kernel's queue for us. Short: a client in it waits behind a flood.
BACKLOG = 32
TCP_BACKLOG = 128  # room for a whole cluster at once: a client without a place there waits a second
BATCH = 32
PAUSE_S = 0.016  # after a batch with someone turned away: 2,000 connections/s at most
EXHAUSTED_S = 1.0  # until the next try where the process has no descriptor left
# Kept for the engine's pipes, probes and the daemon's files.
SPARE_DESCRIPTORS = 64
_UCRED = struct.Struct("iII")  # pid, uid, gid
_SO_PEERGROUPS = 59  # which Python has no name for

Serve = Callable[[socket.socket], Awaitable[None]]
Who = Callable[[socket.socket], Hashable]
"""Identify the peer whose quota a connection uses; raises OSError if it has already ended."""


class CannotBind(Exception):
    """A socket in one of the daemon's folders could not be created."""


@dataclass(frozen=True, kw_only=True)
class Quota:
    """The limits of a door: `in_all` connections at a time, `per_peer` of each, who may open
    `rate_per_peer` a second (None: any number), all together ten times that.

    A peer that `is_favoured` may have `per_favoured`, at any rate, and such peers may use
    `reserved` more connections.
    """

    in_all: int
    per_peer: int
    rate_per_peer: int | None = None
    is_favoured: Callable[[Hashable], bool] = lambda peer: False
    reserved: int = 0
    per_favoured: int = 0


class Door:
    """Run `serve` for each connection to `listener` that `quota` admits, and close it afterwards.

    `who` identifies the peer. `refusal` is sent to a rejected connection. A connection opens
    `descriptors_each` in addition to its own.
    """

    _promised: ClassVar[int] = 0
    """Descriptors that connections of all doors have opened or may open, without the connections'
    own.

    Counting open ones is not enough: a batch is admitted before its first connection opens any.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Serve,
        who: Who,
        quota: Quota,
        *,
        refusal: bytes = b"",
        descriptors_each: int = 0,
    ) -> None:
        self._listener, self._serve, self._who, self._quota = listener, serve, who, quota
        self._refusal, self._descriptors_each = refusal, descriptors_each
        self._loop: asyncio.AbstractEventLoop | None = None  # until the door is started
        self._inside: Counter[Hashable] = Counter()
        self._recent: Counter[Hashable] = Counter()
        self._second = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to accept, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Stop accepting, and cancel running handlers."""
        if self._listener.fileno() >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._listener)
            self._listener.close()
        for task in list(self._tasks):
            task.cancel()

    def _accept(self) -> None:
        loop, turned_away = asyncio.get_running_loop(), False
        for _ in range(BATCH):
            try:
                link, _address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError:  # out of descriptors or memory: try later
                self._pause(EXHAUSTED_S)
                return
            link.setblocking(False)
            try:
                peer = self._who(link)
            except OSError:
                link.close()
                continue
            if self._has_room(peer):
                self._inside[peer] += 1
                Door._promised += self._descriptors_each
                task = loop.create_task(self._run(link))
                self._tasks.add(task)
                # A task that is cancelled before it starts runs none of its lines.
                task.add_done_callback(partial(self._release, link, peer))
            else:
                turned_away = True
                with contextlib.suppress(OSError):
                    link.send(self._refusal)
                link.close()
        if turned_away:
            self._pause(PAUSE_S)

    def _pause(self, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        loop.call_later(pause_s, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() < 0:
            return
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(self._listener, self._accept)
        except OSError:  # the kernel has no memory or no watch left
            loop.call_later(EXHAUSTED_S, self._resume)

    def _has_room(self, peer: Hashable) -> bool:
        quota, favoured = self._quota, self._quota.is_favoured(peer)
        in_all = quota.in_all + (quota.reserved if favoured else 0)
        of_peer = quota.per_favoured if favoured else quota.per_peer
        if self._inside.total() >= in_all or self._inside[peer] >= of_peer:
            return False
        rate = quota.rate_per_peer
        if rate is not None and not favoured:
            second = int(asyncio.get_running_loop().time())
            if second != self._second:
                self._second = second
                self._recent.clear()
            if self._recent.total() >= 10 * rate or self._recent[peer] >= rate:
                return False
            self._recent[peer] += 1
        return self._may_open()

    def _may_open(self) -> bool:
        free = spare_descriptors() - Door._promised
        return free - self._descriptors_each > SPARE_DESCRIPTORS

    async def _run(self, link: socket.socket) -> None:
        # A client that disconnects, or does not read, harms only itself.
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await self._serve(link)

    def _release(self, link: socket.socket, peer: Hashable, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        link.close()
        Door._promised -= self._descriptors_each
        self._inside[peer] -= 1
        if not self._inside[peer]:
            del self._inside[peer]


def peer_uid(link: socket.socket) -> int:
    """The user at the other end of a connected Unix socket, at the time it listened or
    connected."""
    return peer(link)[1]


def peer(link: socket.socket) -> tuple[int, int, int]:
    """The process at the other end of a connected Unix socket, its user and its group."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(credentials)
    return pid, uid, gid


def peer_groups(link: socket.socket) -> set[int]:
    """The supplementary groups of the process at the other end of a connected Unix socket."""
    # socket.getsockopt() returns at most 256 of them.
    libc = ctypes.CDLL(None, use_errno=True)
    groups, size = (ctypes.c_uint * 0)(), ctypes.c_uint(0)
    while libc.getsockopt(
        link.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, groups, ctypes.byref(size)
    ):
        number = ctypes.get_errno()
        if number != errno.ERANGE:  # some kernels lack it, such as gVisor's
            return set()
        groups = (ctypes.c_uint * (size.value // ctypes.sizeof(ctypes.c_uint)))()
    return set(groups)


def spare_descriptors() -> int:
    """The number of descriptors that this process may still open."""
    with contextlib.suppress(OSError):
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/proc/self/fd"))
    return 0


def unix_listener(path: Path, mode: int, gid: int | None) -> socket.socket:
    """A socket listening at `path`, created under a umask: its mode is right from the start."""
    check_length(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    old = os.umask(0o777 & ~mode)
    try:
        # Left by a daemon that was killed; the lock proves that none is running.
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


def peer_address(link: socket.socket) -> str:
    """The address at the other end of a TCP connection, without its port."""
    return str(link.getpeername()[0])


def tcp_listener(host: str, port: int) -> socket.socket:
    """A socket listening on the numeric address `host`; raises OSError on failure."""
    numeric = socket.AI_NUMERICHOST
    (family, kind, _, _, address), *_ = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=numeric
    )
    listener = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(TCP_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def check_length(path: Path) -> None:
    """Raise CannotBind for a path that is too long for a socket."""
    if len(os.fsencode(path)) > MAX_PATH:
        raise CannotBind(
            f"cannot bind {path}: a socket path has at most {MAX_PATH} bytes;"
            " set RUNTIME_DIRECTORY to a shorter folder"
        )
