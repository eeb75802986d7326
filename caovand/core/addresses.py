"""What an address means."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether this is this machine itself."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
