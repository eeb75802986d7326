"""Ranks on cards and nodes, as vLLM assigns them, and the splits that a model allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

from caovand.core.facts.inventory import Gpu, ModelCard, Node
from caovand.core.problem import Problem
from caovand.engines.common.speeds import card_speed
from caovand.engines.vllm.flags.spelling import count
from caovand.engines.vllm.machine.capabilities import PADDING_REMEDY, not_whole_tiles, tile_side

TENSOR, PIPELINE, REPLICAS = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"
)  # fmt: skip
EXPERT_PARALLEL = "enable_expert_parallel"
HEAD = "head"
"""The name of the node that plans for all others."""
SMALL_CARD = 2
"""A card with less than this fraction of the largest card's memory would slow the others down."""


@dataclass(frozen=True)
class Split:
    """How the cards of a node share a model: each layer is on the `tensor` cards of a stage, and
    each of the `replicas` serves its own requests. Their experts are dealt to all cards, or each of
    them is cut over all (`cuts_experts`)."""

    tensor: int
    stages: int = 1
    replicas: int = 1
    cuts_experts: bool = False

    @property
    def cards(self) -> int:
        return self.tensor * self.stages * self.replicas


def tensor_groups(values: Mapping[str, Any]) -> int:
    """The number of groups of cards that each hold whole layers: pipeline stages times replicas."""
    return prod(count(values.get(name)) or 1 for name in (PIPELINE, REPLICAS))


def replicas(values: Mapping[str, Any]) -> int:
    """The number of engines that serve the model side by side, each with its own cards."""
    return count(values.get(REPLICAS)) or 1


def spans_machines(values: Mapping[str, Any]) -> bool:
    """Whether the engine spans several machines, some of whose cards are not visible here."""
    flags = ("nnodes", "data_parallel_address", "data_parallel_size_local")
    return any(values.get(name) is not None for name in flags)


