"""The links between nodes: whether the ranks of each reach the ports of the others.

Ranks rendezvous at a port of the head; then each listens on free ports of its node's own address,
which need not be on the network where they meet. Before a start the head sends its workers a
*probe*: each listens on a free port of its own address, connects to the ports of all others, and
reports what it *reached*. The results of both nodes are their *link*.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from caovand.core.document import PartReader, optional, record, require, row, string, table, whole

MAX_TEXT, MAX_NAME = 128, 256
MAX_TARGETS = 1024
MEETING = ""
"""The probe target where ranks rendezvous; other targets are named after their nodes."""
LARGE_PACKETS_LOST = "large packets are lost"
"""The failure of a connection that passes small packets but not large ones."""


@dataclass(frozen=True)
class PortCheck:
    """A port check: connect to each of the `targets`, (host, port) by name.

    Without targets, workers only begin to listen. `token` differs for each check.
    """

    token: str
    targets: Mapping[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class PortCheckReport:
    """A worker's probe results.

    The worker listens on `port`; 0 if it cannot, with the cause in `deaf`. `failures` maps each
    target to the reason why it was not reached, "" if it was; it stays empty until all targets have
    been tried. For the connection to the rendezvous port, `own` is its local address and `seen` its
    address as the head sees it; both are "" if the connection failed. `joined` is the address at
    which the worker reaches the head's daemon.
    """

    token: str
    port: int = 0
    deaf: str = ""
    failures: Mapping[str, str] = field(default_factory=dict)
    own: str = ""
    seen: str = ""
    joined: str = ""


@dataclass(frozen=True)
class LinkState:
    """The state of a link. Each failure says why a connection in that direction failed; "" means
    success.

    Ranks rendezvous at `host` and `port`; `meets` is the address of `host` on the head. `to_head`
    is about a connection to that place, `to_own` about one to the head's own address, `to_worker`
    about one to the worker's, which took `connect_s`. `own`, `seen` and `joined` are as in
    PortCheckReport. `head_deaf`, `own_deaf` and `worker_deaf` say why a node cannot listen at the
    rendezvous, at the head's own address or at the worker's; `unreported` says why the worker's
    report is missing.

    A link between two workers has no rendezvous: the first worker stands for the head, and
    `to_head` is about its own address.
    """

    host: str
    port: int
    to_head: str = ""
    to_worker: str = ""
    connect_s: float = 0.0
    own: str = ""
    seen: str = ""
    joined: str = ""
    head_deaf: str = ""
    worker_deaf: str = ""
    unreported: str = ""
    meets: str = ""
    to_own: str = ""
    own_deaf: str = ""

    @property
    def works(self) -> bool:
        """Whether both nodes reach each other."""
        return not any((
            self.to_head, self.to_own, self.to_worker, self.head_deaf, self.own_deaf,
            self.worker_deaf, self.unreported,
        ))  # fmt: skip


def handshake_words(token: str) -> tuple[bytes, bytes]:
    """The connecting side's challenge and the listener's reply, both derived from the token.

    Others on the network may read them; they are valid for one check only.
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


def probe_to(probe: PortCheck | None) -> dict[str, Any] | None:
    """Encode a probe as a document."""
    if probe is None:
        return None
    return {"token": probe.token, "targets": {name: [*at] for name, at in probe.targets.items()}}


def reached_to(reached: PortCheckReport | None) -> dict[str, Any] | None:
    """Encode probe results as a document; None without any."""
    if reached is None:
        return None
    return {**vars(reached), "failures": dict(reached.failures)}


def _printable(max_chars: int) -> PartReader[str]:
    return require(string(max_chars), str.isprintable, "has characters that are not printable")


_TEXT, _NAME, _PORT = _printable(MAX_TEXT), _printable(MAX_NAME), whole(high=(1 << 16) - 1)
read_probe: PartReader[PortCheck | None] = optional(record(PortCheck, {
    "token": _TEXT, "targets": table(row(_NAME, _PORT), MAX_TARGETS, _NAME),
}))  # fmt: skip
"""Read the document of a probe."""
read_reached: PartReader[PortCheckReport | None] = optional(record(PortCheckReport, {
    **dict.fromkeys(("token", "deaf", "own", "seen", "joined"), _TEXT),
    "port": _PORT,
    "failures": table(_TEXT, MAX_TARGETS, _NAME),
}))  # fmt: skip
"""Read the document of a probe's result."""
