"""The link between a head and its workers: ZeroMQ over TCP, encrypted and authenticated by CURVE.

Who has not the cluster's key gets no further than libzmq's handshake. CURVE numbers the messages of
a connection, so that none can be repeated into it. The head's port is a door of ours, and libzmq
listens behind it: it would accept whoever connects until the process has no descriptor left.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message
from zmq.utils.z85 import decode as key_of

from caovand.adapters.admission.curve import Handshake
from caovand.adapters.admission.door import CannotBind, Door, peer_address, tcp_listener
from caovand.adapters.admission.gate import OPENS, Gate, inner_folder
from caovand.adapters.cluster_key import Pairs
from caovand.core import addresses
from caovand.core.cluster.messages import MAX_BYTES
from caovand.core.problem import ProblemError

HEARTBEAT_MS, SILENCE_MS = 2000, 8000
HANDSHAKE_MS = 5000
AHEAD = 16  # messages that the other side may leave unread: each tells everything
RECONNECT_MS, LONGEST_RECONNECT_MS = 200, 2000
CONNECT_MS = 3000  # then anew: the kernel repeats what was lost later and later
MOST_LINKS, LINKS_EACH = 128, 8
RATE = 20  # new connections a second from one address
SPARE_LINKS = 64  # more, for addresses that a worker has come from
MOST_KNOWN = 256
NAME = "cluster"
REJECTED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
)
"""A head with another key, or with no room, ends the connection without a word: the first."""
UNREJECTED = (zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_CLOSED)  # joined, or not even connected

OnFrame = Callable[[bytes, bytes], None]
"""Takes a sender's identity and its frame."""


class _Doorkeeper:
    """Lets in who has the workers' key: libzmq asks for each connection (rfc.zeromq.org/spec/27).

    pyzmq's own authenticator sometimes leaves the first question unread.
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


class _Link:
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
            self._socket.setsockopt(mark, AHEAD)
        self._reading: asyncio.Task[None] | None = None

    def _begin(self) -> None:
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(0)  # frames that are there already come without a pause
            frames = await self._socket.recv_multipart()
            if len(frames) <= 2:
                self._on_frame(frames[0] if len(frames) == 2 else b"", frames[-1])

    async def _send(self, frames: list[bytes]) -> bool:
        # One that does not read gets the next message.
        try:
            await self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as problem:
            return problem.errno != zmq.EHOSTUNREACH
        return True

    def close(self) -> None:
        """Drop the link."""
        if self._reading is not None:
            self._reading.cancel()
        self._socket.close()


def numeric(address: str) -> str:
    """HOST:PORT with the host's address for its name, which libzmq listens on; blocking.

    Raises ProblemError.
    """
    host, port = addresses.split(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as problem:
        fact, remedy = f"{host}: {problem.strerror}", "correct [cluster] head, or the host's name"
        raise ProblemError(f"listen for workers on {address}", fact, remedy) from None
    return f"[{found}]:{port}" if ":" in str(found) else f"{found}:{port}"


class HeadLink(_Link):
    """The head's end, listening on the numeric `address`. Raises ProblemError.

    `runtime` is the folder of the daemon's sockets.
    """

    def __init__(self, address: str, pairs: Pairs, on_frame: OnFrame, runtime: Path) -> None:
        cannot = f"listen for workers on {address}"
        try:
            self._inner = inner_folder(runtime) / NAME
            listener = tcp_listener(*addresses.split(address))
        except CannotBind as problem:
            raise ProblemError(cannot, str(problem), "restart caovan") from None
        except OSError as problem:
            remedy = "correct [cluster] head; it is an address of this machine"
            raise ProblemError(cannot, str(problem.strerror), remedy) from None
        self._known: dict[str, None] = {}
        self._door = Door(
            listener,
            self._admit,
            peer_address,
            most=MOST_LINKS,
            each=LINKS_EACH,
            rate=RATE,
            favours=self._known.__contains__,
            spare=SPARE_LINKS,
            each_favoured=LINKS_EACH,
            opens=OPENS,
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
        """Let a connection in, and remember its address once it has proved to be a worker's."""
        address = peer_address(link)

        def is_worker() -> None:
            self._known.pop(address, None)
            self._known[address] = None
            if len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]

        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The worker's heartbeats end what is silent, unless what we send it waits in the kernel.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)
        await Gate(self._inner, lambda: Handshake(is_worker)).serve(link)

    async def send(self, identity: bytes, frame: bytes) -> bool:
        """Send a frame to the worker with this identity; False where its connection has ended."""
        return await self._send([identity, frame])

    def close(self) -> None:
        """Stop to listen."""
        super().close()
        self._doorkeeper.close()
        self._door.close()
        self._context.destroy(linger=0)


class WorkerLink(_Link):
    """A worker's end, connected to the head at `address` as soon as that is there.

    `rejected` says that its last connection ended before both had proved to have the key. Raises
    ProblemError.
    """

    def __init__(self, address: str, pairs: Pairs, on_frame: OnFrame) -> None:
        super().__init__(zmq.asyncio.Context(), zmq.DEALER, on_frame)
        self.rejected = False
        self._monitor = self._socket.get_monitor_socket(sum((*REJECTED, *UNREJECTED)))
        self._watching = asyncio.ensure_future(self._watch())
        self._socket.curve_serverkey = pairs.head_public
        self._socket.curve_secretkey = pairs.worker_secret
        self._socket.curve_publickey = pairs.worker_public
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, LONGEST_RECONNECT_MS)
        self._socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        self._socket.setsockopt(zmq.IPV6, 1)
        try:
            self._socket.connect(f"tcp://{address}")
        except zmq.ZMQError as problem:
            self.close()
            remedy = "correct [cluster] head"
            raise ProblemError(f"connect to the head at {address}", str(problem), remedy) from None
        self._begin()

    async def _watch(self) -> None:
        while True:
            # Not by recv_monitor_message, which knows no asyncio before pyzmq 23.1.
            event = parse_monitor_message(await self._monitor.recv_multipart())["event"]
            self.rejected = event in REJECTED

    async def send(self, frame: bytes) -> None:
        """Send a frame to the head."""
        await self._send([frame])

    def close(self) -> None:
        """Drop the link."""
        self._watching.cancel()
        self._socket.disable_monitor()
        super().close()
        self._context.destroy(linger=0)
