"""Checks before an engine starts: orphans, port, engine, model, cards; then the plan."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from caovand.adapters import child, model_folder
from caovand.adapters.child import Engines
from caovand.adapters.engine import probe
from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.files import config_file, private_tmp, trust
from caovand.adapters.files.directories import Directories
from caovand.adapters.gpu import nvml
from caovand.adapters.network import ports
from caovand.adapters.privileges import model_access
from caovand.adapters.system import host, memory_speed
from caovand.core import limits
from caovand.core.config.schema import Config, Mode
from caovand.core.engine.record import Engine
from caovand.core.facts import occupancy
from caovand.core.facts.inventory import EngineInfo, Inventory, ModelCard, device_name
from caovand.core.facts.ownership import Process
from caovand.core.healing import degraded
from caovand.core.healing.failure import Failure, Finding
from caovand.core.healing.foreseen import foresee
from caovand.core.plan import Plan, Unplannable
from caovand.core.problem import Problem, ProblemError
from caovand.core.tuning.planning import tuned_plan
from caovand.preparation.confinement import confinement
from caovand.preparation.model import read_model
from caovand.preparation.plan_request import PlanRequest


class StartObstacle(Exception):
    """The engine cannot start now; with `hold`, waiting may help."""

    def __init__(self, failure: Failure, text: str, *, hold: bool, phase: str = "plan") -> None:
        super().__init__(text)
        self.finding, self.hold = Finding(failure, text, phase), hold


@dataclass(frozen=True)
class PreparedStart:
    """A plan with its inventory and mode, and the fingerprint under which its rungs are kept."""

    plan: Plan
    inventory: Inventory
    fingerprint: str
    mode: Mode


async def end_orphans(
    ledger: Path,
    before_kill: Callable[[Sequence[int]], Awaitable[None]],
    groups: Sequence[Path] = (),
    engines: Engines | None = None,
) -> tuple[Process, ...]:
    """End a killed daemon's orphans and return them. Raises StartObstacle if one outlives KILL."""
    orphans, left = await child.end_orphans(ledger, before_kill, groups, engines)
    if left:
        raise StartObstacle(
            "vram-busy",
            f"cannot start: {child.for_people(left)} of an earlier engine cannot be killed;"
            " check the kernel log for a hung driver, and reboot if they stay",
            hold=True,
            phase="ending",
        )
    return orphans


def check_kind(config: Config, engine: Engine) -> None:
    """Raise StartObstacle if the model is for another engine than this one (blocking).

    A daemon keeps its initial kind of engine, together with its ladder, log parser and probe.
    """
    chosen = chosen_engine(config)
    if chosen.name != engine.name:
        raise StartObstacle(
            "bad-arguments",
            f"cannot start: {config.model.path or 'the configuration'} is for {chosen.title}, "
            f"but this daemon started with {engine.title}; restart it: sudo systemctl restart "
            "caovan",
            hold=True,
        )


def check_cards(plan: Plan, before: Inventory) -> None:
    """Raise StartObstacle if a card that this plan uses is gone (blocking)."""
    cards = [gpu for gpu in before.gpus if device_name(gpu) in (plan.cards or ())]
    present = {gpu.uuid or gpu.index for gpu in nvml.read_gpus()} if cards else ()
    gone = [str(gpu.index) for gpu in cards if (gpu.uuid or gpu.index) not in present]
    if gone:
        raise StartObstacle(
            "gpu-absent",
            f"cannot start: GPU {', '.join(gone)} does not answer; check `nvidia-smi` and the"
            " kernel log; a lost card needs a reset or a reboot",
            hold=True,
        )


def no_card(engine: Engine) -> StartObstacle:
    """The obstacle of a CUDA build without a card; suggests a CPU build if caovan installs one."""
    fact = "cannot start a CUDA engine: no NVIDIA GPU is visible; check `nvidia-smi`"
    if "cpu" in engine.install.versions:
        fact += f", or install the CPU build: `{engine.probe.install} --build cpu`"
    return StartObstacle("gpu-absent", fact, hold=True)


def check_port(port: int, setting: str = "[server] port") -> None:
    """Raise StartObstacle if another process listens on this port; `setting` is its key."""
    others = ports.listeners(port)
    if others:
        who = ", ".join(str(other) for other in others)
        raise StartObstacle(
            "port-busy",
            f"cannot use port {port}: {who} listens there; stop it, or choose another {setting}",
            hold=True,
        )


def check_cheap(request: PlanRequest) -> None:
    """Check what needs no engine, which may take a minute to respond (blocking).

    Raises StartObstacle, or ConfigError for a bad key file.
    """
    config = request.config
    config_file.api_key(config, config.engine.extra_args, request.environ, request.engine.arguments)
    typed = any(word.startswith("--port") for word in config.engine.extra_args)
    if request.before is None and not typed:
        check_port(config.server.port)


