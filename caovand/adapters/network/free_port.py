"""A port for a server that is started for a moment."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port of loopback that nobody used just now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
