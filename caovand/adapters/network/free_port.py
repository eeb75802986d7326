"""A free port for a server that runs only for a moment."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A loopback port that nobody used a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
