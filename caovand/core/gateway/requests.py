"""The policy's record of each request, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from caovand.core.gateway.events import (
    Faulted,
    Lost,
    Stage,
)
from caovand.core.gateway.fair import Lane

MAX_ALONE_S = 30.0
"""The maximum time for which a suspect has the engine to itself."""
MAX_ALONE_BEGUN_S = 5.0
"""The maximum from the beginning of its answer on."""
MAX_PATIENCE_S = 60.0
"""The time during which other requests may overtake a suspect."""


@dataclass
class OpenRequest:
    """A request that has not ended."""

    number: int
    size: int
    since: float  # in its stage
    lane: Lane
    tokens: float = 1.0
    stage: Stage = Stage.READING
    digest: bytes = b""
    suspect: bool = False
    tries: int = 0
    forwarded_at: float = 0.0
    broken: type[Lost] | type[Faulted] | None = None
    """The event that ended its attempt, until it is known whether the engine died."""

    @property
    def max_alone_s(self) -> float:
        """The time for which the request may have the engine to itself at this stage."""
        return MAX_ALONE_BEGUN_S if self.stage is Stage.BEGUN else MAX_ALONE_S


@dataclass(frozen=True)
class ConnectionLimits:
    """The operator's limits for each connection and for their number. A body must arrive with
    `min_body_kib_s` KiB per second; `head_s` are seconds until a request's header is complete."""

    max_connections: int = 4096
    head_s: float = 15.0
    max_headers: int = 256
    min_body_kib_s: int = 32


@dataclass(frozen=True)
class GatewayRules:
    """The operator's bounds; `max_bytes` bounds the sum of all bodies that are kept."""

    hold_s: float = 300.0
    max_waiting: int = 1000
    max_bytes: int = 512 << 20

    @property
    def patience_s(self) -> float:
        """The time during which a suspect lets other requests overtake it."""
        return min(MAX_PATIENCE_S, self.hold_s / 4)
