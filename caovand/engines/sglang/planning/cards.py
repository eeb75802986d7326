"""Which cards SGLang can use, and how many of them a model is split over."""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.config import Config
from caovand.core.facts.inventory import EngineInfo, Gpu, Inventory
from caovand.core.plan import Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.cards import compiled_for
from caovand.engines.common.plans import chosen_cards
from caovand.engines.common.speeds import all_linked, link_text

OLDEST_CARD, FULL_CARD = (7, 5), (8, 0)
"""Compute capability of the oldest cards that SGLang starts on, and that its wheels have kernels
for."""


def chosen(config: Config, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards to use: those named, else all that this SGLang has kernels for."""
    wanted, engine = config.engine.gpus, inventory.engine
    gpus = chosen_cards(config, inventory)
    if engine.build == "cpu" or not gpus:
        raise Unplannable(
            "cannot plan SGLang without a card: caovan runs its CUDA build only; set [engine] kind"
            ' = "vllm", which has a CPU build'
        )
    able = tuple(gpu for gpu in gpus if has_kernels(engine, gpu))
    if not able or (wanted is not None and len(able) < len(gpus)):
        gpu = next(gpu for gpu in gpus if gpu not in able)
        raise Unplannable(str(refusal(gpu)))
    return able


def has_kernels(engine: EngineInfo, gpu: Gpu) -> bool:
    """Whether its kernel library has machine code for a card; assumed if it was not asked."""
    return gpu.compute_capability >= OLDEST_CARD and compiled_for(engine, gpu)


def refusal(gpu: Gpu) -> Problem:
    """Why a card cannot be used, and what to do."""
    cannot = f"use GPU {gpu.index} ({gpu.name}) with SGLang"
    major, minor = gpu.compute_capability
    if gpu.compute_capability < OLDEST_CARD:
        fact = f"it supports compute capability 7.5 and later, not {major}.{minor}"
        return Problem(cannot, fact, 'set [engine] kind = "ollama"')
    return Problem(
        cannot,
        f"its kernel library (sglang-kernel) has no code for compute capability {major}.{minor}",
        'set [engine] kind = "vllm", which supports this card',
    )


def splits(model_heads: int, gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Over how many cards a model with these heads can be split, fewest first."""
    powers = (1 << n for n in range(len(gpus).bit_length()))
    return tuple(n for n in powers if n <= len(gpus) and model_heads % n == 0)


def wanted_split(config: Config, inventory: Inventory, gpus: Sequence[Gpu]) -> Setting | None:
    """The split that is configured, or that needs no forecast; None if memory decides."""
    most = config.policy.tensor_parallel_size
    heads = inventory.model.heads
    if most is not None:
        if most > len(gpus) or heads % most:
            fact = f"there are {len(gpus)} cards" if most > len(gpus) else f"it has {heads} heads"
            raise Unplannable(
                f"cannot split the model over {most} cards: {fact}; set [policy]"
                " tensor_parallel_size to a number that fits"
            )
        return Setting(most, "user", "[policy] tensor_parallel_size")
    if len(gpus) == 1:
        return Setting(1, "policy", "one card")
    able = splits(heads, gpus)
    if all_linked(gpus):
        return Setting(able[-1], "policy", f"{able[-1]} cards, {link_text(gpus)}")
    return None
