"""What the daemon says of its slot, as the gateway uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from caovand.core.gateway.events import Engine, EngineIs
from caovand.core.gateway.policy import GatewayRules


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


def read(document: Mapping[str, Any], at: float, max_bytes: int) -> Facts:
    """The facts in the daemon's answer to the op `gateway`; bodies may take `max_bytes`."""
    engine = EngineIs(
        at=at,
        engine=Engine(document["engine"]),
        generation=document["generation"],
        at_once=document["at_once"],
        expected_s=document["expected_s"],
        returns=document["returns"],
    )
    rules = document["rules"]
    return Facts(
        engine,
        document["phase"],
        tuple(document["names"]),
        document["context"],
        document["url"],
        document["key"],
        GatewayRules(rules["hold_s"], rules["max_waiting"], max_bytes),
        rules["max_body_mib"] << 20,
    )
