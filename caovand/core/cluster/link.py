"""Whether the ranks of the head and of a worker can reach each other's ports.

Ranks rendezvous at a port of the head; then each listens on free ports of its node's own address,
which need not be on the network where they meet. Before a start the head opens both kinds of port
and sends its workers a *probe*: each opens a port on its own address, connects to the head's ports,
and reports. Then the head connects to the worker's port.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from caovand.core.document import (
    PartReader,
    one_of,
    optional,
    record,
    require,
    row,
    string,
    table,
    whole,
)

MAX_TEXT, MAX_NAME = 128, 256
LARGE_PACKETS_LOST = "large packets are lost"
"""The failure of a connection that passes small packets but not large ones."""
Trial = Literal[
    "listen-rendezvous", "listen-head", "listen-worker",
    "report",
    "reach-rendezvous", "reach-head", "reach-worker",
]  # fmt: skip
"""The trials of a probe: to listen on each port, to receive the worker's report, and to reach each
port from the other node."""


@dataclass(frozen=True)
class Probe:
    """The ports of the head to connect to, each a (host, port); `token` differs for each probe."""

    token: str
    rendezvous: tuple[str, int]
    head: tuple[str, int]


@dataclass(frozen=True)
class ProbeReport:
    """A worker's results of a probe: the reason for each of its trials that failed.

    The worker listens on `port`; 0 if it cannot. For the connection to the rendezvous port, `own`
    is its local address and `seen` its address as the head sees it, "" if the connection failed.
    `joined` is the address at which the worker reaches the head's daemon.
    """

    token: str
    port: int = 0
    failures: Mapping[Trial, str] = field(default_factory=dict)
    own: str = ""
    seen: str = ""
    joined: str = ""


@dataclass(frozen=True)
class LinkState:
    """The link between the head and a worker: the reason for each trial that failed.

    Ranks rendezvous at `host` and `port`; `bound` is the address of `host` on the head. The head's
    connection to the worker took `connect_s`. `report` is the worker's, empty if it is missing.
    """

    host: str
    port: int
    bound: str = ""
    failures: Mapping[Trial, str] = field(default_factory=dict)
    connect_s: float = 0.0
    report: ProbeReport = ProbeReport("")

    @property
    def works(self) -> bool:
        """Whether both nodes can reach each other."""
        return not self.failures


def handshake_words(token: str) -> tuple[bytes, bytes]:
    """The connecting side's challenge and the listener's reply, both derived from the token.

    Others on the network can read them; they are valid for one probe only.
    """
    asks, answers = (
        hashlib.blake2b(f"{token} {side}".encode(), digest_size=32).hexdigest().encode()
        for side in ("asks", "answers")
    )
    return asks, answers


def link_document(link: LinkState | None) -> dict[str, Any] | None:
    """A link as part of the response to the op `cluster`; None if it was not checked."""
    if link is None:
        return None
    return {"works": link.works, "connect_s": round(link.connect_s, 6)}


def _printable(max_chars: int) -> PartReader[str]:
    return require(string(max_chars), str.isprintable, "has characters that are not printable")


_TEXT, _PORT = _printable(MAX_TEXT), whole(high=(1 << 16) - 1)
_PLACE = row(_printable(MAX_NAME), _PORT)
read_probe: PartReader[Probe | None] = optional(
    record(Probe, {"token": _TEXT, "rendezvous": _PLACE, "head": _PLACE})
)
"""Read the document of a probe."""
read_probe_report: PartReader[ProbeReport | None] = optional(record(ProbeReport, {
    **dict.fromkeys(("token", "own", "seen", "joined"), _TEXT),
    "port": _PORT,
    "failures": table(_TEXT, name=one_of(get_args(Trial))),
}))  # fmt: skip
"""Read the document of a worker's results."""
