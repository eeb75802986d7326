"""Find out who uses a TCP port: vLLM 0.21 shares a port silently (SO_REUSEPORT).

The kernel answers about single sockets; where it does not, /proc/net is read.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caovand.adapters.network import sock_diag
from caovand.adapters.privileges import engine_user
from caovand.adapters.system import processes
from caovand.core import limits

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
CONNECTED_STATES = (1, 3, 8)  # 3: handshake not finished; 8: the peer has finished sending


@dataclass(frozen=True)
class Listener:
    """A listening socket; `pid` and `name` are None if we cannot read its owner."""

    address: str
    port: int
    uid: int
    inode: int
    pid: int | None = None
    name: str | None = None

    def __str__(self) -> str:
        who = f"{self.name} (pid {self.pid})" if self.pid else "an unreadable process"
        return f"{who} of uid {self.uid} on {self.address}:{self.port}"


def listeners(port: int) -> list[Listener]:
    """Every socket listening on `port`, on any address, with its process."""
    return with_owners(listening(port))


def listening(port: int) -> list[Listener]:
    """Find the listeners without their processes, which would require walking all of /proc."""
    try:
        return [_listener(entry) for entry in sock_diag.listening(port)]
    except sock_diag.Unsupported:
        return [listener for rows in _read_tables(port) for listener in parse(rows, port)]


def with_owners(found: Collection[Listener]) -> list[Listener]:
    """Add the process to each socket, if we can read it."""
    if not found:
        return []
    inodes = [listener.inode for listener in found]
    owners = owners_of(inodes)
    if len(owners) < len(set(inodes)) and engine_user.current() is not None:
        with contextlib.suppress(OSError):
            owners += engine_user.as_engine(owners_of, inodes)
    by_inode = {inode: (pid, name) for inode, pid, name in owners}
    return [
        replace(item, pid=owner[0], name=owner[1]) if owner else item
        for item in found
        for owner in (by_inode.get(item.inode),)
    ]


@dataclass(frozen=True)
class ConnectionEnds:
    """The two ends of a connection: the listener on its port, and the socket at its other end.

    The inode of `server` is 0 until a process accepts the connection; `server` is None if no socket
    is connected to ours.
    """

    listeners: tuple[Listener, ...]
    server: Listener | None


def ends(link: socket.socket) -> ConnectionEnds:
    """Find who is at the other end of a TCP connection of ours."""
    try:
        listeners = sock_diag.listening(link.getpeername()[1])
    except sock_diag.Unsupported:
        return _ends_in_tables(link)
    server = sock_diag.other_end(link)
    connected = server is not None and server.state in CONNECTED_STATES
    return ConnectionEnds(
        tuple(map(_listener, listeners)), _listener(server) if server and connected else None
    )


def _listener(found: sock_diag.SocketEntry) -> Listener:
    return Listener(found.address, found.port, found.uid, found.inode)


def _ends_in_tables(link: socket.socket) -> ConnectionEnds:
    here, there = _parse_end(link.getsockname()), _parse_end(link.getpeername())
    ours = f":{here[1]:04X}"  # of all clients' connections only ours has this port
    found: list[Listener] = []
    server = None
    for rows in _read_tables(there[1]):
        found.extend(parse(rows, there[1]))
        for row in rows:
            fields = row.split()
            if int(fields[3], 16) not in CONNECTED_STATES or not fields[2].endswith(ours):
                continue
            if (_socket(fields[1]), _socket(fields[2])) == (there, here):
                server = Listener(*there, int(fields[7]), int(fields[9]))
    return ConnectionEnds(tuple(found), server)


def process_with_socket(pids: Sequence[int], inode: int) -> int | None:
    """Find which of the engine's processes has this socket open; None if none is known to.

    The first that answers is used, so processes that answered before come first. Raises
    limits.NoAnswer if the engine's user cannot be asked.
    """
    try:
        return engine_user.as_engine(first_with, list(pids), f"socket:[{inode}]")
    except OSError as problem:
        raise limits.NoAnswer(
            f"cannot determine which process owns a socket: {problem}"
        ) from problem


def first_with(pids: Iterable[int], file: str) -> int | None:
    """The first process that has this file open, among those that our user can read."""
    return next((pid for pid in pids if file in _open_files(pid)), None)


def _open_files(pid: int) -> Iterator[str]:
    """The targets of the descriptors of a process that our user can read."""
    with limits.suppress_absent():
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with limits.suppress_absent():
                yield os.readlink(f"/proc/{pid}/fd/{descriptor}")


def _read_tables(port: int) -> list[list[str]]:
    """The rows of each table with this local port; there may be tens of thousands of others."""
    end = b":%04X" % port
    tables = []
    for table in TABLES:
        with limits.suppress_absent(), open(table, "rb") as file:
            rows = [row for row in file.read().splitlines() if end in row]
            ours = [row for row in rows if row.split(None, 2)[1].endswith(end)]
            tables.append([row.decode("ascii", "replace") for row in ours])
    return tables


def _parse_end(name: tuple[Any, ...]) -> tuple[str, int]:
    """A socket's address, which may name its interface, and port, as in the tables."""
    return _unmap_ipv4(name[0].partition("%")[0]), name[1]


def _socket(text: str) -> tuple[str, int]:
    host, _, number = text.partition(":")
    return _unmap_ipv4(_address(host)), int(number, 16)


def _unmap_ipv4(address: str) -> str:
    """An IPv4 address mapped into IPv6, as plain IPv4."""
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def parse(rows: Iterable[str], port: int) -> list[Listener]:
    """The rows of /proc/net/tcp or tcp6 that listen on `port`."""
    listeners = []
    for row in rows:
        fields = row.split()
        host, _, number = fields[1].partition(":")
        if int(fields[3], 16) == sock_diag.LISTENING and int(number, 16) == port:
            listeners.append(Listener(_address(host), port, int(fields[7]), int(fields[9])))
    return listeners


def _address(text: str) -> str:
    # The kernel prints 32-bit words in host byte order.
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def owners_of(inodes: Iterable[int]) -> list[tuple[int, int, str]]:
    """Each of these sockets with a process that has it open, if our user can read that."""
    owners: list[tuple[int, int, str]] = []
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        for inode in filter(None, map(wanted.get, _open_files(pid))):
            owners.append((inode, pid, processes.name_of(pid) or "?"))
    return owners
