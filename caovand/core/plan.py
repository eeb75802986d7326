"""What the engine is started with: settings, each with its origin and its reason.

A Plan is pure data. `engines/vllm/command.py` turns it into argv and environment; the ladder
makes a lower one from it; two plans with the same `identity` need no restart between them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Origin = Literal["user", "policy", "ladder", "remembered"]


@dataclass(frozen=True)
class Setting:
    """One decided value: where it came from and why, in one sentence for people."""

    value: Any
    origin: Origin
    reason: str


@dataclass(frozen=True)
class Plan:
    """Everything an engine start needs. `settings` is keyed by vLLM's argument names.

    Names are those of `vllm serve` with underscores (`max_model_len`); a value of None leaves
    the flag out. `env` is what is added to the engine's environment, `extra_args` the
    operator's verbatim flags, which win: the settings named in `verbatim` stand there, are only
    repeated in `settings` for readers, and no rung may touch them. `device` is what code is
    compiled for, "sm75" or "cpu"; `engine` names the environment and its versions. `key` stands
    for the API key without telling it: another key is another plan. `rungs` are the ladder's steps
    taken, oldest first, `tried` the identities of the plans that they left, `others_mib` the most
    that other programs had of a card, by its index, when one was taken for want of memory. `advice`
    is what would make it fit where it does not.
    """

    model: str
    settings: Mapping[str, Setting]
    env: Mapping[str, Setting]
    extra_args: tuple[str, ...] = ()
    rungs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    verbatim: frozenset[str] = frozenset()
    device: str = ""
    engine: str = ""
    key: str = ""
    advice: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    others_mib: Mapping[int, int] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        """The decided value of a setting, None where there is none."""
        setting = self.settings.get(name)
        return setting.value if setting else None

    @property
    def mtp(self) -> int:
        """Speculative depth in tokens, 0 where nothing is drafted."""
        speculative = self.value("speculative_config")
        if not isinstance(speculative, Mapping):
            return 0
        depth = speculative.get("num_speculative_tokens", 0)
        return depth if isinstance(depth, int) and depth > 0 else 0

    @cached_property
    def identity(self) -> str:
        """A digest of what the engine would see; a mere change of mode name does not change it."""
        seen = {
            "model": self.model,
            "engine": self.engine,
            "key": self.key,
            "settings": {k: _without_mode(k, s.value) for k, s in sorted(self.settings.items())},
            "env": {k: s.value for k, s in sorted(self.env.items())},
            "extra_args": self.extra_args,
        }
        text = json.dumps(seen, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_mode(name: str, value: Any) -> Any:
    if name == "additional_config" and isinstance(value, Mapping):
        return {k: v for k, v in value.items() if k != "caovan_mode"}
    return value
