"""Examine this machine, or a saved inventory, for one configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from caovand.adapters import model_folder
from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.files.directories import own_directories
from caovand.adapters.system import host, memory_speed
from caovand.cli.common.alternatives import alternatives
from caovand.cli.common.survey import (
    asked_config,
    cache_of,
    chosen_mode,
    engine_processes,
    inspect,
    running,
)
from caovand.cli.doctor.facts import Case, gather
from caovand.cli.doctor.own_machine import own_machine_checks
from caovand.core.config.schema import Config
from caovand.core.doctor.checks import MEMORY, MODEL, PLAN
from caovand.core.doctor.facts import DoctorFacts
from caovand.core.engine.record import Engine
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import ModelCard
from caovand.core.problem import Problem
from caovand.preparation.model import read_model

PATIENCE_S = 3.0
"""The time to wait for an engine that was never probed: its vLLM may take half a minute."""


def examine(
    file: Path | None,
    saved: Path | None = None,
    words: Sequence[str] = (),
    runtime: Path | None = None,
) -> tuple[CheckResult, ...]:
    """All results for a configuration file, or for the daemon's.

    `saved` is an inventory to check instead of this machine; `words` are a model and vLLM's flags;
    `runtime` is the folder of the daemon's sockets. Raises CommandError.
    """
    path, flags = (words[0], words[1:]) if words and words[0][0] != "-" else (None, words)
    status = {} if saved else running(runtime)
    config, source = asked_config(file, status, path)
    extra = (*config.engine.extra_args, *flags)
    config = replace(config, engine=replace(config.engine, extra_args=extra))
    pid, mode = status.get("engine_pid"), chosen_mode(status, saved)
    with ThreadPoolExecutor(1) as pool:  # read a model from a slow disk while querying the engine
        reading = pool.submit(_read_model, config)
        machine = inspect(config, saved, pid, PATIENCE_S, source)
    model, model_problem = reading.result()
    in_gguf = model is not None and model.gguf is not None
    if in_gguf and not saved and machine.host.memory_gb_s is None:
        own_cache = own_directories(os.environ, os.getuid()).cache
        machine = replace(
            machine, host=memory_speed.with_memory_speed(machine.host, measure_in=own_cache)
        )
    cache = cache_of(status)
    if not saved:
        free_mib = host.read_host(cache).cache_free_mib
        machine = replace(machine, host=replace(machine.host, cache_free_mib=free_mib))
    facts = gather(
        Case(
            config, machine, model, model_problem, saved, mode, cache,
            engine_pids=engine_processes(pid) if pid else frozenset(),
        )
    )  # fmt: skip
    engine = chosen_engine(config)
    checks = engine.planning.checks(facts)
    here = () if saved else own_machine_checks(config, status)
    if config.cluster.role == "worker":
        return (*checks, _planned_by(config.cluster.head), *here)
    return (*checks, *_alternatives(engine, facts, checks), *here)


def _planned_by(head: str) -> CheckResult:
    text = f"this machine is a worker of {head}, and its head plans over all nodes"
    return CheckResult(PLAN, "PASS", f"{text}: `caovanctl doctor` there checks that plan")


def _alternatives(
    engine: Engine, facts: DoctorFacts, checks: tuple[CheckResult, ...]
) -> Iterator[CheckResult]:
    """Other engines for a model that this one cannot serve, or serves far more slowly."""
    failed = any(
        result.verdict == "FAIL" and result.group in (MODEL, MEMORY, PLAN) for result in checks
    )
    if facts.model is None or not (failed or facts.tokens_s):
        return
    tokens_s = 0.0 if failed else facts.tokens_s or 0.0
    yield from alternatives(engine, facts.model, facts.gpus, facts.host, tokens_s)


def _read_model(config: Config) -> tuple[ModelCard | None, Problem | None]:
    try:
        return read_model(config, os.environ), None
    except model_folder.ModelProblem as problem:
        return None, problem.problem
