"""A TCP socket that listens on what the configuration calls ADDRESS:PORT."""

from __future__ import annotations

import socket

from caovand.core.addresses import split_address


def listen_on(listen: str, backlog: int) -> socket.socket:
    """A listening socket on ADDRESS:PORT; OSError where that cannot be."""
    host, port = split_address(listen)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return socket.create_server(
        address[:2],
        family=family,
        backlog=backlog,
        dualstack_ipv6=family == socket.AF_INET6 and socket.has_dualstack_ipv6(),
    )
