"""The weights that one rank holds, and the part of the model on a pipeline stage.

Read in vLLM 0.32: get_pp_indices assigns the layers; its model classes create embedding and head on
the first and the last stage only, or on every stage; the drafting head is created on the last, with
its own embedding.

If weights are offloaded to host memory, vLLM copies each parameter to pinned memory, and PyTorch's
allocator rounds each copy up to a power of two (read in 0.21 and 0.33; reported as 1.9 times what
was asked for, vllm#56410 and #58178).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple, TypeVar

from caovand.core.facts.inventory import Gpu, ModelCard, ModelPart, Weights
from caovand.core.units import GIB
from caovand.engines.common.tensors import FLOATS, of_rank
from caovand.engines.vllm.memory.candidate import Candidate, adapters_bytes
from caovand.engines.vllm.memory.kv_cache import pages

AnyCard = TypeVar("AnyCard")
PARTITION = "VLLM_PP_LAYER_PARTITION"
"""The variable that overrides how layers are assigned: "40,24"."""
EMBEDDING_ON_FIRST = frozenset({
    "apertus", "deepseek_v2", "deepseek_v3", "deepseek_v32", "ernie4_5", "ernie4_5_moe", "exaone",
    "exaone4", "exaone_moe", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "granite",
    "kimi_k2", "llama", "llama4_text", "longcat_flash", "mimo", "mimo_v2_flash", "minimax_m2",
    "ministral", "mistral", "nemotron", "phi3", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text",
    "qwen2_vl", "qwen2_vl_text", "qwen3", "qwen3_vl_text", "solar", "step3p5",
})  # fmt: skip
"""Model types whose embedding is on the first stage, and on the last too if it serves as the
head."""
HEAD_ON_LAST = EMBEDDING_ON_FIRST | {"lfm2", "lfm2_moe", "qwen3_5_moe_text", "qwen3_5_text"}
"""Model types whose head is on the last stage. Other types have both on every stage, as in most of
vLLM's classes; classes that were not read are assumed to do the same."""


def own_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage by vLLM's own rule: surplus layers go to the last but one stage
    first."""
    dealt = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        dealt[-place] += 1
    return tuple(dealt)


def partition(text: object, layers: int, stages: int) -> tuple[int, ...]:
    """The layers of each stage as a variable's text assigns them; by vLLM's own rule for None.

    Empty for a text that vLLM refuses, or if a stage would have no layer.
    """
    if not 0 < stages <= layers:
        return ()
    if text is None:
        dealt = own_partition(layers, stages)
    else:
        try:
            dealt = tuple(int(word) for word in str(text).split(","))
        except ValueError:
            return ()
    sound = len(dealt) == stages and sum(dealt) == layers and min(dealt) > 0
    return dealt if sound else ()


def ranges(dealt: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The first layer and the end (exclusive) of each stage."""
    ends = [sum(dealt[: at + 1]) for at in range(len(dealt))]
    return tuple(zip((0, *ends), ends, strict=False))


