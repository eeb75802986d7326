"""The facts that `caovanctl doctor` checks: of the machine, the model, and the plan for both."""

from __future__ import annotations

import contextlib
import os
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.files.directories import directories
from caovand.adapters.gpu import all_reduce, pcie_errors
from caovand.adapters.network import ports
from caovand.adapters.privileges import engine_user, model_access
from caovand.cli.common.errors import CommandError
from caovand.cli.common.planned import plan_for, remembered_here, tuned_here
from caovand.cli.common.survey import SurveyedMachine
from caovand.cli.doctor.orphans import find_orphans
from caovand.core.config.schema import Config, Mode
from caovand.core.doctor.facts import DoctorFacts
from caovand.core.engine.record import Engine
from caovand.core.facts.all_reduce import AllReduceResult, key_of
from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.plan import Plan
from caovand.core.problem import Problem


@dataclass(frozen=True)
class Case:
    """A machine, a model and a configuration to examine.

    `saved` is the inventory's file if this is not our machine. `cache` is the cache folder of the
    daemon, and `engine_pids` are the processes of its engine.
    """

    config: Config
    machine: SurveyedMachine
    model: ModelCard | None
    model_problem: Problem | None
    saved: Path | None
    mode: Mode | None
    cache: Path
    engine_pids: frozenset[int]


def gather(case: Case) -> DoctorFacts:
    """Gather everything that the checks need."""
    config, machine, model, saved = case.config, case.machine, case.model, case.saved
    worker = config.cluster.role == "worker"  # its head plans and owns the port
    # A daemon itself reports unwritable caches.
    daemons = case.cache != directories(os.environ, os.getuid()).cache
    unreadable, reader = "", engine_user.SERVICE_USER
    if model and model.folder and not saved:
        unreadable, reader = _find_unreadable(Path(model.path))
    elsewhere = saved is not None or worker
    facts = DoctorFacts(
        gpus=machine.gpus,
        host=machine.host,
        engine=machine.engine,
        engine_problem=machine.engine_problem,
        model=model,
        model_problem=case.model_problem,
        memory=None,
        plan_problem="",
        caveats=(),
        **port_facts(config.server.port, case.engine_pids, elsewhere=elsewhere),
        orphans=() if case.engine_pids or saved else find_orphans(),
        python_version="" if saved else platform.python_version(),
        wants_gpu=machine.engine is not None and machine.engine.build == "cuda",
        wants_plugin=config.engine.plugin,
        unreadable=unreadable,
        service_user=reader,
        cache_dir=str(case.cache),
        cache_writable=saved is not None or daemons or _writable(case.cache),
        as_root=os.geteuid() == 0,
        half_asked=machine.half_asked,
        engine_env=frozenset(name for name, _ in config.engine.env),
        link_errors={} if saved else pcie_errors.count_corrected(machine.gpus),
    )
    if machine.engine is None or model is None or worker:
        return facts
    return _with_plan(facts, case, Inventory(machine.gpus, machine.host, machine.engine, model))


def _with_plan(facts: DoctorFacts, case: Case, inventory: Inventory) -> DoctorFacts:
    """Return the facts, with the plan for this model or the reason why there is none."""
    saved = case.saved
    try:
        planned = plan_for(
            case.config, inventory, case.mode, remembered_here(saved), records=tuned_here(saved)
        )
    except CommandError as problem:
        return replace(facts, plan_problem=problem.message)
    plan = planned.plan
    port, dtype = plan.value("port"), plan.value("dtype")
    if port != facts.port and isinstance(port, int):
        facts = replace(facts, **port_facts(port, case.engine_pids, elsewhere=saved is not None))
    engine = chosen_engine(case.config)
    return replace(
        facts,
        dtype=str(dtype or ""),
        mtp=plan.mtp,
        tokens_s=engine.planning.speed(plan, inventory),
        all_reduce=None if saved else _all_reduce(engine, plan, inventory, case.cache),
        memory=planned.memory,
        caveats=plan.caveats,
    )


def _all_reduce(
    engine: Engine, plan: Plan, inventory: Inventory, cache: Path
) -> AllReduceResult | None:
    """The result of a start's all-reduce check for this plan."""
    task = engine.planning.all_reduce(plan, inventory)
    if task is None:
        return None
    key = key_of(task, engine.planning.cards(plan, inventory), inventory.engine)
    with contextlib.suppress(OSError):
        return all_reduce.read_result(cache, key)
    return None


def port_facts(port: int, engine_pids: frozenset[int], *, elsewhere: bool) -> dict[str, Any]:
    """Facts about a port on this machine; none about one `elsewhere`.

    A process that this user cannot inspect is assumed to be the daemon's engine, if one is running.
    """
    listeners = [] if elsewhere else ports.listeners(port)
    others = [
        listener
        for listener in listeners
        if listener.pid not in engine_pids and not (engine_pids and listener.pid is None)
    ]
    return {
        "port": port,
        "listeners": None if elsewhere else tuple(map(str, others)),
        "own_port": len(others) < len(listeners),
    }


def _find_unreadable(folder: Path) -> tuple[str, str]:
    """The first path that the service's user cannot enter or read, with that user's name; else
    empty.
    """
    for name in (engine_user.SERVICE_USER, engine_user.NAME):
        if place := model_access.closed_to(name, folder):
            return place, name
    return "", engine_user.SERVICE_USER


def _writable(folder: Path) -> bool:
    """Whether this folder is writable or can be created."""
    place = next((p for p in (folder, *folder.parents) if p.exists()), Path("/"))
    return os.access(place, os.W_OK)
