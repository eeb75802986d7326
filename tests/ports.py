"""Ports for test servers; no two tests share one."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from pathlib import Path

FIRST = 10_000
BLOCK = 200
"""Ports reserved for one test process, which uses them in turn."""


def first_of_the_kernel() -> int:
    """The first of the kernel's ephemeral ports."""
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def claim_block(limit: int) -> tuple[range, socket.socket]:
    """Reserve a block of ports below `limit` for this process, for as long as the socket is open.

    The socket holds a name in the abstract namespace of Unix sockets, which disappears with the
    process.
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


# At import, so that tests that count descriptors see this one both before and after.
_block, _claim = claim_block(min(first_of_the_kernel(), 32_768))
_turns = itertools.cycle(_block)


def free_port() -> int:
    """A free TCP port that neither the kernel nor another test process will assign.

    The kernel may give an ephemeral port to an outgoing connection before the server binds it, so
    these lie below its range.
    """
    for port in itertools.islice(_turns, BLOCK):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("0.0.0.0", port))
            return port
    raise OSError(f"none of the ports from {_block[0]} to {_block[-1]} is free")
