"""The link between a head and its workers: ZeroMQ over TCP, encrypted and authenticated by CURVE.

A peer without the cluster's key gets no further than libzmq's handshake. CURVE numbers the messages
of a connection, so that none can be replayed into it. At both ends libzmq is behind our relay: on
its own it would accept every connection until the process runs out of descriptors, and keep the
parts of an endless message until memory runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.z85 import decode as key_of

from caovand.adapters.admission.curve import Encrypted
from caovand.adapters.admission.door import (
    CannotBind,
    Door,
    Quota,
    peer_address,
    peer_uid,
    tcp_listener,
    unix_listener,
)
from caovand.adapters.admission.gate import DESCRIPTORS_PER_CONNECTION, Gate, inner_folder, relay
from caovand.adapters.network.cluster_key import KeyPairs
from caovand.core import addresses
from caovand.core.cluster.messages import MAX_BYTES
from caovand.core.problem import ProblemError

HEARTBEAT_MS, SILENCE_MS = 2000, 8000
HANDSHAKE_MS = 5000
MAX_UNREAD = 16  # messages that the peer may leave unread: each contains the whole state
RECONNECT_MS = 200
CONNECT_S = 3.0  # then reconnect: the kernel retransmits at ever longer intervals
UNREACHABLE_S = 0.5  # until the next attempt
MAX_UNHEARD = 4 * MAX_BYTES
"""Limit of bytes since the last complete message; real traffic, heartbeats included, stays
below."""
MAX_LINKS, LINKS_EACH = 128, 8
NEW_CONNECTIONS_PER_S = 20  # new connections a second from one address
SPARE_LINKS = 64  # beyond MAX_LINKS, for addresses from which a worker has connected before
MAX_KNOWN = 256
NAME, WORKERS_NAME = "cluster", "worker"

OnFrame = Callable[[bytes, bytes], None]
"""Called with a sender's identity and its frame."""


class _Doorkeeper:
    """Admit clients with the workers' key: libzmq asks for each connection
    (rfc.zeromq.org/spec/27).

    pyzmq's own authenticator sometimes leaves the first request unread.
    """

    def __init__(self, context: Any, public: bytes) -> None:
        self._key = key_of(public)
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("inproc://zeromq.zap.01")
        self._answering = asyncio.ensure_future(self._answer())

    async def _answer(self) -> None:
        while True:
            version, number, _, _, _, mechanism, *credentials = await self._socket.recv_multipart()
            known = mechanism == b"CURVE" and secrets.compare_digest(
                b"".join(credentials), self._key
            )
            verdict = (b"200", b"OK") if known else (b"400", b"unknown key")
            await self._socket.send_multipart([version, number, *verdict, b"", b""])

    def close(self) -> None:
        self._answering.cancel()
        self._socket.close()


class _Link(ABC):
    def __init__(self, context: Any, kind: int, on_frame: OnFrame) -> None:
        self._on_frame = on_frame
        self._context = context
        self._socket = context.socket(kind)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        for mark in (zmq.SNDHWM, zmq.RCVHWM):
            self._socket.setsockopt(mark, MAX_UNREAD)
        self._reading: asyncio.Task[None] | None = None

    def _begin(self) -> None:
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(0)  # queued frames are read without a pause
            frames = await self._socket.recv_multipart(copy=False)
            self._heard(frames[-1])
            if len(frames) <= 2:
                self._on_frame(frames[0].bytes if len(frames) == 2 else b"", frames[-1].bytes)

    @abstractmethod
    def _heard(self, frame: zmq.Frame) -> None:
        """Record that the message ending with this frame is complete."""

    async def _send(self, frames: list[bytes]) -> bool:
        # A peer that does not read gets the next message instead.
        try:
            await self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as problem:
            return problem.errno != zmq.EHOSTUNREACH
        return True

    def close(self) -> None:
        """Close the link."""
        if self._reading is not None:
            self._reading.cancel()
        self._socket.close()


def numeric_address(address: str) -> str:
    """HOST:PORT with the host name resolved, as libzmq needs it for listening; blocks.

    Raises ProblemError.
    """
    host, port = addresses.split_address(address)
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as problem:
        fact, remedy = f"{host}: {problem.strerror}", "correct [cluster] head, or the host's name"
        raise ProblemError(f"listen for workers on {address}", fact, remedy) from None
    return addresses.join_address(str(resolved), port)


