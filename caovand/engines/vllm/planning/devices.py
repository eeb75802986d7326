"""The cards that are used, their memory that others hold, and the split of the model over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.facts.inventory import Gpu, Host, Inventory, Node
from caovand.core.facts.occupancy import BUSY_MIB, in_use, without_other_processes
from caovand.core.plan import Setting, Unplannable
from caovand.core.problem import Problem
from caovand.engines.common.speeds import all_linked, link_text
from caovand.engines.vllm.flags.spelling import count
from caovand.engines.vllm.machine.capabilities import TURING, oldest_first
from caovand.engines.vllm.machine.ranks import (
    CARDS_ALIKE,
    EXPERT_PARALLEL,
    PIPELINE,
    Split,
    cards_lacking,
    large_cards,
    needs_whole_experts,
    ranks_here,
    serving_cards,
    shape_problem,
    shards_whole_experts,
    spans_machines,
    split_for,
    split_over,
    tensor_groups,
)
from caovand.engines.vllm.planning.partial_plan import PartialPlan, policy, user

MIN_MIB = 1024
"""Memory of a CUDA context, PyTorch and a first buffer before any model is loaded."""


def choose_gpus(
    config: Config, inventory: Inventory, values: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Gpu, ...]:
    """The cards that the engine may use; none for a CPU build. `values` are the settings so far.

    Memory is taken evenly from all of them, so a display card is left out unless it is configured,
    or pipeline stages have layers by the memory of each card. The oldest comes first, unless they
    are configured: vLLM chooses the kernels of all cards by the first.
    """
    if inventory.engine.build == "cpu":
        if problem := cpu_problem(inventory.host):
            raise Unplannable(str(problem), "backend-unsupported")
        return ()
    if not inventory.gpus:
        raise Unplannable(
            "cannot start the engine: it is built for CUDA, but no NVIDIA GPU is visible; check "
            "`nvidia-smi`, or install the CPU build with `sudo caovanctl engine install`",
            "gpu-absent",
        )
    chosen = _select_cards(config.engine.gpus, inventory, staged=_has_stages(values))
    for gpu in chosen:
        if gpu.total_mib < MIN_MIB:
            raise Unplannable(
                f"cannot use GPU {gpu.index}: it has {gpu.total_mib} MiB, less than CUDA itself "
                "needs; choose other cards in [engine] gpus, or install the CPU build with "
                "`sudo caovanctl engine install --build cpu`"
            )
    return chosen


def cpu_problem(host: Host) -> Problem | None:
    """Why vLLM's CPU build cannot use this CPU; None if it can, or if it is unknown."""
    if host.architecture != "x86_64" or not host.instructions or "avx2" in host.instructions:
        return None
    return Problem(
        "run vLLM on this CPU",
        "its CPU build needs AVX2, which this CPU lacks",
        'serve a GGUF file with [engine] kind = "llamacpp"',
    )


def _has_stages(values: Mapping[str, Any]) -> bool:
    return (count(values.get(PIPELINE)) or 1) > 1


def _select_cards(
    wanted: tuple[int, ...] | None, inventory: Inventory, *, staged: bool
) -> tuple[Gpu, ...]:
    if wanted is None:
        return oldest_first(_of_one_kind(inventory.gpus, staged=staged))
    # Parts of one partitioned card share its index: the part with the most free memory is meant.
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


def card_problem(gpu: Gpu) -> Problem | None:
    """Why vLLM cannot use this card; None if it can."""
    major, minor = gpu.compute_capability
    if gpu.compute_capability < TURING:
        return Problem(
            f"use GPU {gpu.index}",
            f"it is SM{major}{minor}, but vLLM 0.21 and later have no kernels before SM75",
            'set [engine] kind = "ollama", which serves GGUF models on it',
        )
    if gpu.mig and not gpu.uuid.startswith("MIG-"):
        return Problem(
            f"use GPU {gpu.index}",
            "it is partitioned (MIG), but the inventory does not list its parts",
            "set CUDA_VISIBLE_DEVICES to the uuid of one (`nvidia-smi -L`), or turn "
            f"partitioning off: `sudo nvidia-smi -i {gpu.index} -mig 0`",
        )
    return None


def unused_card_warnings(
    config: Config, inventory: Inventory, values: Mapping[str, Any]
) -> list[str]:
    """A warning for each card that the policy itself leaves out."""
    if inventory.engine.build == "cpu" or config.engine.gpus is not None:
        return []
    staged = _has_stages(values)
    problems = [
        (gpu, card_problem(gpu) or (None if staged else _size_problem(gpu, inventory.gpus)))
        for gpu in inventory.gpus
    ]
    return [
        f"GPU {gpu.index} ({gpu.name}) is not used: {problem.fact}"
        + (f"; {problem.remedy}" if gpu.compute_capability >= TURING else "")
        for gpu, problem in problems
        if problem
    ]