def large_cards(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The cards large enough not to slow the others down."""
    largest = max((gpu.total_mib for gpu in gpus), default=0)
    return tuple(gpu for gpu in gpus if gpu.total_mib * SMALL_CARD >= largest)


def ranks_here(values: Mapping[str, Any], nodes: int) -> int:
    """The number of ranks on each of `nodes` nodes."""
    return max((count(values.get(TENSOR)) or 1) * tensor_groups(values) // nodes, 1)


def serving_cards(
    gpus: Sequence[Gpu], others: Sequence[Node], values: Mapping[str, Any]
) -> tuple[tuple[str, Gpu], ...]:
    """The cards of all nodes by rank, each with its node's name, which is empty for a single
    node."""
    if not others:
        return tuple(("", gpu) for gpu in gpus)
    each = ranks_here(values, 1 + len(others))
    nodes = ((HEAD, gpus), *((node.name, node.gpus) for node in others))
    return tuple((name, gpu) for name, node_gpus in nodes for gpu in node_gpus[:each])


def cards_lacking(size: int, verbatim: Mapping[str, Any], cards: int) -> int:
    """The number of cards that a split needs, if it is more than `cards`; else 0."""
    elsewhere = spans_machines(verbatim) or verbatim.get("distributed_executor_backend") == "ray"
    wanted = size * tensor_groups(verbatim)
    return 0 if elsewhere or wanted <= cards else wanted


def split_for(
    model: ModelCard, verbatim: Mapping[str, Any], cards: int, *, whole_tiles: bool = False
) -> int:
    """The largest split that `cards` cards and the model's shape allow with these settings."""
    each, whole = max(cards // tensor_groups(verbatim), 1), shards_whole_experts(verbatim)
    return largest_split(model, each, whole_experts=whole, whole_tiles=whole_tiles)


def splits_below(
    model: ModelCard, size: int, *, whole_experts: bool = False, whole_tiles: bool = False
) -> list[int]:
    """The smaller splits that the model's shape allows, the largest first."""
    return [
        fewer
        for fewer in range(size - 1, 0, -1)
        if not shape_problem(model, fewer, whole_experts=whole_experts, whole_tiles=whole_tiles)
    ]


def shards_whole_experts(verbatim: Mapping[str, Any]) -> bool:
    """Whether each card holds whole experts instead of a part of every one."""
    return bool(verbatim.get(EXPERT_PARALLEL))


def needs_whole_experts(
    model: ModelCard, size: int, verbatim: Mapping[str, Any], *, whole_tiles: bool = False
) -> str:
    """Why this split needs whole experts, which make it possible; empty if it does not, or if the
    operator decided whether experts are whole."""
    cut = shape_problem(model, size, whole_tiles=whole_tiles)
    if cut is None or EXPERT_PARALLEL in verbatim or not model.experts or model.experts % size:
        return ""
    return (
        "" if shape_problem(model, size, whole_experts=True, whole_tiles=whole_tiles) else cut.fact
    )


def largest_split(
    model: ModelCard, most: int, *, whole_experts: bool = False, whole_tiles: bool = False
) -> int:
    """The largest split that the model's shape allows, over `most` cards at most; 1 if it allows
    none.

    For an unknown model a power of two, which divides the heads of nearly every one.
    """
    if not model.architecture:
        return 1 << most.bit_length() - 1
    allowed = splits_below(model, most + 1, whole_experts=whole_experts, whole_tiles=whole_tiles)
    return max(allowed, default=1)


def shape_problem(
    model: ModelCard, size: int, *, whole_experts: bool = False, whole_tiles: bool = False
) -> Problem | None:
    """Why the model's shape does not allow this split, and which splits it allows; None if it
    allows this one.

    With expert parallelism each card holds whole experts. `whole_tiles`: each rank's part of a
    layer must be whole tiles of Marlin (`needs_whole_tiles`), also if the model is not split.
    """
    if not model.architecture or (size == 1 and not whole_tiles):
        return None
    if model.heads % size:
        fact, remedy = f"it has {model.heads} attention heads", f"choose a divisor of {model.heads}"
        return Problem(split_over(size), fact, remedy)
    if model.kv_heads % size and size % model.kv_heads:
        fact, remedy = f"it has {model.kv_heads} key-value heads", "choose a divisor or a multiple"
        return Problem(split_over(size), fact, remedy)
    linear = model.linear
    if linear and (linear.key_heads % size or linear.value_heads % size):
        keys, values = linear.key_heads, linear.value_heads
        fact = f"its linear attention has {keys} key and {values} value heads"
        return Problem(split_over(size), fact, "choose a divisor of both")
    dimensions = _cut_dimensions(model, whole_experts)
    problems = [_uneven(part, size) for part in dimensions if size > 1]
    if whole_tiles:
        problems += [_broken_tile(part, size, model) for part in (*dimensions, *_gates(model))]
    return next(filter(None, problems), None)


def experts_problem(model: ModelCard, cards: int, *, whole_tiles: bool = False) -> Problem | None:
    """Why each expert cannot be cut over all cards of replicas; None if it can.

    Read in vLLM 0.21 and 0.33: without expert parallelism, tensor parallelism of the experts spans
    all replicas (`flatten_tp_across_dp_and_pcp`).
    """
    cut = _experts_width(model)
    return _uneven(cut, cards) or (_broken_tile(cut, cards, model) if whole_tiles else None)


def split_over(size: int) -> str:
    return f"split the model over {size} GPUs"


@dataclass(frozen=True)
class _Width:
    """A dimension that is cut over the ranks, and the unit of which each rank must get a
    multiple. A part that is not `quantised` has floats."""

    part: str
    width: int
    multiple: int = 1
    quantised: bool = True


def _experts_width(model: ModelCard) -> _Width:
    quantised = lcm(max(model.group_size, 1), max(model.block_size, 1))
    return _Width("experts", model.expert_size or model.intermediate_size, quantised)


def _cut_dimensions(model: ModelCard, whole_experts: bool) -> list[_Width]:
    """The dimensions that vLLM cuts: MLPs and experts on both sides, attention by heads."""
    # mxfp4 kernels pad every rank's part; no group size shows that.
    group, block = max(model.group_size, 1), max(model.block_size, 1)
    quantised = lcm(group, block)

    def unless_spared(part: str, width: int) -> _Width:
        spared = part in model.spared
        return _Width(part, width, 1 if spared else quantised, not spared)

    dimensions = []
    if model.experts and model.expert_size:
        if not whole_experts:
            dimensions.append(_experts_width(model))
    elif not (model.experts and whole_experts):
        dimensions.append(_Width("MLP", model.intermediate_size, quantised))
    dimensions += [
        unless_spared("shared experts", model.shared_size),
        unless_spared("MLP", model.dense_size),
    ]
    if not model.latent and "attention" not in model.spared:
        dimensions.append(_Width("attention", model.heads * model.head_dim, quantised))
    return dimensions


def _uneven(cut: _Width, size: int) -> Problem | None:
    fact = f"its {cut.part} of {cut.width} cannot be cut in {size}"
    if cut.width % size:
        return Problem(split_over(size), fact, "choose a divisor")
    if cut.width // size % cut.multiple:
        fact = f"{fact} with quantisation groups of {cut.multiple}"
        other = " or --enable-expert-parallel" if cut.part == "experts" else ""
        return Problem(split_over(size), fact, f"choose fewer GPUs{other}")
    return None


def _gates(model: ModelCard) -> list[_Width]:
    """The gates of a Gated DeltaNet, two rows per value head, which are quantised only while
    loading: quantised checkpoints have them as floats."""
    if model.linear is None or model.quantization:
        return []
    return [_Width("linear attention's gates", 2 * model.linear.value_heads)]


def _broken_tile(cut: _Width, size: int, model: ModelCard) -> Problem | None:
    tile, rows = tile_side(model.hidden_size), cut.width // size
    if not cut.quantised or rows % tile == 0:
        return None
    fact = f"its {cut.part} of {cut.width} would have {rows} rows a card, {not_whole_tiles(tile)}"
    if size == 1:
        return Problem("compute its fp8 weights", fact, PADDING_REMEDY)
    return Problem(split_over(size), fact, f"choose fewer GPUs, or {PADDING_REMEDY}")


CARDS_ALIKE = 0.02
"""Cards whose memory differs by less than this fraction count as equal."""


def are_alike(one: Gpu, other: Gpu) -> bool:
    """Whether two cards have the same memory and speed."""
    larger, smaller = max(one.total_mib, other.total_mib), min(one.total_mib, other.total_mib)
    return larger - smaller <= CARDS_ALIKE * larger and (
        one.name == other.name or card_speed(one) == card_speed(other)
    )
