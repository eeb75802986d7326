"""What a rung of the ladder is, and one use of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from caovand.core.failure import Finding
from caovand.core.plan import Plan


@dataclass(frozen=True)
class Step:
    """What one use of a rung changes. `value` names it among the rung's uses, if it has several.

    `pair` is a further step to take with this one where the machine cannot run it alone.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    value: str = ""
    change: str = ""
    pair: Step | None = None

    @property
    def paired(self) -> Step | None:
        """Both steps as one; None where it goes alone."""
        if self.pair is None:
            return None
        return Step(
            {**self.settings, **self.pair.settings},
            {**self.env, **self.pair.env},
            self.value,
            f"{self.change}, {self.pair.change}",
        )


@dataclass(frozen=True)
class Rung:
    """A way down: what it does, the key of `caovan.toml` it goes below, and how.

    `touches` are settings or variables that must be free for it: not verbatim, not the
    operator's. A rung that costs nothing but time does not `degrade`.
    """

    name: str
    does: str
    key: str
    touches: tuple[str, ...]
    step: Callable[[Plan, Finding], Step | None]
    degrades: bool = True