def _size_problem(gpu: Gpu, gpus: tuple[Gpu, ...]) -> Problem | None:
    """Why this card would slow the others down; None if it would not."""
    whole = [other for other in gpus if not card_problem(other) and not other.mig]
    if gpu.mig or not whole or gpu in large_cards(whole):
        return None
    largest = max(whole, key=lambda other: other.total_mib)
    listed = ", ".join(str(other.index) for other in whole)
    return Problem(
        f"use GPU {gpu.index}",
        f"every card contributes the same amount of memory, but it has {gpu.total_mib} MiB and "
        f"GPU {largest.index} has {largest.total_mib}",
        f"to use it anyway, set [engine] gpus = [{listed}]",
    )


def freest_cards(gpus: tuple[Gpu, ...], count: int) -> tuple[Gpu, ...]:
    """The `count` cards with the most free memory, in their own order.

    Among cards with the same free memory, the newest, and those that NVLink connects.
    """
    newest = sorted(gpus, key=lambda gpu: gpu.compute_capability, reverse=True)
    chosen = sorted(newest, key=lambda gpu: -gpu.free_mib)[:count]
    if 1 < count < len(gpus) and not all_linked(chosen):
        bound = min(gpu.free_mib for gpu in chosen) * (1 - CARDS_ALIKE)
        groups = combinations([gpu for gpu in gpus if gpu.free_mib >= bound], count)
        chosen = next((list(group) for group in groups if all_linked(group)), chosen)
    return tuple(gpu for gpu in gpus if gpu in chosen)


def _of_one_kind(gpus: tuple[Gpu, ...], *, staged: bool) -> tuple[Gpu, ...]:
    """The usable cards that are large enough; of a partitioned card one part, as in CUDA."""
    usable = [gpu for gpu in gpus if not card_problem(gpu)]
    if not usable:
        _refuse(gpus[0])
    whole = [gpu for gpu in usable if not gpu.mig]
    if not whole:
        return (max(usable, key=lambda gpu: gpu.free_mib),)
    return tuple(whole) if staged else large_cards(whole)


def _refuse(gpu: Gpu) -> None:
    """Raise Unplannable if this card cannot be used."""
    problem = card_problem(gpu)
    if problem:
        raise Unplannable(str(problem), "backend-unsupported")


def world_size(partial: PartialPlan) -> int:
    """The number of cards that the engine uses on this machine."""
    return ranks_here(partial.values, 1 + len(partial.inventory.others))


def cards_to_split(partial: PartialPlan) -> int:
    """The number of cards the model is split over, including the operator's stages and replicas."""
    nodes = 1 + len(partial.inventory.others)
    return len(partial.gpus) * (nodes if PIPELINE in partial.verbatim else 1)


def tensor_parallel_in_node(partial: PartialPlan) -> Setting | None:
    """The split inside each node. Raises Unplannable."""
    typed = partial.config.policy.tensor_parallel_size
    if not partial.cuda:
        if typed is not None and typed > 1:
            raise Unplannable(
                f"cannot split the model over {typed} GPUs: the engine is a CPU build; "
                'set tensor_parallel_size = "auto", or install a CUDA engine'
            )
        return None
    if typed is not None:
        problem = split_problem(partial, typed)
        if problem:
            raise Unplannable(str(problem))
        return user(typed, "[policy] tensor_parallel_size")
    if split := partial.trial.split:
        return policy(split.tensor, _why_split(partial, split))
    cards = cards_to_split(partial)
    size = split_for(partial.model, partial.verbatim, cards, whole_tiles=partial.whole_tiles)
    if len(partial.gpus) == 1 and size == 1:
        return policy(size, "one card")
    reason = f"the largest split the model's shape allows on {len(partial.gpus)} cards"
    problem = _shape_problem(partial, cards) if size < cards else None
    reason = f"{reason} ({problem.fact})" if problem else reason
    reason = f"{reason}, {link_text(partial.gpus)}" if size > 1 else reason
    return policy(size, reason)


def _shape_problem(partial: PartialPlan, size: int) -> Problem | None:
    """Why the model's shape does not allow this split; None if it does."""
    whole = shards_whole_experts(partial.verbatim)
    return shape_problem(partial.model, size, whole_experts=whole, whole_tiles=partial.whole_tiles)


