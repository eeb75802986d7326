"""Ports for the servers of tests: each is given to one test alone."""

from __future__ import annotations

import collections
import contextlib
import random
import socket
from pathlib import Path

FIRST = 10_000
MAX_KEPT = 64
"""Claims that a process keeps at once: the test of an older one has bound it, or is over."""
MAX_TRIES = 1_000

_claims: collections.deque[socket.socket] = collections.deque()


def free_port() -> int:
    """A TCP port that nobody listens on and that neither the kernel nor another test takes.

    A port that the kernel chose may be taken again, by any connection out of the machine, before
    its server binds it. These lie below the kernel's own, and a name in the abstract namespace
    of Unix sockets, which ends with its process, keeps each from the tests that run beside.
    """
    ports = range(FIRST, min(first_of_the_kernel(), 32_768))
    for port in random.SystemRandom().sample(ports, MAX_TRIES):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("0.0.0.0", port))
            _claim(port)
            return port
    raise OSError(f"none of {MAX_TRIES} ports from {ports[0]} to {ports[-1]} is free")


def first_of_the_kernel() -> int:
    """The first of the ports that the kernel gives to whoever asks for any."""
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def _claim(port: int) -> None:
    """Keep a port from other tests; OSError if one of them has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0caovan-test-port-{port}")
    except OSError:
        claim.close()
        raise
    _claims.append(claim)
    if len(_claims) > MAX_KEPT:
        _claims.popleft().close()
