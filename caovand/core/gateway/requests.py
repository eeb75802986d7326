"""The policy's record of each request, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from caovand.core.gateway.events import (
    Faulted,
    Lost,
    Stage,
)
from caovand.core.gateway.fair import Lane


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
    """What its attempt ended with, until it is known whether the engine died."""


@dataclass(frozen=True)
class GatewayRules:
    """The operator's bounds; bytes are those of all bodies that are kept."""

    hold_s: float = 300.0
    max_waiting: int = 1000
    max_bytes: int = 512 << 20