class HeadLink(_Link):
    """The head's side, listening on the numeric `address`. Raises ProblemError.

    `runtime` is the folder of the daemon's sockets.
    """

    def __init__(self, address: str, pairs: KeyPairs, on_frame: OnFrame, runtime: Path) -> None:
        cannot = f"listen for workers on {address}"
        try:
            self._inner = inner_folder(runtime) / NAME
            listener = tcp_listener(*addresses.split_address(address))
        except CannotBind as problem:
            raise ProblemError(cannot, str(problem), "restart caovan") from None
        except OSError as problem:
            remedy = "correct [cluster] head, which must be an address of this machine"
            raise ProblemError(cannot, str(problem.strerror), remedy) from None
        self._known: dict[str, None] = {}
        self._followers: dict[bytes | str, Encrypted] = {}
        self._door = Door(
            listener,
            self._admit,
            peer_address,
            Quota(
                in_all=MAX_LINKS,
                per_peer=LINKS_EACH,
                rate_per_peer=NEW_CONNECTIONS_PER_S,
                is_favoured=self._known.__contains__,
                reserved=SPARE_LINKS,
                per_favoured=LINKS_EACH,
            ),
            descriptors_each=DESCRIPTORS_PER_CONNECTION,
        )
        context: Any = zmq.asyncio.Context()
        self._doorkeeper = _Doorkeeper(context, pairs.worker_public)
        super().__init__(context, zmq.ROUTER, on_frame)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.curve_server = True
        self._socket.curve_secretkey = pairs.head_secret
        self._socket.curve_publickey = pairs.head_public
        try:
            self._socket.bind(f"ipc://{self._inner}")
        except zmq.ZMQError as problem:
            self.close()
            raise ProblemError(cannot, f"{self._inner}: {problem}", "restart caovan") from None
        self._begin()
        self._door.start()

    async def _admit(self, link: socket.socket) -> None:
        """Admit a connection, and remember its address once it has proved to be a worker's."""
        address = peer_address(link)

        def is_worker() -> None:
            self._known.pop(address, None)
            self._known[address] = None
            if len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]

        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The worker's heartbeats end a silent connection, unless our data to it waits in the
        # kernel.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)
        follower = Encrypted(MAX_UNHEARD, is_worker)
        names = []

        def follow(inside: socket.socket) -> Encrypted:
            names.append(inside.getsockname())
            self._followers[names[0]] = follower
            return follower

        try:
            await Gate(self._inner, follow).serve(link)
        finally:
            for name in names:
                del self._followers[name]

    def _heard(self, frame: zmq.Frame) -> None:
        # We own the other end of libzmq's connection. If it was closed meanwhile, its number may
        # have been reused.
        with contextlib.suppress(OSError):
            inside = socket.socket(fileno=int(frame.get("__fd")))
            try:
                follower = self._followers.get(inside.getpeername())
            finally:
                inside.detach()
            if follower is not None:
                follower.heard()

    async def send(self, identity: bytes, frame: bytes) -> bool:
        """Send a frame to the worker with this identity; False if its connection is closed."""
        return await self._send([identity, frame])

    def close(self) -> None:
        """Stop listening."""
        super().close()
        self._doorkeeper.close()
        self._door.close()
        self._context.destroy(linger=0)


class WorkerLink(_Link):
    """A worker's side, which connects to the head at `address` as soon as the head is up.

    `rejected`: the last connection ended before both sides had proved that they have the key. A
    head that has another key, or no room, closes the connection silently. `runtime` is the folder
    of the daemon's sockets. Raises ProblemError.
    """

    _count = itertools.count()

    def __init__(self, address: str, pairs: KeyPairs, on_frame: OnFrame, runtime: Path) -> None:
        cannot = f"connect to the head at {address}"
        self._address = addresses.split_address(address)
        self._follower = Encrypted(MAX_UNHEARD, to_server=True)
        self.rejected = False
        try:
            self._inner = inner_folder(runtime) / f"{WORKERS_NAME}{next(self._count)}"
            listener = unix_listener(self._inner, 0o600, None)
        except CannotBind as problem:
            raise ProblemError(cannot, str(problem), "restart caovan") from None
        self._door = Door(
            listener,
            self._relay_to_head,
            peer_uid,
            Quota(in_all=1, per_peer=1),
            descriptors_each=1,
        )
        super().__init__(zmq.asyncio.Context(), zmq.DEALER, on_frame)
        self._socket.curve_serverkey = pairs.head_public
        self._socket.curve_secretkey = pairs.worker_secret
        self._socket.curve_publickey = pairs.worker_public
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._door.start()
        self._socket.connect(f"ipc://{self._inner}")
        self._begin()

    async def _relay_to_head(self, inside: socket.socket) -> None:
        """Relay bytes between libzmq and the head."""
        try:
            link = await asyncio.wait_for(_open_connection(*self._address), CONNECT_S)
        except (OSError, asyncio.TimeoutError):
            self.rejected = False
            await asyncio.sleep(UNREACHABLE_S)
            return
        with link:
            self._follower = follower = Encrypted(MAX_UNHEARD, self._joined, to_server=True)
            await relay(link, inside, follower)
            self.rejected = not follower.asks

    def _joined(self) -> None:
        self.rejected = False

    def _heard(self, frame: zmq.Frame) -> None:
        self._follower.heard()

    async def send(self, frame: bytes) -> None:
        """Send a frame to the head."""
        await self._send([frame])

    def close(self) -> None:
        """Close the link."""
        super().close()
        self._context.destroy(linger=0)
        self._door.close()
        with contextlib.suppress(OSError):
            self._inner.unlink()


async def _open_connection(host: str, port: int) -> socket.socket:
    """A connection to the first address of `host` that accepts one; raises OSError."""
    loop = asyncio.get_running_loop()
    problem = OSError(f"{host} has no address")
    for family, kind, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        link = socket.socket(family, kind | socket.SOCK_NONBLOCK)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(link, address)
        except OSError as failed:
            link.close()
            problem = failed
        except BaseException:
            link.close()
            raise
        else:
            return link
    raise problem
