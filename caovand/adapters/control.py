"""The daemon's ZeroMQ sockets: requests in, replies and notices out.

`control` takes every verb and belongs to the group; `status` takes the harmless ones from
anybody; `events` publishes notices. ZeroMQ gives no authentication on ipc: the rights are those
of the socket files, which are made under a umask, before which the daemon holds its lock
(binding unlinks the socket of a living daemon).
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from caovand.core import wire
from caovand.core.wire import Notice, Reply, Request, WireError

OPEN_TO_ALL = frozenset({"status", "version", "wait"})
MOST_REQUESTS = 256
# Bytes of a frame, and frames that a client may leave unread or send ahead, on the socket that is
# open to all: strangers must not fill our memory.
STRANGERS_BYTES = 4096
STRANGERS_AHEAD = 64
LONGEST_PATH = 107

Handler = Callable[[Request], Awaitable[Reply]]


class CannotBind(Exception):
    """The control sockets could not be made."""


class Control:
    """Serves `handler` on the sockets in `folder`; members of `group` may steer, else only we."""

    def __init__(self, folder: Path, group: str | None, handler: Handler) -> None:
        self._handler = handler
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._tasks: set[asyncio.Task[None]] = set()
        # Each socket has its own: who waits on the open one must not keep the group out.
        self._busy: Counter[Any] = Counter()
        gid = _gid(group)
        restricted = 0o660 if gid is not None else 0o600
        self._control = self._bind(folder / "control", zmq.ROUTER, restricted, gid)
        self._status = self._bind(folder / "status", zmq.ROUTER, 0o666, None)
        self._events = self._bind(folder / "events", zmq.PUB, restricted, gid)

    def _bind(self, path: Path, kind: int, mode: int, gid: int | None) -> Any:
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise CannotBind(
                f"cannot bind {path}: a socket path has at most {LONGEST_PATH} bytes;"
                " set RUNTIME_DIRECTORY to a shorter folder"
            )
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 200)
        strangers = mode & 0o007
        socket.setsockopt(zmq.MAXMSGSIZE, STRANGERS_BYTES if strangers else wire.MAX_BYTES)
        for mark in (zmq.SNDHWM, zmq.RCVHWM):
            socket.setsockopt(mark, STRANGERS_AHEAD if strangers else 1000)
        old = os.umask(0o777 & ~mode)
        try:
            socket.bind(f"ipc://{path}")
            if gid is not None:
                os.chown(path, -1, gid)
            os.chmod(path, mode)
        except (OSError, zmq.ZMQError) as problem:
            self._context.destroy(linger=0)
            raise CannotBind(f"cannot bind {path}: {problem}") from problem
        finally:
            os.umask(old)
        return socket

    def start(self) -> None:
        """Begin to answer."""
        for socket, allowed in ((self._control, None), (self._status, OPEN_TO_ALL)):
            self._keep(self._serve(socket, allowed))

    def publish(self, notice: Notice) -> None:
        """Send a notice to whoever listens; never waits."""
        self._keep(self._send(self._events, [wire.encode_notice(notice)]))

    async def close(self) -> None:
        """Let answers under way leave, then close the sockets."""
        await asyncio.sleep(0)
        for task in list(self._tasks):
            task.cancel()
        for socket in (self._control, self._status, self._events):
            socket.close()
        await asyncio.to_thread(self._context.term)

    def _keep(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, socket: Any, allowed: frozenset[str] | None) -> None:
        while True:
            # A frame that is there already is had without a pause: a flood must not keep the loop.
            await asyncio.sleep(0)
            frames = await socket.recv_multipart()
            # DEALER and REQ clients: identity, then (REQ) an empty frame, then one request.
            if len(frames) < 2 or len(frames) > 3 or (len(frames) == 3 and frames[1]):
                continue
            try:
                request = wire.decode_request(frames[-1])
            except WireError as problem:
                reply = Reply(problem.id, None, problem.code, problem.message, problem.hint)
                await self._send(socket, [*frames[:-1], wire.encode_reply(reply)])
                continue
            request = replace(request, trusted=allowed is None)
            if allowed is not None and request.op not in allowed:
                reply = Reply(
                    request.id,
                    code="not-permitted",
                    message=f'cannot do "{request.op}" on the status socket',
                    hint="use the control socket, which is for root and the control group",
                )
                await self._send(socket, [*frames[:-1], wire.encode_reply(reply)])
                continue
            if self._busy[socket] >= MOST_REQUESTS:
                text = "cannot answer: too many requests wait"
                reply = Reply(request.id, None, "busy", text, "try again in a moment")
                await self._send(socket, [*frames[:-1], wire.encode_reply(reply)])
                continue
            self._busy[socket] += 1
            self._keep(self._answer(socket, frames[:-1], request))

    async def _answer(self, socket: Any, envelope: list[bytes], request: Request) -> None:
        try:
            reply = await self._handler(request)
            frame = wire.encode_reply(reply)
            if len(frame) > wire.MAX_BYTES:
                text = f"cannot answer: {len(frame)} bytes are more than {wire.MAX_BYTES}"
                reply = Reply(request.id, None, "too-large", text, "ask for fewer lines")
                frame = wire.encode_reply(reply)
            await self._send(socket, [*envelope, frame])
        except Exception as problem:
            # A fault of ours: the client is told, the loop's exception handler logs the rest.
            text = f'cannot do "{request.op[:64]}": {type(problem).__name__} in caovand'
            reply = Reply(request.id, None, "internal", text, "look in the daemon's log, report it")
            await self._send(socket, [*envelope, wire.encode_reply(reply)])
            raise
        finally:
            self._busy[socket] -= 1

    @staticmethod
    async def _send(socket: Any, frames: list[bytes]) -> None:
        # A client that went away or does not read is its own loss.
        with contextlib.suppress(zmq.ZMQError):
            await socket.send_multipart(frames, zmq.NOBLOCK)


def _gid(group: str | None) -> int | None:
    """The id of a group that exists and that we may give files to."""
    if not group:
        return None
    try:
        entry = grp.getgrnam(group)
    except KeyError:
        return None
    ours = entry.gr_gid in (os.getegid(), *os.getgroups())
    return entry.gr_gid if os.getuid() == 0 or ours else None
