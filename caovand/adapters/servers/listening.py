"""TCP sockets that listen on an ADDRESS:PORT of the configuration.

systemd keeps the sockets of the daemon's servers while the daemon restarts (the unit's
FileDescriptorStoreMax): new clients wait instead of being refused.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

from caovand.adapters.system.notify import Notifier
from caovand.core.addresses import split_address

FIRST_FD = 3  # of those that systemd passes


def listen_on(listen: str, backlog: int) -> socket.socket:
    """A listening socket on ADDRESS:PORT; raises OSError on failure."""
    family, address = _resolve(listen)
    return socket.create_server(
        address,
        family=family,
        backlog=backlog,
        dualstack_ipv6=family == socket.AF_INET6 and socket.has_dualstack_ipv6(),
    )


def _resolve(listen: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    host, port = split_address(listen)
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = addresses[0]
    return family, (str(address[0]), int(address[1]))


class Listeners:
    """The listening sockets of the daemon's servers, each with the server's name."""

    def __init__(self, environ: Mapping[str, str], notifier: Notifier) -> None:
        self._notifier = notifier
        self._sockets_from_systemd = _sockets_from_systemd(environ)

    def listen(self, name: str, listen: str, backlog: int) -> socket.socket:
        """The socket that an earlier daemon listened with, or a new one; raises OSError if there is
        neither."""
        before = self._sockets_from_systemd.pop(name, None)
        if before is not None:
            if (before.family, before.getsockname()[:2]) == _resolve(listen):
                before.listen(backlog)
                return before
            before.close()
        self._notifier.forget(name)  # the socket of a previous address
        listener = listen_on(listen, backlog)
        self._notifier.keep(name, listener.fileno())
        return listener

    def forget(self, name: str) -> None:
        """Close it: nobody listens there any more, nor after the daemon's next start."""
        self._notifier.forget(name)
        if before := self._sockets_from_systemd.pop(name, None):
            before.close()


def _sockets_from_systemd(environ: Mapping[str, str]) -> dict[str, socket.socket]:
    """The sockets that systemd has kept for this process."""
    count = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdigit():
        return {}
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    found: dict[str, socket.socket] = {}
    for number, name in zip(range(FIRST_FD, FIRST_FD + int(count)), names, strict=False):
        with contextlib.suppress(OSError):  # not a socket: not one of ours
            os.set_inheritable(number, False)
            found[name] = socket.socket(fileno=number)
    return found
