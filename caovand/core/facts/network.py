"""The network between the nodes that serve one model."""

from __future__ import annotations

from dataclasses import dataclass

STEP = 2
"""Two round trips of one network differ by less than this factor, two kinds of Ethernet by more."""


@dataclass(frozen=True)
class Network:
    """The network between nodes: what TCP reaches by their interfaces' speed, and the round trip.

    `rdma` says that NCCL uses InfiniBand or RoCE between them, of which no speed is known.
    """

    bytes_s: float
    round_trip_s: float
    rdma: bool = False

    def near(self, other: Network | None) -> bool:
        """Whether these may be two measurements of one network."""
        if other is None or self.rdma != other.rdma:
            return False
        pairs = ((self.bytes_s, other.bytes_s), (self.round_trip_s, other.round_trip_s))
        return all(max(pair) < STEP * min(pair) for pair in pairs)
