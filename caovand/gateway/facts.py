"""What the daemon says of its slot, as the gateway uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from caovand.core.gateway.events import Engine, EngineIs
from caovand.core.gateway.policy import GatewayRules

BODIES = 8
"""How many bodies of the greatest size may wait."""


@dataclass(frozen=True)
class Facts:
    """`key` is what clients must send, "" for nothing; `url` where the engine answers, if any.

    `names` are those of the model, the first of which is listed first.
    """

    engine: EngineIs
    phase: str = ""
    names: tuple[str, ...] = ()
    context: int | None = None
    url: str = ""
    key: str = field(default="", repr=False)
    rules: GatewayRules = field(default_factory=GatewayRules)
    max_body_bytes: int = 64 << 20

    @property
    def state(self) -> str:
        """The engine's state in a word."""
        return self.engine.engine.value


def read(document: Mapping[str, Any], at: float, max_body_bytes: int) -> Facts:
    """The facts in the daemon's answer to the op `gateway`."""
    engine = EngineIs(
        at=at,
        engine=Engine(document["engine"]),
        generation=document["generation"],
        at_once=document["at_once"],
        expected_s=document["expected_s"],
        returns=document["returns"],
    )
    return Facts(
        engine,
        document["phase"],
        tuple(document["names"]),
        document["context"],
        document["url"],
        document["key"],
        GatewayRules(document["hold_s"], document["max_waiting"], BODIES * max_body_bytes),
        max_body_bytes,
    )
