"""The daemon's facts about its slot, as the gateway uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from caovand.core.gateway.events import EngineIs, EngineState
from caovand.core.gateway.keys import ClientKey, from_document
from caovand.core.gateway.naming import Defaults, Naming
from caovand.core.gateway.requests import ConnectionLimits, GatewayRules

BODIES = 8
"""The number of bodies of the maximum size that may wait."""


@dataclass(frozen=True)
class Facts:
    """`key` is the key that clients must send, or ""; `url` is the engine's address, if any.

    `keep_alive_s` is how long the engine keeps an idle connection open, 0 if unknown;
    `reuses_connections` says whether one may carry several requests, and `health` is the path of
    its health check. `naming` has the plan's names and the configured aliases. `keys` are the
    clients' own keys by digest, None if clients need only `key`. `reading_rate` is how many tokens
    per second the engine reads of a long prompt, None if it has not been measured.
    """

    engine: EngineIs
    phase: str = ""
    naming: Naming = field(default_factory=Naming)
    context: int | None = None
    url: str = ""
    key: str = field(default="", repr=False)
    keep_alive_s: float = 0.0
    reuses_connections: bool = True
    health: str = ""
    keys: Mapping[str, ClientKey] | None = None
    used_day: int = 0
    used: Mapping[str, int] = field(default_factory=dict)
    rules: GatewayRules = field(default_factory=GatewayRules)
    max_body_bytes: int = 64 << 20
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    reading_rate: float | None = None

    @property
    def state(self) -> str:
        """The engine's state in one word."""
        return self.engine.state.value


_AS_THEY_ARE = (
    "phase", "context", "url", "key", "keep_alive_s", "reuses_connections", "health",
    "reading_rate",
)  # fmt: skip


def read(document: Mapping[str, Any], at: float, max_body_bytes: int) -> Facts:
    """Parse the daemon's answer to the op `gateway`."""
    engine = EngineIs(
        at=at,
        state=EngineState(document["engine"]),
        generation=document["generation"],
        at_once=document["at_once"],
        expected_s=document["expected_s"],
        returns=document["returns"],
    )
    return Facts(
        engine=engine,
        naming=_naming(document),
        keys=_keys(document["keys"]),
        used_day=document["used"]["day"],
        used=document["used"]["tokens"],
        rules=GatewayRules(document["hold_s"], document["max_waiting"], BODIES * max_body_bytes),
        max_body_bytes=max_body_bytes,
        limits=ConnectionLimits(**document["limits"]),
        **{name: document[name] for name in _AS_THEY_ARE},
    )


def _keys(document: Any) -> Mapping[str, ClientKey] | None:
    if document is None:
        return None
    return {key.digest: key for key in from_document(document) or ()}


def _naming(document: Mapping[str, Any]) -> Naming:
    defaults = Defaults(document["temperature"], document["max_tokens"], document["effort"])
    of_aliases = {alias: Defaults(*row) for alias, row in document["alias_defaults"].items()}
    return Naming(tuple(document["names"]), document["aliases"], defaults, of_aliases)
