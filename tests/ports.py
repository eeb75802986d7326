"""Ports for test servers: each belongs to a single test."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from pathlib import Path

FIRST = 10_000
BLOCK = 200
"""Ports that a process of tests has to itself; it gives them out in turn."""


def first_of_the_kernel() -> int:
    """The first of the ports that the kernel gives to whoever asks for any."""
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def claim_block(limit: int) -> tuple[range, socket.socket]:
    """A block of ports below `limit` that no other process has, while the socket is open.

    The socket holds a name in the abstract namespace of Unix sockets, which ends with its process.
    """
    starts = range(FIRST, limit - BLOCK + 1, BLOCK)
    for start in random.SystemRandom().sample(starts, len(starts)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0caovan-tests-ports-{start}")
        except OSError:
            claim.close()
            continue
        return range(start, start + BLOCK), claim
    raise OSError(f"all {len(starts)} blocks of {BLOCK} ports from {FIRST} on are taken by tests")


# On import: tests that count the process's descriptors meet this one before and after.
_block, _claim = claim_block(min(first_of_the_kernel(), 32_768))
_turns = itertools.cycle(_block)


def free_port() -> int:
    """A TCP port that nobody listens on and that neither the kernel nor another process takes.

    A port that the kernel chose may be taken again, by any connection out of the machine, before
    its server binds it: these lie below the kernel's own.
    """
    for port in itertools.islice(_turns, BLOCK):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("0.0.0.0", port))
            return port
    raise OSError(f"none of the ports from {_block[0]} to {_block[-1]} is free")
