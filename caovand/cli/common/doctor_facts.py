"""The facts that `caovanctl doctor` checks: of the machine, the model, and the plan for both."""

from __future__ import annotations

import contextlib
import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.files.directories import directories
from caovand.adapters.gpu import all_reduce, pcie_errors
from caovand.adapters.network import ports
from caovand.adapters.privileges import engine_user, model_access
from caovand.cli.common.errors import CommandError
from caovand.cli.common.orphans import find_orphans
from caovand.cli.common.planned import plan_for, remembered_here, tuned_here
from caovand.cli.common.survey import SurveyedMachine
from caovand.core.config.schema import Config, Mode
from caovand.core.engine.record import Engine
from caovand.core.facts.all_reduce import AllReduceResult, key_of
from caovand.core.facts.checks import DoctorFacts
from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.plan import Plan
from caovand.core.problem import Problem

SERVICE_USER = "caovan"


def gather(
    config: Config,
    machine: SurveyedMachine,
    seen: tuple[ModelCard | None, Problem | None],
    saved: Path | None,
    mode: Mode | None,
    cache: Path,
    own: frozenset[int],
) -> DoctorFacts:
    """Gather everything that the checks need; `own` are the processes of the daemon's engine."""
    model, model_problem = seen
    worker = config.cluster.role == "worker"  # its head plans and owns the port
    # A daemon itself reports unwritable caches.
    daemons = cache != directories(os.environ, os.getuid()).cache
    elsewhere = saved is not None or worker
    unreadable, reader = "", SERVICE_USER
    if model and model.folder and not saved:
        unreadable, reader = _find_unreadable(Path(model.path))
    facts = DoctorFacts(
        gpus=machine.gpus,
        host=machine.host,
        engine=machine.engine,
        engine_problem=machine.engine_problem,
        model=model,
        model_problem=model_problem,
        memory=None,
        plan_problem="",
        plan_warnings=(),
        **port_facts(config.server.port, own, elsewhere=elsewhere),
        orphans=() if own or saved else find_orphans(),
        python_version="" if saved else platform.python_version(),
        wants_gpu=machine.engine is not None and machine.engine.build == "cuda",
        wants_plugin=config.engine.plugin,
        unreadable=unreadable,
        service_user=reader,
        cache_dir=str(cache),
        cache_writable=saved is not None or daemons or _writable(cache),
        as_root=os.geteuid() == 0,
        half_asked=machine.half_asked,
        engine_env=frozenset(name for name, _ in config.engine.env),
        link_errors={} if saved else pcie_errors.count_corrected(machine.gpus),
    )
    if machine.engine is None or model is None or worker:
        return facts
    inventory = Inventory(machine.gpus, machine.host, machine.engine, model)
    return _with_plan(facts, config, inventory, saved, mode, cache, own)


def _with_plan(
    facts: DoctorFacts,
    config: Config,
    inventory: Inventory,
    saved: Path | None,
    mode: Mode | None,
    cache: Path,
    own: frozenset[int],
) -> DoctorFacts:
    """Return the facts, with the plan for this model or the reason why there is none."""
    try:
        planned = plan_for(
            config, inventory, mode, remembered_here(saved), records=tuned_here(saved)
        )
    except CommandError as problem:
        return replace(facts, plan_problem=problem.message)
    port, dtype = planned.plan.value("port"), planned.plan.value("dtype")
    if port != facts.port and isinstance(port, int):
        facts = replace(facts, **port_facts(port, own, elsewhere=saved is not None))
    engine = chosen_engine(config)
    return replace(
        facts,
        dtype=str(dtype or ""),
        mtp=planned.plan.mtp,
        tokens_s=engine.planning.speed(planned.plan, inventory),
        all_reduce=None if saved else _all_reduce(engine, planned.plan, inventory, cache),
        memory=planned.memory,
        plan_warnings=planned.plan.warnings,
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


def port_facts(port: int, own: frozenset[int], *, elsewhere: bool) -> dict[str, Any]:
    """Facts about a port on this machine; none about one `elsewhere`.

    A process that this user may not inspect is assumed to be the daemon's engine, if there is one.
    """
    present = [] if elsewhere else ports.listeners(port)
    others = [
        listener
        for listener in present
        if listener.pid not in own and not (own and listener.pid is None)
    ]
    listeners = None if elsewhere else tuple(map(str, others))
    return {"port": port, "listeners": listeners, "own_port": len(others) < len(present)}


def _find_unreadable(folder: Path) -> tuple[str, str]:
    """The first path that the service's user may not enter or read, with that user's name; else
    empty."""
    for name in (SERVICE_USER, engine_user.NAME):
        if place := model_access.closed_to(name, folder):
            return place, name
    return "", SERVICE_USER


def _writable(folder: Path) -> bool:
    """Whether this folder is writable or can be created."""
    place = next((p for p in (folder, *folder.parents) if p.exists()), Path("/"))
    return os.access(place, os.W_OK)
