"""What a plan depends on, apart from the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.engine_install import places
from caovand.core.config.schema import Config, Mode
from caovand.core.engine.record import Engine
from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Plan


@dataclass(frozen=True)
class PlanRequest:
    """Everything a plan depends on except the machine: configuration, mode, environment."""

    config: Config
    mode: Mode | None
    environ: Mapping[str, str]
    good_plan: Any = None
    before: Inventory | None = None
    """The inventory from before the running engine took its share of memory."""
    source: Path | None = None
    """The configuration's file."""
    tuned: Callable[[Plan], int | None] | None = None
    """The draft depth that replaces a plan's own; None keeps the plan's."""

    @property
    def engine(self) -> Engine:
        """The configured engine."""
        return chosen_engine(self.config)

    @property
    def chosen_mode(self) -> Mode:
        """The mode in effect."""
        return self.mode or self.config.policy.mode

    @property
    def python(self) -> str:
        """The engine's Python; our own for an engine without one."""
        if self.engine.install.elsewhere is not None and self.config.engine.python is None:
            return sys.executable
        link = places.link_of("current", self.engine.name)
        installed = places.root_from(None, self.environ) / link / "bin/python"
        return str(places.resolve_python(Path(self.config.engine.python or installed)))