def _why_split(partial: PartialPlan, split: Split) -> str:
    """The reason for a split that was tried."""
    if split.replicas > 1 and split.tensor == 1:
        return "each replica has its own card"
    if split.replicas > 1:
        cards = partial.gpus[: split.tensor]
        return f"{split.tensor} cards share each layer of a replica, {link_text(cards)}"
    if split.stages == 1:
        return f"{split.tensor} cards share each layer, {link_text(partial.gpus)}"
    if split.tensor == 1:
        return "each stage has its own card"
    cards = partial.gpus[: split.tensor]
    return f"{split.tensor} cards share each layer of a stage, {link_text(cards)}"


def enable_expert_parallel(partial: PartialPlan) -> Setting | None:
    size = partial.count("tensor_parallel_size")
    split = partial.trial.split
    spread = partial.model.experts and split and split.replicas > 1
    cut = spread and split and split.cuts_experts
    if spread and not cut and EXPERT_PARALLEL not in partial.verbatim:
        return policy(True, "the experts are spread over the cards of all replicas")
    if not partial.cuda or cut:
        return None
    indivisibility = needs_whole_experts(
        partial.model, size, partial.verbatim, whole_tiles=partial.whole_tiles
    )
    return (
        policy(True, f"each card holds whole experts: {indivisibility}") if indivisibility else None
    )


def is_single_node(partial: PartialPlan) -> bool:
    """Whether all cards that the engine uses are in this machine."""
    return not partial.inventory.others and not spans_machines(partial.verbatim)


def all_cards(partial: PartialPlan) -> tuple[Gpu, ...]:
    """The cards that stages may use: of any size."""
    return choose_gpus(partial.config, partial.inventory, {**partial.verbatim, PIPELINE: 2})


def split_is_ours(partial: PartialPlan) -> bool:
    """Whether the policy chooses the number of cards over which the model is split."""
    verbatim, typed = partial.verbatim, partial.config.policy.tensor_parallel_size
    return typed is None and "tensor_parallel_size" not in verbatim and tensor_groups(verbatim) == 1


def spans_nodes(partial: PartialPlan) -> bool:
    """Whether the split goes over several nodes."""
    return partial.count("tensor_parallel_size") > len(partial.gpus) and bool(
        partial.inventory.others
    )


def split_problem(partial: PartialPlan, size: int) -> Problem | None:
    """Why the model cannot be split over `size` cards; None if it can."""
    verbatim, cards = partial.verbatim, cards_to_split(partial)
    wanted = cards_lacking(size, verbatim, cards)
    if wanted:
        stated = "" if wanted == size else f"with its stages or replicas it takes {wanted}, and "
        fits = split_for(partial.model, verbatim, cards, whole_tiles=partial.whole_tiles)
        fact, remedy = f"{stated}there are {cards}", f"set tensor_parallel_size = {fits}"
        return Problem(split_over(size), fact, remedy)
    if needs_whole_experts(partial.model, size, verbatim, whole_tiles=partial.whole_tiles):
        return None
    return _shape_problem(partial, size)


FREE_CARDS = "free the cards"
"""The beginning of the advice if other processes take the memory."""
NO_VALUES: Mapping[str, Any] = MappingProxyType({})


def memory_holders(
    gpus: tuple[Gpu, ...], others: Sequence[Node] = (), values: Mapping[str, Any] = NO_VALUES
) -> str:
    """The processes that use memory of these cards, how much, and on which; empty for little.

    On the `others` the cards count that a plan with these values uses; their processes are unknown.
    """
    users = []
    for gpu in gpus:
        known = [user for user in gpu.users if user[2]]
        users += [
            f"{name} (pid {pid}) holds {mib} MiB of GPU {gpu.index}" for pid, name, mib in known
        ]
        rest = in_use(gpu) - sum(mib for _, _, mib in known)
        if rest >= BUSY_MIB:
            users.append(f"{rest} MiB of GPU {gpu.index} are used by {_users_without_memory(gpu)}")
    for name, gpu in serving_cards((), others, values):
        if in_use(gpu) >= BUSY_MIB:
            users.append(f"programs on {name} hold {in_use(gpu)} MiB of a card there")
    return ", ".join(users)


def _users_without_memory(gpu: Gpu) -> str:
    pids = [f"{name} (pid {pid})" for pid, name, mib in gpu.users if not mib]
    return " and ".join(pids) or "processes that the driver does not list"


def all_without_other_processes(inventory: Inventory) -> Inventory:
    """The cards of all nodes as if nobody else used them."""
    others = tuple(
        replace(node, gpus=without_other_processes(node.gpus)) for node in inventory.others
    )
    return replace(inventory, gpus=without_other_processes(inventory.gpus), others=others)
