"""Which cards are used, and over how many of them one model is split."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from caovand.core.config import Config
from caovand.core.draft import Draft, Unplannable, policy, user
from caovand.core.flags import whole_number
from caovand.core.inventory import Gpu, Inventory
from caovand.core.plan import Setting

LEAST_MIB = 1024
"""What a CUDA context, PyTorch and a first buffer take before there is any model."""
SMALL_CARD = 2
"""A card with less than this part of the largest one's memory would hold the others back."""


def choose_gpus(config: Config, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards the engine may use; none for a CPU build.

    Memory is taken evenly from all of them, so a display card is left out unless it is named.
    """
    if inventory.engine.build == "cpu":
        return ()
    if not inventory.gpus:
        raise Unplannable(
            "cannot start the engine: it is built for CUDA and no NVIDIA GPU is visible; "
            "check `nvidia-smi`, or install the CPU build with `caovanctl engine install`",
            "gpu-absent",
        )
    chosen = _chosen(config.engine.gpus, inventory)
    for gpu in chosen:
        if gpu.total_mib < LEAST_MIB:
            raise Unplannable(
                f"cannot use GPU {gpu.index}: it has {gpu.total_mib} MiB, less than CUDA itself"
                " takes; name other cards in [engine] gpus, or install the CPU build with"
                " `caovanctl engine install --build cpu`"
            )
    return chosen


def _chosen(wanted: tuple[int, ...] | None, inventory: Inventory) -> tuple[Gpu, ...]:
    if wanted is None:
        largest = max(gpu.total_mib for gpu in inventory.gpus)
        return tuple(gpu for gpu in inventory.gpus if gpu.total_mib * SMALL_CARD >= largest)
    present = {gpu.index: gpu for gpu in inventory.gpus}
    absent = [index for index in wanted if index not in present]
    if absent:
        raise Unplannable(
            f"cannot use GPU {absent[0]}: the visible ones are {sorted(present)}; "
            "correct [engine] gpus or CUDA_VISIBLE_DEVICES",
            "gpu-absent",
        )
    return tuple(present[index] for index in wanted)


def other_parallelism(given: Mapping[str, Any]) -> bool:
    """Whether cards are also used in stages or as replicas; nothing is forecast for that."""
    return _others(given) > 1


def _others(given: Mapping[str, Any]) -> int:
    names = ("pipeline_parallel_size", "data_parallel_size")
    return prod(max(whole_number(given.get(name)) or 1, 1) for name in names)


def world_size(draft: Draft) -> int:
    """How many cards the engine uses in all."""
    return draft.count("tensor_parallel_size") * _others(draft.given)


def tensor_parallel_size(draft: Draft) -> Setting | None:
    typed = draft.config.policy.tensor_parallel_size
    if not draft.cuda:
        if typed is not None and typed > 1:
            raise Unplannable(
                f"cannot split the model over {typed} GPUs: the engine is a CPU build; "
                'set tensor_parallel_size = "auto", or install a CUDA engine'
            )
        return None
    if typed is not None:
        why = refusal(draft, typed)
        if why:
            raise Unplannable(f"cannot split the model over {typed} GPUs: {why}")
        return user(typed, "[policy] tensor_parallel_size")
    most = max(len(draft.gpus) // _others(draft.given), 1)
    size = max(n for n in range(1, most + 1) if not refusal(draft, n))
    return policy(size, f"the largest split the model's heads allow on {len(draft.gpus)} cards")


def refusal(draft: Draft, size: int) -> str:
    """Why the model cannot be split over so many cards; empty where it can."""
    model = draft.model
    if size > len(draft.gpus):
        return f"there are {len(draft.gpus)}; set tensor_parallel_size = {len(draft.gpus)}"
    if not model.architecture or size == 1:
        return ""
    if model.heads % size:
        return f"it has {model.heads} attention heads; choose a divisor of {model.heads}"
    if model.kv_heads % size and size % model.kv_heads:
        return f"it has {model.kv_heads} key-value heads; choose a divisor or a multiple of that"
    linear = model.linear
    if linear and (linear.key_heads % size or linear.value_heads % size):
        return (
            f"its linear attention has {linear.key_heads} key and {linear.value_heads} value "
            "heads; choose a divisor of both"
        )
    group = model.group_size
    if group and model.intermediate_size % (size * group):
        return (
            f"its MLP of {model.intermediate_size} cannot be cut at quantisation groups of "
            f"{group}; choose fewer GPUs"
        )
    return ""
