"""Verify before each request that the engine's own processes answer on its port.

A port can change hands after the proof: an engine loses its listener, or another process of our
user shares the port (SO_REUSEPORT). The receiver of the API key is therefore verified on the very
connection that carries it: the socket at the other end must be open in a process of the engine.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection

from caovand.adapters.network import ports
from caovand.adapters.network.http import Stranger
from caovand.adapters.network.ports import Listener

FIRST_PAUSE_S = 0.002
MAX_PAUSE_S = 0.1


class Peers:
    """Knows the sockets of the engine whose processes `members` lists. May block."""

    def __init__(self, members: Callable[[], Collection[int]]) -> None:
        self._members = members
        self._pids: tuple[int, ...] = ()  # starting with the one found last
        self._known: frozenset[int] = frozenset()  # inodes of the engine's listeners

    def listening(self, port: int) -> bool:
        """Whether the engine listens on this port; raises Stranger if another process does."""
        listeners = ports.listening(port)
        self._check(port, listeners)
        return bool(listeners)

    def vet(self, link: socket.socket, expired: threading.Event) -> None:
        """Wait until the engine has accepted this connection.

        Raises Stranger if another process accepts it, OSError if it is closed first or the event is
        set.
        """
        port = link.getpeername()[1]
        pause_s = FIRST_PAUSE_S  # an idle engine accepts in this time, so one check suffices
        server = None
        while server is None or not server.inode:
            if expired.wait(pause_s):
                raise TimeoutError("no process accepted the connection")
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            server = self._server(port, link)
        # Check twice: a socket closed in between belongs to no process, so not to a stranger.
        if not self._ours(server.inode) and self._server(port, link).inode == server.inode:
            raise _stranger(port, [server])

    def _server(self, port: int, link: socket.socket) -> Listener:
        ends = ports.ends(link)
        self._check(port, ends.listeners)
        if ends.server is None:
            raise ConnectionResetError("the peer closed the connection")
        return ends.server

    def _check(self, port: int, listeners: Collection[Listener]) -> None:
        inodes = {listener.inode for listener in listeners}
        self._known = frozenset(i for i in inodes if i in self._known or self._ours(i))
        strangers = inodes - self._known
        left = (
            [listener for listener in ports.listening(port) if listener.inode in strangers]
            if strangers
            else ()
        )
        if left:
            raise _stranger(port, left)

    def _ours(self, inode: int) -> bool:
        """Whether a readable process of the engine has this socket open."""
        if self._has(inode):
            return True
        self._pids = tuple(self._members())  # the process may be new
        return self._has(inode)

    def _has(self, inode: int) -> bool:
        process = ports.process_with_socket(self._pids, inode)
        if process is None:
            return False
        self._pids = (process, *(other for other in self._pids if other != process))
        return True


def _stranger(port: int, sockets: Collection[Listener]) -> Stranger:
    who = ", ".join(map(str, ports.with_owners(sockets)))
    return Stranger(
        f"cannot share port {port} with {who}: stop it, or choose another [server] port"
    )
