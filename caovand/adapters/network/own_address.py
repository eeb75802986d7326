"""The address that this machine uses towards other hosts."""

from __future__ import annotations

import contextlib
import socket

# Addresses reserved for documentation: no machine has them, so only a default route leads there.
REMOTE_ADDRESSES = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
DISCARD_PORT = 9


def address_towards(family: int, host: str) -> str:
    """Our address on the route to a host, itself an address; OSError without a route."""
    # Connecting a UDP socket sends nothing: the kernel only chooses route and address.
    with socket.socket(family, socket.SOCK_DGRAM) as link:
        link.connect((host, DISCARD_PORT))
        return str(link.getsockname()[0])


def of_default_route() -> str | None:
    """Find our address on the default route's interface, IPv4 first; None if there is no route."""
    for family, far in REMOTE_ADDRESSES:
        with contextlib.suppress(OSError):
            return address_towards(family, far)
    return None
