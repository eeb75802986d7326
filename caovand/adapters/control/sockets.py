"""The ZeroMQ sockets behind their gates, the open socket, and the page's own."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from caovand.adapters.admission.door import (
    CannotBind,
    Door,
    Quota,
    Serve,
    Who,
    check_length,
    peer,
    peer_groups,
    peer_uid,
    spare_descriptors,
    unix_listener,
)
from caovand.adapters.admission.gate import DESCRIPTORS_PER_CONNECTION, Gate, inner_folder
from caovand.adapters.admission.zmtp import Messages
from caovand.adapters.control.lines import (
    BUSY,
    GATEWAY_REQUESTS,
    PAGE_REQUESTS,
    SERVER_REQUESTS,
    Lines,
    RequestHandler,
    not_permitted,
)
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Notice, Reply, Request, WireError

MAX_REQUESTS = 256
MAX_WAITS = 64  # they may last a day, and must not block other requests
MAX_LINKS = 64
MAX_STRANGERS = 64
STRANGERS_EACH = 8
STRANGERS_RATE = 20  # requests a second of one user
SERVER_LINKS = 8  # more than page or gateway open at a time
SPARE_LINKS = 8  # more, for root and ourselves
ENVELOPE_BYTES = 1024  # of a message, without the request
TOPIC_BYTES = 1024  # a greeting, and what to subscribe to
CLOSE_S = 2.0
MAX_UNREAD = 64  # messages that a `control` client may leave unread


@dataclass(frozen=True)
class _ListeningSocket:
    """A socket's file with its mode and group, who serves it, and whom it admits how often."""

    name: str
    mode: int
    gid: int | None
    serve: Serve
    who: Who
    quota: Quota
    descriptors_each: int = 0
    refusal: bytes = b""


