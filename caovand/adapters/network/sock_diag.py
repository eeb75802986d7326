"""Ask the kernel about single TCP sockets (NETLINK_SOCK_DIAG), as `ss` does.

Reading /proc/net/tcp walks the table of all connections: 5 ms and more each time on a host with
much memory, however few there are. Layouts: linux/inet_diag.h.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from caovand.adapters.network import netlink

_SOCK_DIAG = 4  # the netlink protocol
_BY_FAMILY = 20
_ANY = 0xFFFFFFFF
_NO_COOKIE = b"\xff" * 8
LISTENING = 10
_ASKED = struct.Struct("=BBBxI")
_SOCKET = struct.Struct("!HH16s16s4x8s")
_ANSWER = struct.Struct("=BBBB48s12xII")
_UNSUPPORTED = frozenset(
    {
        errno.EACCES, errno.EAFNOSUPPORT, errno.EINVAL, errno.ENOENT, errno.EOPNOTSUPP,
        errno.EPERM, errno.EPROTONOSUPPORT,
    }
)  # fmt: skip


class Unsupported(Exception):
    """This kernel, or our confinement, does not answer such requests."""


@dataclass(frozen=True)
class SocketEntry:
    """One socket: its local address and its state (linux/tcp_states.h); inode 0: no process has
    it.
    """

    address: str
    port: int
    state: int
    uid: int
    inode: int


def listening(port: int) -> list[SocketEntry]:
    """The sockets that listen on a port, on any address; raises Unsupported, or OSError."""
    query = _SOCKET.pack(port, 0, b"", b"", _NO_COOKIE)
    families = (socket.AF_INET, socket.AF_INET6)
    sockets = (
        entry for family in families for entry in _ask(family, netlink.DUMP, 1 << LISTENING, query)
    )
    try:
        return [entry for entry in sockets if entry.port == port]
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise Unsupported from error
        raise


def other_end(link: socket.socket) -> SocketEntry | None:
    """The socket at the other end of a TCP connection of ours, if it is on this machine.

    It may be a listener, if the connection has no socket yet; raises OSError. Call `listening`
    first, which finds out whether the kernel answers such requests.
    """
    here, there = link.getsockname(), link.getpeername()
    ends = (
        socket.inet_pton(link.family, end[0].partition("%")[0]).ljust(16, b"\0")
        for end in (there, here)
    )
    query = _SOCKET.pack(there[1], here[1], *ends, _NO_COOKIE)
    try:
        return next(_ask(link.family, 0, _ANY, query), None)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def _ask(family: int, flags: int, states: int, asked: bytes) -> Iterator[SocketEntry]:
    body = _ASKED.pack(family, socket.IPPROTO_TCP, 0, states) + asked
    return map(_parse_entry, netlink.ask(_SOCK_DIAG, _BY_FAMILY, flags, body))


def _parse_entry(message: bytes) -> SocketEntry:
    family, state, _, _, ends, uid, inode = _ANSWER.unpack_from(message)
    port, _, address, _, _ = _SOCKET.unpack(ends)
    length = 4 if family == socket.AF_INET else 16
    host = socket.inet_ntop(family, address[:length])
    return SocketEntry(host, port, state, uid, inode)
