"""The cards that a build of llama.cpp can use."""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.config.schema import Config
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.facts.shortfalls import oldest_card
from caovand.core.plan import Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.cards import compiled_for
from caovand.engines.common.plans import choose_cards

MIN_CAPABILITY = oldest_card("13")
"""Compute capability of the oldest cards that `caovanctl engine install` builds for."""


def choose(config: Config, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards to use, those with the most free memory if fewer are requested; none with a CPU
    build."""
    engine = inventory.engine
    if engine.build == "cpu":
        return ()
    gpus = choose_cards(config, inventory)
    able = tuple(gpu for gpu in gpus if compiled_for(engine, gpu))
    if config.engine.gpus is not None and len(able) < len(gpus):
        gpu = next(gpu for gpu in gpus if gpu not in able)
        raise Unplannable(str(refusal(gpu)), "backend-unsupported")
    most = config.policy.tensor_parallel_size
    if most is not None and len(able) > most:
        able = tuple(sorted(able, key=lambda gpu: -gpu.free_mib)[:most])
    return tuple(sorted(able, key=lambda gpu: gpu.index))


def left_out(config: Config, inventory: Inventory) -> Iterator[str]:
    """A warning for each card that this build has no code for."""
    engine = inventory.engine
    if engine.build == "cpu" or config.engine.gpus is not None:
        return
    for gpu in inventory.gpus:
        if not compiled_for(engine, gpu):
            problem = refusal(gpu)
            yield f"GPU {gpu.index} ({gpu.name}) is not used: {problem.fact}; {problem.remedy}"


def none_usable(config: Config, inventory: Inventory) -> Problem | None:
    """Why this build can use none of the cards; None if it can use one, or if there are no
    cards."""
    gpus, engine = inventory.gpus, inventory.engine
    if engine.build == "cpu" or config.engine.gpus is not None or not gpus:
        return None
    return None if any(compiled_for(engine, gpu) for gpu in gpus) else refusal(gpus[0])


def refusal(gpu: Gpu) -> Problem:
    """Why a card cannot be used, and the remedy."""
    number = "{}.{}".format(*gpu.compute_capability)
    remedy = f"sudo caovanctl engine install --kind llamacpp --again --capability {number}"
    if gpu.compute_capability < MIN_CAPABILITY:
        remedy = "build llama.cpp with CUDA 12"
        if gpu.compute_capability >= oldest_card("12"):
            remedy = f'set [engine] kind = "ollama", which supports it, or {remedy}'
    return Problem(
        f"use GPU {gpu.index} ({gpu.name}) with this llama.cpp",
        f"its build has no kernels for compute capability {number}",
        remedy,
    )
