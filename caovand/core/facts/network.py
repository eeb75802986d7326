"""The network between the nodes that serve one model."""

from __future__ import annotations

from dataclasses import dataclass

SAME_NETWORK_FACTOR = 2
"""Round trips measured on one network differ by less than this factor; on two kinds of Ethernet
they differ by more."""


@dataclass(frozen=True)
class Network:
    """The network between nodes: TCP throughput by interface speed, and the round-trip time.

    `rdma` says that NCCL uses InfiniBand or RoCE between the nodes, whose speed is unknown.
    """

    bytes_s: float
    round_trip_s: float
    rdma: bool = False

    def near(self, other: Network | None) -> bool:
        """Whether both may be measurements of the same network."""
        if other is None or self.rdma != other.rdma:
            return False
        pairs = ((self.bytes_s, other.bytes_s), (self.round_trip_s, other.round_trip_s))
        return all(max(pair) < SAME_NETWORK_FACTOR * min(pair) for pair in pairs)