def cards_of(cards: Sequence[AnyCard], stage: int, stages: int, each: int) -> tuple[AnyCard, ...]:
    """The cards of one stage, `each` for every stage, in vLLM's order.

    Cards are ordered by replica, then by stage. With too few of them, which is a conflict, every
    stage has all.
    """
    chosen = tuple(card for at, card in enumerate(cards) if at // each % stages == stage)
    return chosen or tuple(cards)


@lru_cache(maxsize=8)
def stage_models(model: ModelCard, dealt: tuple[int, ...], drafting: bool) -> tuple[ModelCard, ...]:
    """The part of the model on each stage."""
    return tuple(stage_model(model, start, end, drafting=drafting) for start, end in ranges(dealt))


def stage_model(model: ModelCard, start: int, end: int, *, drafting: bool) -> ModelCard:
    """The part of the model on the stage with the layers from `start` to before `end`."""
    last = end == len(model.layer_types)
    kept = [
        part
        for weights in model.weights
        if (part := _weights_of_stage(weights, model, start, end, drafting))
    ]
    return replace(
        model,
        layer_types=model.layer_types[start:end],
        mtp_layers=model.mtp_layers if last else 0,
        weights=tuple(kept),
    )


def _weights_of_stage(
    weights: Weights, model: ModelCard, start: int, end: int, drafting: bool
) -> Weights | None:
    """The stage's part of these weights; None if there is none."""
    first, last = start == 0, end == len(model.layer_types)
    kind, part = model.model_type, weights.part
    if part == "embedding":
        tied = not model.size("head")
        copies = int(first or (last and tied) or kind not in EMBEDDING_ON_FIRST)
        copies += last and drafting and model.mtp_layers > 0
        return replace(weights, size=weights.size * copies) if copies else None
    if part == "head":
        return weights if last or kind not in HEAD_ON_LAST else None
    if part == "mtp":
        return weights if last else None
    if part == "vision":  # made on every stage, used on the first
        return weights
    sizes = weights.layers or (1,) * len(model.layer_types)
    own_bytes = sum(sizes[start:end])
    if not own_bytes:
        return None
    return replace(weights, size=round(weights.size * own_bytes / sum(sizes)), layers=())


BYTES_EACH = {None: 2.0, "fp8": 1.0, "fbgemm_fp8": 1.0, "modelopt": 1.0, "experts_int8": 1.0}
FOUR_BITS = 0.55
"""Bytes of a weight, with its scales, in a checkpoint of each quantisation; and for all others."""
FP8: Mapping[str, float] = {"layers": 1, "experts": 1, "mtp": 1}
ONLINE: Mapping[str, Mapping[str, float]] = {
    "fp8": FP8,
    "fp8_per_tensor": FP8,
    "fp8_per_block": FP8,
    "int8_per_channel_weight_only": FP8,
    "experts_int8": {"experts": 1},
}
"""Bytes to which --quantization shrinks a weight of half or bfloat16, by part of the model.

Only linear layers and experts shrink: embeddings, head, norms, routers and the vision tower stay.
"""
SCALE_BYTES = 4
"""Bytes of a scale, for a row of int8 weights."""
OFFLOADED: frozenset[ModelPart] = frozenset({"layers", "experts"})
"""The parts that --cpu-offload-gb moves to host memory: embeddings, head and drafter stay.

Releases after 0.21 move a vision tower too; the forecast does not count on it.
"""
MACHETE_GROUPS = (64, 128)
ZERO_BITS, UNQUANTISED_BITS = 4, 16
"""Bits of a zero point in an AWQ file, and after Machete has multiplied it by its scale."""


def weights_bytes(model: ModelCard, candidate: Candidate) -> float:
    """Bytes that loading leaves on one rank, including the buffers of steps and positions."""
    kept = [w for w in model.weights if _is_loaded(w, candidate)]
    stored = sum(on_rank(w, model, candidate) for w in kept)
    layers = sum(on_rank(w, model, candidate) for w in kept if w.part in OFFLOADED)
    drafter = (
        candidate.batch_tokens * model.hidden_size * candidate.activation
        if candidate.drafting
        else 0
    )
    rope = model.rope_elements * candidate.activation
    more = _absorbed_bytes(model, candidate) + _zero_points_bytes(model, candidate)
    more += _fused_bytes(model, candidate)
    more += adapters_bytes(model, candidate.adapters, candidate.tensor_parallel)
    return stored - min(candidate.offload_gib * GIB, layers) + drafter + rope + more


def _fused_bytes(model: ModelCard, candidate: Candidate) -> float:
    """Bytes of the key and value projections of a drafter's layers, which vLLM stacks in a copy."""
    drafter = model.drafter
    if drafter is None or not candidate.drafting:
        return 0.0
    heads = max(1, drafter.kv_heads // candidate.tensor_parallel)
    numbers = 2 * heads * drafter.head_dim * drafter.width * drafter.layers
    return float(numbers * candidate.activation)


def _zero_points_bytes(model: ModelCard, candidate: Candidate) -> float:
    """Bytes that Machete adds to AWQ's zero points: it stores each as a float, multiplied by its
    scale.

    Experts have another kernel.
    """
    group = model.group_size
    if not candidate.kernels.hopper or model.quantization != "awq" or group not in MACHETE_GROUPS:
        return 0.0
    numbers = 0.0
    for weights in model.weights:
        # Files have scales apart; of weights without files they are a part.
        shared = {"I32": ZERO_BITS, "U8": ZERO_BITS + UNQUANTISED_BITS}.get(weights.dtype)
        if weights.part == "layers" and shared:
            numbers += on_rank(weights, model, candidate) * 8 / (4 + shared / group)
    return numbers / group * (UNQUANTISED_BITS - ZERO_BITS) / 8


def _absorbed_bytes(model: ModelCard, candidate: Candidate) -> float:
    """Bytes of MLA's key and value projection, of which a quantised checkpoint keeps a second copy.

    vLLM multiplies it as floats; without quantisation the copy is a view of the weights.
    """
    if model.mla is None or "attention" in model.spared:
        return 0.0
    if model.quantization is None and "layers" not in ONLINE.get(candidate.quantization, {}):
        return 0.0
    widths = model.mla.key_dim + model.mla.value_dim
    size = model.heads * widths * model.mla.rank * len(model.layer_types)
    return size * candidate.activation / candidate.tensor_parallel


def _is_loaded(weights: Weights, candidate: Candidate) -> bool:
    if weights.part == "mtp":
        return candidate.mtp > 0
    return weights.part != "vision" or candidate.vision


def on_rank(weights: Weights, model: ModelCard, candidate: Candidate) -> float:
    """Bytes that one rank holds of these weights once they are loaded."""
    size = float(weights.size)
    stored = FLOATS.get(weights.dtype) if model.quantization is None else None
    left = ONLINE.get(candidate.quantization, {}).get(weights.part)
    if stored and left and weights.sharding != "replicated":
        size *= left / stored
    elif stored:
        size *= candidate.activation / stored  # float parameters are loaded as the activation type
    rounded = weights.part == "head" and candidate.rounds_head
    rounded = rounded or (weights.part == "mtp" and candidate.rounds_drafter and not model.experts)
    if rounded and weights.dtype in FLOATS:
        size /= candidate.activation if stored else FLOATS[weights.dtype]
        size *= 1 + SCALE_BYTES / max(model.hidden_size, 1)
    if model.quantization == "mxfp4" and weights.part == "experts" and weights.dtype == "U8":
        size *= _padding_factor(model.hidden_size, 256) * _padding_factor(
            model.intermediate_size, 128
        )
    ranks, all_ranks = candidate.tensor_parallel, candidate.tensor_parallel * candidate.replicas
    spread = _expert_fraction(weights, model) if candidate.replicas > 1 else 0.0
    return size * spread / all_ranks + of_rank(size * (1 - spread), weights, model, ranks)


def _expert_fraction(weights: Weights, model: ModelCard) -> float:
    """The fraction of these weights that is experts, which replicas share out; in a drafting layer
    about the same as in the others."""
    if weights.part == "mtp":
        experts, others = model.size("experts"), model.size("layers")
        return experts / (experts + others) if experts else 0.0
    return 1.0 if weights.part == "experts" else 0.0


def _padding_factor(width: int, multiple: int) -> float:
    """The factor by which a kernel's padding grows a dimension."""
    return ceil(width / multiple) * multiple / width if width else 1.0


MAX_GROWTH = 2.0
"""The factor by which rounding can grow a tensor whose shape is unknown."""


def pinned_gib(offload_gib: float, model: ModelCard, ranks: int) -> float:
    """GiB of host memory that this many GiB of each rank's weights take on all ranks."""
    return offload_gib * ranks * rounding(model, ranks)


def rounding(model: ModelCard, ranks: int) -> float:
    """Size of the pinned copies relative to the weights of a layer."""
    each = BYTES_EACH.get(model.quantization, FOUR_BITS)
    sizes = [ceil(elements * each) for elements in _count_parameters(model, ranks) if elements]
    if not sizes:
        return MAX_GROWTH
    return sum(1 << (size - 1).bit_length() for size in sizes) / sum(sizes)


def _count_parameters(model: ModelCard, ranks: int) -> Iterator[int]:
    """Elements of a layer's parameters on one rank, fused as vLLM has them."""
    hidden = model.hidden_size
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield hidden * (queries + 2 * keys) // ranks
    yield hidden * queries // ranks
    inner = (model.expert_size or model.intermediate_size) if model.experts else 0
    for width in (model.experts * inner, 0 if model.experts else model.intermediate_size):
        yield 2 * hidden * width // ranks
        yield hidden * width // ranks


class PipelineStage(NamedTuple):
    """One stage, or the whole model without stages: its layers, candidate and cards.

    `scale` is the size of the whole model's cache divided by that of this stage.
    """

    model: ModelCard
    candidate: Candidate
    gpus: Sequence[Gpu]
    scale: float


def stages_of(
    model: ModelCard, candidate: Candidate, gpus: Sequence[Gpu]
) -> tuple[PipelineStage, ...]:
    """Every stage, or the whole model as the only one."""
    if not candidate.stages:
        return (PipelineStage(model, candidate, gpus, 1.0),)
    count, whole = len(candidate.stages), pages(model, candidate.mtp, 0, len(model.layer_types))
    dealt = stage_models(model, candidate.stages, candidate.mtp > 0)
    return tuple(
        PipelineStage(
            dealt[at],
            candidate.but(stages=(), first=at == 0, last=at == count - 1),
            cards_of(gpus, at, count, candidate.tensor_parallel),
            whole / max(pages(model, candidate.mtp, start, end), 1),
        )
        for at, (start, end) in enumerate(ranges(candidate.stages))
    )