def _quota_of_members() -> Quota:
    """The connections of those who may steer, of whom root and our own user have some more."""
    links = min(MAX_LINKS, spare_descriptors() // 16)
    return Quota(
        in_all=links,
        per_peer=max(links // 2, 1),
        is_favoured=lambda uid: uid in (0, os.geteuid()),
        reserved=SPARE_LINKS,
        per_favoured=links + SPARE_LINKS,
    )


class Control:
    """Serve `handler` on the sockets in `folder`; root, our user and members of `group` may steer.

    Admission to a socket does not depend on its mode, which an engine of our user may change. Each
    socket but `status` has a name, for which `admits` may refuse a process.
    """

    def __init__(
        self,
        folder: Path,
        group: str | None,
        handler: RequestHandler,
        admits: Callable[[str, int], bool] = lambda name, pid: True,
    ) -> None:
        self._handler = handler
        self._context: zmq.asyncio.Context = zmq.asyncio.Context()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: Counter[bool] = Counter()
        self._doors: list[Door] = []
        gid = _assignable_gid(group)
        try:
            inner = inner_folder(folder)
            self._control = self._bind(inner / "control", zmq.ROUTER, MAX_UNREAD)
            self._events = self._bind(inner / "events", zmq.PUB, 1000)
            for endpoint in self._sockets(inner, gid, partial(_client_uid, admits)):
                listener = unix_listener(folder / endpoint.name, endpoint.mode, endpoint.gid)
                self._doors.append(
                    Door(
                        listener,
                        endpoint.serve,
                        endpoint.who,
                        endpoint.quota,
                        descriptors_each=endpoint.descriptors_each,
                        refusal=endpoint.refusal,
                    )
                )
        except CannotBind:
            for door in self._doors:
                door.close()
            self._context.destroy(linger=0)
            raise

    def _sockets(
        self, inner: Path, gid: int | None, client_uid: Callable[..., Any]
    ) -> tuple[_ListeningSocket, ...]:
        """Every socket: whom its mode admits, what it answers, and how often it may be asked."""
        restricted, own = 0o660 if gid is not None else 0o600, 0o600
        members, each = _quota_of_members(), Quota(in_all=SERVER_LINKS, per_peer=SERVER_LINKS)
        strangers = Quota(
            in_all=MAX_STRANGERS, per_peer=STRANGERS_EACH, rate_per_peer=STRANGERS_RATE
        )
        # ZeroMQ's handshake takes longer than a short request and its answer.
        short = Lines(self._reply, wire.OPEN_TO_ALL, trusted=True).serve
        follow = partial(_follow, wire.MAX_BYTES + ENVELOPE_BYTES)
        control = Gate(inner / "control", follow, None, short)
        events = Gate(inner / "events", partial(_follow, TOPIC_BYTES), TOPIC_BYTES, None)
        status = Lines(self._reply, wire.OPEN_TO_ALL, trusted=False)
        page = Lines(self._reply, PAGE_REQUESTS, trusted=True)
        gateway = Lines(self._reply, GATEWAY_REQUESTS, trusted=True)
        return (
            _ListeningSocket(
                "control", restricted, gid, control.serve, partial(client_uid, "control", gid),
                members, DESCRIPTORS_PER_CONNECTION,
            ),
            _ListeningSocket(
                "events", restricted, gid, events.serve, partial(client_uid, "events", gid),
                members, DESCRIPTORS_PER_CONNECTION,
            ),
            _ListeningSocket(
                "status", 0o666, None, status.serve, peer_uid, strangers, refusal=BUSY
            ),
            _ListeningSocket(
                "page", own, None, page.serve, partial(client_uid, "page", None), each
            ),
            _ListeningSocket(
                "gateway", own, None, gateway.serve, partial(client_uid, "gateway", None), each
            ),
        )  # fmt: skip

    def _bind(self, path: Path, kind: int, ahead: int) -> Any:
        check_length(path)
        made = self._context.socket(kind)
        made.setsockopt(zmq.LINGER, 200)
        # The folder is closed to other users, but not to an engine of ours.
        made.setsockopt(zmq.IPC_FILTER_PID, os.getpid())
        made.setsockopt(zmq.MAXMSGSIZE, wire.MAX_BYTES)
        for mark in (zmq.SNDHWM, zmq.RCVHWM):
            made.setsockopt(mark, ahead)
        try:
            made.bind(f"ipc://{path}")
        except zmq.ZMQError as problem:
            raise CannotBind(f"cannot bind {path}: {problem}") from problem
        return made

    def start(self) -> None:
        """Start answering."""
        self._keep(self._serve())
        for door in self._doors:
            door.start()

    def publish(self, notice: Notice) -> None:
        """Send a notice to all listeners without waiting."""
        self._keep(self._send(self._events, [wire.encode_notice(notice)]))

    async def close(self) -> None:
        """Let running answers finish, then close the sockets."""
        await asyncio.sleep(0)
        for task in list(self._tasks):
            task.cancel()
        for own in (self._control, self._events):
            own.close()
        # Sent answers pass through the gates, so those close last. libzmq may take forever.
        with contextlib.suppress(asyncio.TimeoutError, RuntimeError):
            await asyncio.wait_for(asyncio.to_thread(self._context.term), CLOSE_S)
        for door in self._doors:
            door.close()

    def _keep(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self) -> None:
        while True:
            # A frame that is already there is read without a pause: a flood must not occupy the
            # loop.
            await asyncio.sleep(0)
            try:
                frames = await self._control.recv_multipart()
            except (zmq.ZMQError, MemoryError) as problem:
                context = {"message": "cannot read the control socket", "exception": problem}
                asyncio.get_running_loop().call_exception_handler(context)
                await asyncio.sleep(1.0)
                continue
            # DEALER and REQ clients: identity, then (REQ) an empty frame, then one request.
            if len(frames) < 2 or len(frames) > 3 or (len(frames) == 3 and frames[1]):
                continue
            try:
                request = wire.decode_request(frames[-1])
            except WireError as problem:
                reply = Reply(problem.id, None, problem.code, problem.message, problem.hint)
                await self._send(self._control, [*frames[:-1], wire.encode_reply(reply)])
                continue
            waits = request.op == "wait"
            if self._busy[waits] >= (MAX_WAITS if waits else MAX_REQUESTS):
                text = "cannot answer: too many pending requests"
                reply = Reply(request.id, None, "busy", text, "try again in a moment")
                await self._send(self._control, [*frames[:-1], wire.encode_reply(reply)])
                continue
            self._busy[waits] += 1
            self._keep(self._answer(frames[:-1], request))

    async def _answer(self, envelope: list[bytes], request: Request) -> None:
        try:
            permitted = request.op not in SERVER_REQUESTS
            reply = await self._reply(request) if permitted else not_permitted(request)
            frame = wire.encode_reply(reply)
            if len(frame) > wire.MAX_BYTES:
                text = f"cannot answer: {len(frame)} bytes are more than {wire.MAX_BYTES}"
                reply = Reply(request.id, None, "too-large", text, "ask for fewer lines")
                frame = wire.encode_reply(reply)
            await self._send(self._control, [*envelope, frame])
        finally:
            self._busy[request.op == "wait"] -= 1

    async def _reply(self, request: Request) -> Reply:
        try:
            return await self._handler(request)
        except Exception as problem:
            # A bug of ours: the client gets an error, the loop's exception handler logs the rest.
            text = f'cannot do "{request.op[:64]}": {type(problem).__name__} in caovand'
            asyncio.get_running_loop().call_exception_handler(
                {"message": text, "exception": problem}
            )
            return Reply(request.id, None, "internal", text, "report it with the daemon's log")

    @staticmethod
    async def _send(sender: Any, frames: list[bytes]) -> None:
        # A client that disconnects or does not read harms only itself.
        with contextlib.suppress(zmq.ZMQError):
            await sender.send_multipart(frames, zmq.NOBLOCK)


def _follow(max_bytes: int, _link: object) -> Messages:
    return Messages(max_bytes)


def _client_uid(
    admits: Callable[[str, int], bool], name: str, group: int | None, link: socket.socket
) -> int:
    pid, uid, gid = peer(link)
    may = uid in (0, os.geteuid()) or (group is not None and group in {gid, *peer_groups(link)})
    # An engine that root runs may have become any user.
    if not may or not admits(name, pid):
        raise PermissionError(f"process {pid} is only allowed to read the status")
    return uid


def _assignable_gid(group: str | None) -> int | None:
    """The id of an existing group to which we may assign files."""
    if not group:
        return None
    try:
        entry = grp.getgrnam(group)
    except KeyError:
        return None
    ours = entry.gr_gid in (os.getegid(), *os.getgroups())
    return entry.gr_gid if os.getuid() == 0 or ours else None
