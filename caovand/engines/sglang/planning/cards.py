"""The cards that SGLang can use, and how many of them a model is split over."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from caovand.core.config.schema import Config
from caovand.core.facts.inventory import EngineInfo, Gpu, Inventory, ModelCard
from caovand.core.plan import Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.cards import compiled_for
from caovand.engines.common.plans import choose_cards
from caovand.engines.common.speeds import all_linked, link_text
from caovand.engines.sglang.options import ATTENTION_GROUPS, GROUPED, REPLICAS, option

MIN_CAPABILITY, FULL_CARD = (7, 5), (8, 0)
"""Compute capability of the oldest cards that SGLang starts on, and for which its wheels have
kernels."""

MIN_DP_ATTENTION_CARDS = 4
"""The smallest number of cards for which separate attention is worth its weights on each card."""


def choose(config: Config, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards to use: those configured, else all that this SGLang has kernels for."""
    listed, engine = config.engine.gpus, inventory.engine
    gpus = choose_cards(config, inventory)
    if engine.build == "cpu" or not gpus:
        raise Unplannable(
            "cannot plan SGLang without a card: caovan runs only its CUDA build; set [engine] "
            'kind = "vllm", which has a CPU build'
        )
    able = tuple(gpu for gpu in gpus if has_kernels(engine, gpu))
    if not able or (listed is not None and len(able) < len(gpus)):
        gpu = next(gpu for gpu in gpus if gpu not in able)
        raise Unplannable(str(refusal(gpu)), "backend-unsupported")
    return able


def has_kernels(engine: EngineInfo, gpu: Gpu) -> bool:
    """Whether its kernel library has machine code for a card; assumed if it was not probed."""
    return gpu.compute_capability >= MIN_CAPABILITY and compiled_for(engine, gpu)


def refusal(gpu: Gpu) -> Problem:
    """Why a card cannot be used, and the remedy."""
    cannot = f"use GPU {gpu.index} ({gpu.name}) with SGLang"
    major, minor = gpu.compute_capability
    if gpu.compute_capability < MIN_CAPABILITY:
        fact = f"it supports compute capability 7.5 and later, not {major}.{minor}"
        return Problem(cannot, fact, 'set [engine] kind = "ollama"')
    return Problem(
        cannot,
        f"its kernel library (sglang-kernel) has no kernels for compute capability {major}.{minor}",
        'set [engine] kind = "vllm", which supports this card',
    )


def splits(model: ModelCard, gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """The numbers of cards over which a model can be split, fewest first."""
    powers = (1 << n for n in range(len(gpus).bit_length()))
    return tuple(n for n in powers if n <= len(gpus) and not why_indivisible(model, n))


def why_indivisible(model: ModelCard, size: int) -> str:
    """The part of the model that cannot be split over `size` cards; empty if all can."""
    if model.heads % size:
        return f"it has {model.heads} heads"
    uneven = uneven_cut(model, size)
    return uneven if model.experts % size or not model.experts else ""


def uneven_cut(model: ModelCard, size: int) -> str:
    """Why an MLP or expert cannot be cut over `size` cards; empty if it can.

    A card's part must consist of whole groups or blocks of weights with one scale: SGLang exits at
    the first part that does not.
    """
    part, width = ("experts", model.expert_size) if model.experts else ("MLP", 0)
    width = width or model.intermediate_size
    multiple = lcm(max(model.group_size, 1), max(model.block_size, 1))
    if size == 1 or width % (size * multiple) == 0:
        return ""
    return f"its {part} of {width} cannot be cut in {size} with quantisation groups of {multiple}"


def whole_experts(model: ModelCard, ranks: int) -> Setting | None:
    """The setting that keeps experts whole if they cannot be cut; None if they can."""
    uneven = uneven_cut(model, ranks) if model.experts else ""
    return Setting(ranks, "policy", f"each card holds whole experts: {uneven}") if uneven else None


def in_groups(inventory: Inventory, gpus: Sequence[Gpu], ranks: int) -> dict[str, Setting]:
    """The settings by which each of `ranks` cards attends to its own requests; none if that is not
    worth it, or if this SGLang cannot.

    A latent cache is not split: all cards of a group hold the same.
    """
    model, flags = inventory.model, inventory.engine.flags
    if not (model.latent and model.experts) or model.hybrid or ranks < MIN_DP_ATTENTION_CARDS:
        return {}
    if not all_linked(gpus):
        return {}
    reason = (
        "for batch workloads: each card caches its own requests; otherwise all would cache the "
        "same ones"
    )
    if option(ATTENTION_GROUPS) in flags:
        return {ATTENTION_GROUPS: Setting(ranks, "policy", reason)}
    if flags and option(GROUPED) not in flags:
        return {}
    return {
        REPLICAS: Setting(ranks, "policy", reason),
        GROUPED: Setting(True, "policy", "only attention has replicas, not the whole model"),
    }


def stated_split(config: Config, inventory: Inventory, gpus: Sequence[Gpu]) -> Setting | None:
    """The split that is configured, or that needs no forecast; None if memory decides."""
    most, model = config.policy.tensor_parallel_size, inventory.model
    if most is not None:
        unfit = why_indivisible(model, most)
        if most > len(gpus) or unfit:
            fact = f"the machine has {len(gpus)} cards" if most > len(gpus) else unfit
            raise Unplannable(
                f"cannot split the model over {most} cards: {fact}; set [policy]"
                " tensor_parallel_size to a number that fits"
            )
        return Setting(most, "user", "[policy] tensor_parallel_size")
    if len(gpus) == 1:
        return Setting(1, "policy", "one card")
    able = splits(model, gpus)
    if all_linked(gpus) and config.policy.workload != "batch":
        return Setting(able[-1], "policy", f"{able[-1]} cards, {link_text(gpus)}")
    return None
