"""Which cards are used, and over how many of them one model is split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import lcm
from types import MappingProxyType
from typing import Any

from caovand.core.config import Config
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard
from caovand.core.plan import Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.speeds import joined
from caovand.engines.vllm.flags.spelling import count
from caovand.engines.vllm.machine.capabilities import TURING
from caovand.engines.vllm.machine.ranks import PIPELINE, large, ranks_here, spans_machines, stages
from caovand.engines.vllm.planning.draft import Draft, policy, user

MIN_MIB = 1024
"""Memory of a CUDA context, PyTorch and a first buffer before any model is loaded."""


def choose_gpus(
    config: Config, inventory: Inventory, values: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Gpu, ...]:
    """The cards the engine may use; none for a CPU build. `values` are the settings so far.

    Memory is taken evenly from all of them, so a display card is left out unless it is named, or
    pipeline stages have layers by what each card holds.
    """
    if inventory.engine.build == "cpu":
        return ()
    if not inventory.gpus:
        raise Unplannable(
            "cannot start the engine: it is built for CUDA and no NVIDIA GPU is visible; "
            "check `nvidia-smi`, or install the CPU build with `sudo caovanctl engine install`",
            "gpu-absent",
        )
    chosen = _chosen(config.engine.gpus, inventory, staged=_staged(values))
    for gpu in chosen:
        if gpu.total_mib < MIN_MIB:
            raise Unplannable(
                f"cannot use GPU {gpu.index}: it has {gpu.total_mib} MiB, less than CUDA itself"
                " takes; name other cards in [engine] gpus, or install the CPU build with"
                " `sudo caovanctl engine install --build cpu`"
            )
    return chosen


def _staged(values: Mapping[str, Any]) -> bool:
    return (count(values.get(PIPELINE)) or 1) > 1


def _chosen(
    wanted: tuple[int, ...] | None, inventory: Inventory, *, staged: bool
) -> tuple[Gpu, ...]:
    if wanted is None:
        return _of_one_kind(inventory.gpus, staged=staged)
    # Parts of one partitioned card share its index: the freest is meant.
    present = {gpu.index: gpu for gpu in sorted(inventory.gpus, key=lambda gpu: gpu.free_mib)}
    absent = [index for index in wanted if index not in present]
    if absent:
        raise Unplannable(
            f"cannot use GPU {absent[0]}: the visible ones are {sorted(present)}; "
            "correct [engine] gpus or CUDA_VISIBLE_DEVICES",
            "gpu-absent",
        )
    for index in wanted:
        _refuse(present[index])
    return tuple(present[index] for index in wanted)


def unusable(gpu: Gpu) -> Problem | None:
    """Why vLLM cannot use this card; None if it can."""
    major, minor = gpu.compute_capability
    if gpu.compute_capability < TURING:
        return Problem(
            f"use GPU {gpu.index}",
            f"it is SM{major}{minor}, and vLLM 0.21 and later have no kernels before SM75",
            'set [engine] kind = "ollama", which serves GGUF models on it',
        )
    if gpu.mig and not gpu.uuid.startswith("MIG-"):
        return Problem(
            f"use GPU {gpu.index}",
            "it is partitioned (MIG), and the inventory does not tell its parts",
            "set CUDA_VISIBLE_DEVICES to the uuid of one (`nvidia-smi -L`), or end the"
            f" partitioning: `sudo nvidia-smi -i {gpu.index} -mig 0`",
        )
    return None


def left_out(config: Config, inventory: Inventory, values: Mapping[str, Any]) -> list[str]:
    """A warning for each card that the policy leaves out on its own."""
    if inventory.engine.build == "cpu" or config.engine.gpus is not None:
        return []
    small = (lambda gpu: None) if _staged(values) else partial(_too_small, gpus=inventory.gpus)
    found = [(gpu, unusable(gpu) or small(gpu)) for gpu in inventory.gpus]
    return [
        f"GPU {gpu.index} ({gpu.name}) is not used: {why.fact}; {why.remedy}"
        for gpu, why in found
        if why
    ]


def _too_small(gpu: Gpu, gpus: tuple[Gpu, ...]) -> Problem | None:
    """Why this card would hold the others back; None if it would not."""
    whole = [one for one in gpus if not unusable(one) and not one.mig]
    if gpu.mig or not whole or gpu in large(whole):
        return None
    largest = max(whole, key=lambda one: one.total_mib)
    listed = ", ".join(str(one.index) for one in whole)
    return Problem(
        f"use GPU {gpu.index}",
        f"memory is taken evenly, and it has {gpu.total_mib} MiB where GPU {largest.index} has"
        f" {largest.total_mib}",
        f"to use it all the same, set [engine] gpus = [{listed}]",
    )


def freest(gpus: tuple[Gpu, ...], count: int) -> tuple[Gpu, ...]:
    """So many of the cards, those with the most free memory, in their own order."""
    chosen = sorted(gpus, key=lambda gpu: -gpu.free_mib)[:count]
    return tuple(gpu for gpu in gpus if gpu in chosen)


def _of_one_kind(gpus: tuple[Gpu, ...], *, staged: bool) -> tuple[Gpu, ...]:
    """The usable cards that are large enough; of a partitioned card one part, as CUDA does."""
    usable = [gpu for gpu in gpus if not unusable(gpu)]
    if not usable:
        _refuse(gpus[0])
    whole = [gpu for gpu in usable if not gpu.mig]
    if not whole:
        return (max(usable, key=lambda gpu: gpu.free_mib),)
    return tuple(whole) if staged else large(whole)


def _refuse(gpu: Gpu) -> None:
    """Raise Unplannable if this card cannot be used."""
    why = unusable(gpu)
    if why:
        raise Unplannable(str(why), "backend-unsupported")


def cards_lacking(size: int, verbatim: Mapping[str, Any], cards: int) -> int:
    """How many cards a split takes in all if there are not so many here; else 0."""
    elsewhere = spans_machines(verbatim) or verbatim.get("distributed_executor_backend") == "ray"
    wanted = size * stages(verbatim)
    return 0 if elsewhere or wanted <= cards else wanted


def split_for(model: ModelCard, verbatim: Mapping[str, Any], cards: int) -> int:
    """The largest split that so many cards, and the model's shape, allow with these settings."""
    each = max(cards // stages(verbatim), 1)
    return largest_split(model, each, whole_experts=shards_whole_experts(verbatim))


def world_size(draft: Draft) -> int:
    """How many cards the engine uses on this machine."""
    return ranks_here(draft.values, 1 + len(draft.inventory.others))


def cards_to_split(draft: Draft) -> int:
    """Over how many cards the operator's stages and replicas, and the split, are spread."""
    nodes = 1 + len(draft.inventory.others)
    return len(draft.gpus) * (nodes if PIPELINE in draft.verbatim else 1)


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
            raise Unplannable(str(why))
        return user(typed, "[policy] tensor_parallel_size")
    size = split_for(draft.model, draft.verbatim, cards_to_split(draft))
    reason = f"the largest split the model's shape allows on {len(draft.gpus)} cards"
    return policy(size, f"{reason}, {joined(draft.gpus)}" if size > 1 else reason)


def split_is_ours(draft: Draft) -> bool:
    """Whether the policy chooses over how many cards the model is split."""
    verbatim, typed = draft.verbatim, draft.config.policy.tensor_parallel_size
    return typed is None and "tensor_parallel_size" not in verbatim and stages(verbatim) == 1


def spans_nodes(draft: Draft) -> bool:
    """Whether the split goes over several nodes."""
    return draft.count("tensor_parallel_size") > len(draft.gpus) and bool(draft.inventory.others)


def splits_below(model: ModelCard, size: int, *, whole_experts: bool = False) -> list[int]:
    """The smaller splits that the model's shape allows, the largest first."""
    return [
        fewer
        for fewer in range(size - 1, 0, -1)
        if not indivisible(model, fewer, whole_experts=whole_experts)
    ]


def refusal(draft: Draft, size: int) -> Problem | None:
    """Why the model cannot be split over so many cards; None if it can."""
    verbatim, cards = draft.verbatim, cards_to_split(draft)
    wanted = cards_lacking(size, verbatim, cards)
    if wanted:
        stated = "" if wanted == size else f"with its stages or replicas it takes {wanted}, and "
        fits = split_for(draft.model, verbatim, cards)
        fact, remedy = f"{stated}there are {cards}", f"set tensor_parallel_size = {fits}"
        return Problem(_split_over(size), fact, remedy)
    return indivisible(draft.model, size, whole_experts=shards_whole_experts(verbatim))


def shards_whole_experts(verbatim: Mapping[str, Any]) -> bool:
    """Whether each card holds whole experts instead of a part of every one."""
    return bool(verbatim.get("enable_expert_parallel"))


def largest_split(model: ModelCard, most: int, *, whole_experts: bool = False) -> int:
    """The largest split that the model's shape allows, over so many cards at most.

    Of a model that is not known: a power of two, which divides the heads of nearly every one.
    """
    if not model.architecture:
        return 1 << most.bit_length() - 1
    return max(splits_below(model, most + 1, whole_experts=whole_experts))


def indivisible(model: ModelCard, size: int, *, whole_experts: bool = False) -> Problem | None:
    """Why the model's shape does not allow this split, and which would do; None if it does.

    With expert parallelism each card holds whole experts.
    """
    if not model.architecture or size == 1:
        return None
    if model.heads % size:
        fact, remedy = f"it has {model.heads} attention heads", f"choose a divisor of {model.heads}"
        return Problem(_split_over(size), fact, remedy)
    if model.kv_heads % size and size % model.kv_heads:
        fact, remedy = f"it has {model.kv_heads} key-value heads", "choose a divisor or a multiple"
        return Problem(_split_over(size), fact, remedy)
    linear = model.linear
    if linear and (linear.key_heads % size or linear.value_heads % size):
        keys, values = linear.key_heads, linear.value_heads
        fact = f"its linear attention has {keys} key and {values} value heads"
        return Problem(_split_over(size), fact, "choose a divisor of both")
    return next(filter(None, (_uneven(part, size) for part in _cut(model, whole_experts))), None)


def _split_over(size: int) -> str:
    return f"split the model over {size} GPUs"


@dataclass(frozen=True)
class _Width:
    """A dimension that is cut over the ranks, and of what each rank must get a multiple."""

    part: str
    width: int
    multiple: int = 1


def _cut(model: ModelCard, whole_experts: bool) -> list[_Width]:
    """What vLLM cuts: MLPs and experts on both sides, attention at its heads."""
    # mxfp4 kernels pad every rank's part, and say so in no group size.
    group, block = max(model.group_size, 1), max(model.block_size, 1)
    quantised = lcm(group, block)

    def beside(part: str, width: int) -> _Width:
        return _Width(part, width, 1 if part in model.spared else quantised)

    found = []
    if model.experts and model.expert_size:
        if not whole_experts:
            found.append(_Width("experts", model.expert_size, quantised))
    elif not (model.experts and whole_experts):
        found.append(_Width("MLP", model.intermediate_size, quantised))
    found += [beside("shared experts", model.shared_size), beside("MLP", model.dense_size)]
    if not model.latent and "attention" not in model.spared:
        found.append(_Width("attention", model.heads * model.head_dim, quantised))
    return found


def _uneven(cut: _Width, size: int) -> Problem | None:
    fact = f"its {cut.part} of {cut.width} cannot be cut in {size}"
    if cut.width % size:
        return Problem(_split_over(size), fact, "choose a divisor")
    if cut.width // size % cut.multiple:
        fact = f"{fact} at quantisation groups of {cut.multiple}"
        other = " or --enable-expert-parallel" if cut.part == "experts" else ""
        return Problem(_split_over(size), fact, f"choose fewer GPUs{other}")
    return None