def _reachable(error: ProblemError, path: str) -> str:
    """The problem with this path, with another remedy if only the service cannot reach it."""
    remedy = private_tmp.remedy(path)
    return str(replace(error.problem, remedy=remedy) if remedy else error.problem)


def planned_for(request: PlanRequest, inventory: Inventory) -> PreparedStart:
    """Plan for the inspected machine. Raises StartObstacle, also for a plan that cannot succeed."""
    config, engine = request.config, request.engine
    mark = degraded.fingerprint(config, inventory)
    # A running engine keeps its rungs, even if others have freed memory since.
    used = None if request.before else occupancy.used_by_card(inventory.gpus)
    try:
        plan = _plan_as_last_time(request, inventory, mark, used)
    except Unplannable as problem:
        raise obstacle_of(problem) from problem
    plan, known = foresee(engine, config, plan, inventory, partial(_make, request, inventory))
    if known is not None:
        raise StartObstacle(known.finding.failure, known.finding.text, hold=known.hold)
    return PreparedStart(plan, inventory, mark, request.chosen_mode)


def obstacle_of(problem: Unplannable) -> StartObstacle:
    """The obstacle if nothing can be planned; only missing cards or memory are worth a wait."""
    hold = problem.failure in ("gpu-absent", "vram-busy")
    return StartObstacle(problem.failure, str(problem), hold=hold)


def _model(request: PlanRequest) -> ModelCard:
    try:
        card = read_model(request.config, request.environ)
        if request.engine.models is None:
            env = {**request.environ, **dict(request.config.engine.env)}
            model_access.check(card, env)
        return card
    except model_folder.ModelProblem as problem:
        text = _reachable(problem, request.config.model.path)
        hold = bool(limits.limit_reached(problem))
        raise StartObstacle("model-missing", text, hold=hold) from problem


def _engine(request: PlanRequest, directories: Directories) -> EngineInfo:
    try:
        trust.require(request.python, request.source)
        reach = confinement(
            request.engine, request.config, directories, request.python, request.environ
        )
        engine = probe.probe_engine(
            request.engine.probe, request.python, directories.cache, confinement=reach
        )
        if engine.executable:
            trust.require(engine.executable, request.source)
    except trust.Distrusted as problem:
        raise StartObstacle("engine-unusable", str(problem), hold=True) from problem
    except probe.EngineMissing as problem:
        text = _reachable(problem, request.python)
        raise StartObstacle("engine-unusable", text, hold=True) from problem
    return engine


def inspect(request: PlanRequest, directories: Directories) -> Inventory:
    """Inspect engine, model and machine (blocking, about a second). Raises StartObstacle."""
    # An installed engine may take a minute to respond; a missing one is detected at once.
    if os.path.exists(request.python):
        model = _model(request)
        engine = _engine(request, directories)
    else:
        engine = _engine(request, directories)
        model = _model(request)
    gpus = request.before.gpus if request.before else nvml.read_gpus()
    if engine.build == "cuda" and not gpus:
        raise no_card(request.engine)
    machine = request.before.host if request.before else host.read_host(directories.cache)
    if model.gguf is not None:  # layers go to the fastest memory
        cache = directories.cache
        machine = memory_speed.with_memory_speed(machine, cache, measure_in=cache)
    return Inventory(gpus, machine, engine, model)


def _make(
    request: PlanRequest, inventory: Inventory, config: Config, remembered: Plan | None = None
) -> Plan:
    return request.engine.planning.make(
        config,
        inventory,
        mode=request.mode,
        environ=request.environ,
        remembered=remembered,
    )


def _plan_as_last_time(
    request: PlanRequest, inventory: Inventory, mark: str, used: occupancy.Used | None
) -> Plan:
    """The plan, with the rungs that served last time if such a plan is still possible."""
    healing = request.engine.healing
    kept = degraded.from_document(request.good_plan, mark, request.chosen_mode, used, healing)

    plan = partial(_make, request, inventory)
    try:
        planned = plan(request.config, kept)
    except Unplannable:
        raise
    except Exception as problem:  # a file of another version that passed the check
        if kept is None:
            raise
        text = f"cannot use the degraded plan that served: {type(problem).__name__}: {problem}"
        full = plan(request.config)
        return replace(full, caveats=(*full.caveats, Problem("", text, "")))
    depth = request.tuned(planned) if request.tuned else None
    forecast = request.engine.planning.forecast
    return tuned_plan(
        planned, depth, request.config, plan, lambda candidate: forecast(candidate, inventory).fits
    )
