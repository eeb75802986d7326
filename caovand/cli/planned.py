"""A plan as the daemon would make it, with its command, its forecast and the cards it uses."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caovand.adapters import store
from caovand.adapters.directories import directories
from caovand.adapters.engine_choice import chosen_engine
from caovand.cli.errors import CommandError, Exit
from caovand.core.config import Config, Mode
from caovand.core.engine import Command
from caovand.core.facts import occupancy
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.healing import degraded
from caovand.core.plan import Plan, Unplannable
from caovand.core.reporting.report import describe
from caovand.daemon import degraded_plan, memories


@dataclass(frozen=True)
class Planned:
    """A plan, its command, its forecast, and the cards it uses."""

    plan: Plan
    command: Command
    memory: MemoryEstimate | None
    inventory: Inventory
    cards: tuple[Gpu, ...]

    def as_json(self) -> dict[str, Any]:
        """The document for programs; secrets hidden."""
        return describe(self.plan, self.command.shown, self.command.env, self.memory)


def remembered(state: Path) -> Any:
    """The degraded plan that served, as the daemon keeps it in its folder."""
    return store.read_json(memories.find(state, degraded_plan.FILE))


def remembered_here(saved: Path | None) -> Any:
    """That of this machine's daemon; of the machine of a saved inventory nothing is known."""
    return remembered(directories(os.environ, os.getuid()).state) if saved is None else None


def make(
    config: Config,
    machine: Inventory,
    mode: Mode | None,
    kept: Any = None,
    cache: Path | None = None,
) -> Planned:
    """The plan as the daemon would make it, which takes the steps `kept`; else CommandError.

    What its engine compiles goes to `cache`, None for that of this machine's daemon.
    """
    mark = degraded.fingerprint(config, machine)
    used = occupancy.used(machine.gpus)
    engine = chosen_engine(config)
    try:
        plan = engine.planning.make(
            config,
            machine,
            mode=mode,
            environ=os.environ,
            remembered=degraded.from_document(
                kept, mark, mode or config.policy.mode, used, engine.healing
            ),
        )
    except Unplannable as problem:
        raise CommandError(Exit.FAILED, str(problem)) from None
    cache = cache or directories(os.environ, os.getuid()).cache
    command = engine.planning.command(plan, machine.engine, str(cache))
    cards = engine.planning.cards(plan, machine)
    return Planned(plan, command, engine.planning.forecast(plan, machine), machine, cards)
