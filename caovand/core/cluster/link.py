"""The links between nodes, tried before a start: what is asked, reported and known of each.

Ranks meet at a port of the head's, and then each listens on free ports of its node's own address,
which need not be on the network where they meet. A *trial* is one connection, to the one or the
other, with a token that is used once: the head orders a worker to connect or to listen, and that
reports the *outcome*. Those of both ways together are the *link*. Data is sent to an own address,
as the ranks' will be.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from caovand.core.cluster.plan_document import BadDocument

WORD_BYTES = 32
LONGEST = 256
PARTS = ("connect", "listen")
Peer = TypeVar("Peer")


@dataclass(frozen=True)
class Trial:
    """A worker's `part` is to "connect" to `host` and `port`, where ranks will, and with `transfer`
    to send; or to "listen" on a free port of its own address, and to receive.
    """

    token: str
    host: str
    port: int
    transfer: bool
    part: str = "connect"


@dataclass(frozen=True)
class Outcome:
    """What came of a part: `failure` is why it could not connect or receive, "" if it did.

    Who connects tells how long that took, `connect_s`, its `own` address on that connection, or on
    the route there if it failed, and where it reaches the head's daemon, `joined`. Who listens does
    so on `listens`, 0 if it cannot, and `deaf` is why; `bytes_s` is what came to it in a transfer,
    if any.
    """

    token: str
    failure: str = ""
    connect_s: float = 0.0
    bytes_s: float | None = None
    own: str = ""
    joined: str = ""
    listens: int = 0
    deaf: str = ""


@dataclass(frozen=True)
class Link:
    """What is known of a link. Each failure is why a connection that way failed, "" if it did not.

    `host` and `port` are where ranks meet, and `meets` is what address `host` is on the head.
    `to_head` is about a connection to there, `to_own` about one to the head's own address.
    `connect_s` is how long the latter took, `up_bytes_s` what a transfer to there reached,
    `down_bytes_s` one to the worker's own address; None if there was none yet, 0 if nothing came
    through. `own` is the worker's address on its connection to where ranks meet, `seen` what the
    head sees of it, "" where it did not come, and `joined` where the worker reaches the head's
    daemon. `head_deaf`, `own_deaf` and `worker_deaf` are why one cannot listen where ranks meet, at
    the head's own address or at the worker's; `unreported` is why the worker's report is missing.

    A link between two workers has no place to meet: the first is in the head's place, and
    `to_head` is about its own address.
    """

    host: str
    port: int
    to_head: str = ""
    to_worker: str = ""
    connect_s: float = 0.0
    up_bytes_s: float | None = None
    down_bytes_s: float | None = None
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
    def fails(self) -> bool:
        """Whether they do not connect to each other, or data that was sent did not come through."""
        failures = (
            self.to_head, self.to_own, self.to_worker, self.head_deaf, self.own_deaf,
            self.worker_deaf, self.unreported,
        )  # fmt: skip
        return any(failures) or 0 in (self.up_bytes_s, self.down_bytes_s)

    @property
    def works(self) -> bool:
        """Whether both connect to each other, and data came through."""
        return not self.fails and bool(self.up_bytes_s and self.down_bytes_s)

    def after(self, before: Link | None) -> Link:
        """With the figures of an earlier trial where this one had no transfer, or came no better.

        Other traffic only ever makes a figure worse. That nothing comes through counts at once.
        """
        if before is None:
            return self
        up_bytes_s = _better(self.up_bytes_s, before.up_bytes_s)
        down_bytes_s = _better(self.down_bytes_s, before.down_bytes_s)
        # Of trials without a transfer the first one counts, so that a plan finds the same link.
        trips = (self.connect_s,) * (self.up_bytes_s is not None) + (before.connect_s,)
        connect_s = min(filter(None, trips), default=self.connect_s)
        return replace(self, up_bytes_s=up_bytes_s, down_bytes_s=down_bytes_s, connect_s=connect_s)


def _better(found: float | None, before: float | None) -> float | None:
    if found is None:
        return before
    return max(found, before or 0.0) if found else found


def words(token: str) -> tuple[bytes, bytes]:
    """The connecting side's challenge and the listener's reply; both derive from the token.

    Others on the network may read them: each is of use for one side of one connection only.
    """
    asks, answers = (
        hashlib.blake2b(f"{token} {side}".encode(), digest_size=WORD_BYTES).digest()
        for side in ("asks", "answers")
    )
    return asks, answers


def rounds(peers: Sequence[Peer]) -> Iterator[list[tuple[Peer, Peer]]]:
    """Every two of them once, in rounds in which nobody is twice; each pair is in their order."""
    seats = list(range(len(peers) + len(peers) % 2))
    for _ in seats[1:]:
        facing = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        pairs = [sorted(pair) for pair in facing]
        yield [(peers[one], peers[other]) for one, other in pairs if other < len(peers)]
        seats.insert(1, seats.pop())


def shown(link: Link | None) -> dict[str, Any] | None:
    """A link in the document of the op `cluster`; None where it was not tried."""
    if link is None:
        return None
    return {
        "works": link.works,
        "connect_s": round(link.connect_s, 6),
        "to_head_bytes_s": _whole(link.up_bytes_s),
        "from_head_bytes_s": _whole(link.down_bytes_s),
    }


def _whole(bytes_s: float | None) -> int | None:
    return None if bytes_s is None else round(bytes_s)


def to_document(found: Trial | Outcome | None) -> dict[str, Any] | None:
    """The document of a trial or an outcome, as JSON can hold it."""
    return None if found is None else asdict(found)


def trial_from(document: Any) -> Trial | None:
    """The trial in a document. Raises BadDocument."""
    found = _read(document, _TRIAL, "trial")
    if found is not None and found["part"] not in PARTS:
        raise BadDocument(f"part of trial is none of {', '.join(PARTS)}")
    return None if found is None else Trial(**found)


def outcome_from(document: Any) -> Outcome | None:
    """The outcome in a document. Raises BadDocument."""
    found = _read(document, _OUTCOME, "outcome")
    return None if found is None else Outcome(**found)


_TRIAL: Mapping[str, str] = {"token": "str", "host": "str", "port": "int", "transfer": "bool",
                             "part": "str"}  # fmt: skip
_OUTCOME: Mapping[str, str] = {
    "token": "str", "failure": "str", "connect_s": "float", "bytes_s": "float or NoneType",
    "own": "str", "joined": "str", "listens": "int", "deaf": "str",
}  # fmt: skip


def _read(document: Any, parts: Mapping[str, str], where: str) -> dict[str, Any] | None:
    if document is None:
        return None
    if not isinstance(document, dict) or set(document) != set(parts):
        raise BadDocument(f"{where} has other parts")
    for name, kind in parts.items():
        value = document[name]
        if type(value).__name__ not in kind.split(" or ") or not _fits(value):
            raise BadDocument(f"{name} of {where} is no {kind}, or out of range")
    return document


def _fits(value: str | float | None) -> bool:
    if value is None:
        return True
    if isinstance(value, str):
        return len(value) <= LONGEST and value.isprintable()
    return 0 <= value < 1 << 16 if isinstance(value, int) else 0 <= value < math.inf
