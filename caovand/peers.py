"""Who answers on the engine's port: its own processes, before each request, or nobody is asked.

A port is proven once and may change hands: an engine loses its listener, or another process of our
user shares the port (SO_REUSEPORT). Who gets the API key is therefore looked up on the very
connection that carries it: the socket at its other end must be open in a process of the engine.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection

from caovand.adapters import ports
from caovand.adapters.http import Stranger
from caovand.adapters.ports import Listener

FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.1


class Peers:
    """Knows the sockets of the engine whose processes `members` lists; for threads, may block."""

    def __init__(self, members: Callable[[], Collection[int]]) -> None:
        self._members = members
        self._pids: tuple[int, ...] = ()  # who had a socket last comes first
        self._known: frozenset[int] = frozenset()  # inodes of listeners of ours

    def listening(self, port: int) -> bool:
        """Whether the engine listens on this port; Stranger where another process does."""
        found = ports.listening(port)
        self._check(port, found)
        return bool(found)

    def vet(self, link: socket.socket, expired: threading.Event) -> None:
        """Wait until the engine has accepted this connection; Stranger where another process has.

        OSError where it is closed first, or the event set.
        """
        port = link.getpeername()[1]
        pause_s = FIRST_PAUSE_S  # an engine that idles has accepted by then, and one look will do
        server = None
        while server is None or not server.inode:
            if expired.wait(pause_s):
                raise TimeoutError("nobody accepted the connection")
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            server = self._server(port, link)
        # Looked at twice: one that was closed in between is in no process, and no stranger's.
        if not self._ours(server.inode) and self._server(port, link).inode == server.inode:
            raise _stranger(port, [server])

    def _server(self, port: int, link: socket.socket) -> Listener:
        ends = ports.ends(link)
        self._check(port, ends.listeners)
        if ends.server is None:
            raise ConnectionResetError("the connection was closed at its other end")
        return ends.server

    def _check(self, port: int, listeners: Collection[Listener]) -> None:
        found = {listener.inode for listener in listeners}
        self._known = frozenset(i for i in found if i in self._known or self._ours(i))
        strangers = found - self._known
        left = [one for one in ports.listening(port) if one.inode in strangers] if strangers else ()
        if left:
            raise _stranger(port, left)

    def _ours(self, inode: int) -> bool:
        """Whether a process of the engine has this socket; one that cannot be read is none."""
        if any(map(self._holds(inode), self._pids)):
            return True
        self._pids = tuple(self._members())  # it may have been started since
        return any(map(self._holds(inode), self._pids))

    def _holds(self, inode: int) -> Callable[[int], bool]:
        def holds(pid: int) -> bool:
            if not ports.holds(pid, inode):
                return False
            self._pids = (pid, *(other for other in self._pids if other != pid))
            return True

        return holds


def _stranger(port: int, sockets: Collection[Listener]) -> Stranger:
    who = ", ".join(map(str, ports.named(sockets)))
    return Stranger(
        f"cannot share port {port} with {who}: stop it, or choose another [server] port"
    )
