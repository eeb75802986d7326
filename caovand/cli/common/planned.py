"""A plan as the daemon would make it, with its command, forecast and cards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.files import state_file
from caovand.adapters.files.directories import directories
from caovand.cli.common.alternatives import alternatives
from caovand.cli.common.errors import CommandError, Exit
from caovand.core import addresses
from caovand.core.config.schema import Config, Mode
from caovand.core.engine.planning import Command
from caovand.core.engine.record import Engine
from caovand.core.facts import occupancy
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.healing import degraded
from caovand.core.healing.foreseen import foresee
from caovand.core.plan import Plan, Unplannable
from caovand.core.problem import Problem
from caovand.core.reporting.report import describe
from caovand.core.tuning.planning import depth_for, tuned_plan
from caovand.core.tuning.record import TuningRecord, from_document
from caovand.preparation import memories


@dataclass(frozen=True)
class PlannedEngine:
    """A plan with its command, its forecast and the cards it uses.

    `refusal` says why the daemon would not start it, "" if it would.
    """

    plan: Plan
    command: Command
    memory: MemoryEstimate | None
    inventory: Inventory
    cards: tuple[Gpu, ...]
    refusal: str = ""

    def as_json(self) -> dict[str, Any]:
        """The document for programs, with secrets hidden."""
        return describe(self.plan, self.command.shown, self.command.env, self.memory)


def saved_plan(state: Path) -> Any:
    """The degraded plan that the daemon remembers in its state folder."""
    return state_file.read_or_none(memories.find(state, memories.DEGRADED_PLAN))


def remembered_here(saved: Path | None) -> Any:
    """This machine's degraded plan; unknown for the machine of a saved inventory."""
    return saved_plan(directories(os.environ, os.getuid()).state) if saved is None else None


def tuned_here(saved: Path | None) -> Mapping[str, TuningRecord]:
    """The draft tuner's records of this machine's daemon."""
    if saved is not None:
        return {}
    state = directories(os.environ, os.getuid()).state
    records = from_document(state_file.read_or_none(memories.find(state, memories.TUNING)))
    return records[0] if records else {}


def plan_for(
    config: Config,
    machine: Inventory,
    mode: Mode | None,
    kept: Any = None,
    cache: Path | None = None,
    records: Mapping[str, TuningRecord] = MappingProxyType({}),
    no_rdma: str = "",
) -> PlannedEngine:
    """The plan as the daemon would make it, including the steps in `kept`; raises CommandError.

    `records` are the draft tuner's. Compiled code goes to `cache`; None is the cache of this
    machine's daemon. `no_rdma` says why several nodes cannot use InfiniBand or RoCE, "" if they
    can.
    """
    engine = chosen_engine(config)
    machine, alone = _with_others(config, engine, machine)
    mark = degraded.fingerprint(config, machine)
    used = occupancy.used_by_card(machine.gpus)
    steps = degraded.from_document(kept, mark, mode or config.policy.mode, used, engine.healing)

    def planned(config: Config, remembered: Plan | None = None) -> Plan:
        make = engine.planning.make
        return make(config, machine, mode=mode, environ=os.environ, remembered=remembered)

    def fits(plan: Plan) -> bool | None:
        return engine.planning.forecast(plan, machine).fits

    try:
        plan = planned(config, steps)
        plan = tuned_plan(plan, depth_for(plan, config.policy, records), config, planned, fits)
        plan, known = foresee(engine, config, plan, machine, planned)
        plan = _spread(plan, config, engine, machine, no_rdma)
        plan = replace(plan, caveats=(*plan.caveats, alone)) if alone else plan
    except Unplannable as problem:
        raise CommandError(Exit.FAILED, str(problem), _offer(problem, engine, machine)) from None
    cache = cache or directories(os.environ, os.getuid()).cache
    command = engine.planning.command(plan, machine.engine, str(cache))
    cards = engine.planning.cards(plan, machine)
    memory, refusal = engine.planning.forecast(plan, machine), known.finding.text if known else ""
    return PlannedEngine(plan, command, memory, machine, cards, refusal)


def _offer(problem: Unplannable, engine: Engine, machine: Inventory) -> str:
    """Describe how another engine would serve the model while others use the cards, or on cards
    that this one has no kernels for; "" for none."""
    if problem.failure not in ("vram-busy", "backend-unsupported"):
        return ""
    others = alternatives(engine, machine.model, machine.gpus, machine.host, 0.0)
    return "; ".join(f"instead: {check.text}; {check.remedy}" for check in islice(others, 1))


def _with_others(
    config: Config, engine: Engine, machine: Inventory
) -> tuple[Inventory, Problem | None]:
    """The machine with the nodes that its engine can use, or the reason if there are none.

    Raises CommandError if it may not serve without them.
    """
    section = config.cluster
    if section.role != "head" or engine.nodes is None:
        return machine, None
    problem = engine.nodes.refusal(section.executor, machine.engine)
    if problem is None:
        return machine, None
    if section.min_nodes != 1:
        raise CommandError(Exit.FAILED, str(problem))
    until = "until then the head serves alone, because [cluster] min_nodes is 1"
    remedy = "; ".join(filter(None, (problem.remedy, until)))
    return replace(machine, others=(), link=None), replace(problem, remedy=remedy)


def _spread(plan: Plan, config: Config, engine: Engine, machine: Inventory, no_rdma: str) -> Plan:
    """A head's plan, spread over all nodes; raises Unplannable."""
    section = config.cluster
    if section.role != "head" or engine.nodes is None or not machine.others:
        return plan
    host, port = addresses.split_address(section.head)
    executor = section.executor
    return engine.nodes.spread(plan, machine, host, port + 1, no_rdma, executor, "")
