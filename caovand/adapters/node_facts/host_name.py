"""Resolve this host's own name, on whose address programs such as Gloo listen without an
interface."""

from __future__ import annotations

import socket
from contextlib import suppress

LOOPBACK = "127.0.0.1"


def address_of_host_name() -> str:
    """The first of its addresses that belongs to this machine; loopback if there is none, as in
    Gloo.

    Debian writes 127.0.1.1 for the name into /etc/hosts.
    """
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return LOOPBACK
    for family, kind, _, _, end in found:
        with suppress(OSError), socket.socket(family, kind) as tried:
            tried.bind(end)
            return str(end[0])
    return LOOPBACK
