"""The memory forecast: what one card holds when the engine runs, and what would make it fit.

Of a pipeline each stage is forecast as a model of its own (`Share`). vLLM gives every stage as many
blocks of the cache as the one with the least room holds: what is left of that one counts, scaled to
all layers.

Weights and cache blocks are computed exactly as vLLM computes them, and what a step holds from the
tensors that live at its peak (activations.py). Graphs, and what no tensor holds, are constants
fitted to measured starts, to which tests/engines/test_memory.py and test_starts.py hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Any, NamedTuple

from caovand.core.facts.forecast import MemoryEstimate, MemoryPart
from caovand.core.facts.inventory import Gpu, ModelCard, Part, Weights
from caovand.core.facts.occupancy import in_use
from caovand.engines.common.tensors import FLOATS, of_rank
from caovand.engines.vllm import releases
from caovand.engines.vllm.memory import graphs, stages
from caovand.engines.vllm.memory.activations import (
    forward_bytes,
    sampler_bytes,
    uncompressed_tokens,
)
from caovand.engines.vllm.memory.kv_cache import TURBOQUANT, Layout, layout, pages

MIB, GIB = 1 << 20, 1 << 30
CONTEXT_MIB, COMPILED_MIB, COLLECTIVE_MIB, FLASHINFER_MIB, VISION_MIB = 226, 14, 120, 394, 480
ROUNDED_MIB = 2
"""What PyTorch's allocator rounds the tensors of a layer up by: 0 to 6 were seen."""
UNPACKED = 4.25
"""Contexts of activation-typed keys and values that TurboQuant unpacks to."""
FP8: Mapping[str, float] = {"layers": 1, "experts": 1, "mtp": 1}
ONLINE: Mapping[str, Mapping[str, float]] = {
    "fp8": FP8,
    "fp8_per_tensor": FP8,
    "fp8_per_block": FP8,
    "int8_per_channel_weight_only": FP8,
    "experts_int8": {"experts": 1},
}
"""Bytes that --quantization leaves of a weight of half or bfloat16, by the part of the model.

Only linear layers and experts shrink: embeddings, head, norms, routers and the vision tower stay.
"""
GRANULE = 1024
"""Tokens; a context chosen by us is a multiple of it."""
OFFLOADED: frozenset[Part] = frozenset({"layers", "experts"})
"""What --cpu-offload-gb moves to host memory: embeddings, head and drafter stay.

Releases after 0.21 move a vision tower too, which is not counted on.
"""
STARTUP_MIB = 256
"""What a CUDA context takes before vLLM looks at the free memory."""


MACHETE_GROUPS = (64, 128)
ZERO_BITS, FLOAT_BITS = 4, 16
"""What a zero point takes in an AWQ file, and after Machete has multiplied it by its scale."""


@dataclass(frozen=True)
class Load:
    """What the engine is asked to do, as far as memory is concerned; `activation` in bytes.

    `compilation` is --compilation-config, which says what graphs are captured; `quantization` is
    --quantization, which shrinks a checkpoint that is not quantised while it is loaded;
    `kv_blocks` is --num-gpu-blocks-override, which stands for the cache that memory would hold;
    `flashinfer` says that attention is FlashInfer's, which takes a workspace; `hopper` that every
    card is one, where 4-bit weights are multiplied by Machete; `rounds_input` that weights are
    multiplied by copies of the activations in int8. `stages` are the layers of each pipeline stage,
    empty where there are none; the load of one stage says whether it is the `first` or `last`.
    """

    context: int
    sequences: int
    batch_tokens: int
    utilization: float
    tensor_parallel: int = 1
    mtp: int = 0
    kv_dtype: str = "auto"
    activation: int = 2
    eager: bool = False
    aligned_states: bool = False
    vision: bool = False
    turing: bool = False
    hopper: bool = False
    flashinfer: bool = False
    offload_gib: float = 0.0
    version: tuple[int, ...] = releases.REFERENCE
    kv_bytes: int | None = None
    alignment: int = 16
    compilation: Mapping[str, Any] = field(default_factory=dict)
    quantization: str = ""
    kv_blocks: int | None = None
    state_dtype: str = "auto"
    rounds_input: bool = False
    stages: tuple[int, ...] = ()
    first: bool = True
    last: bool = True

    @property
    def drafting(self) -> bool:
        """Whether the drafting head runs here: on the last stage."""
        return self.mtp > 0 and self.last

    def but(self, **changes: Any) -> Load:
        """The same with other values: `dataclasses.replace`, for the thousands that a search makes.

        That one sets all fields one by one, which took a quarter of a search.
        """
        assert changes.keys() <= self.__dict__.keys()
        load = object.__new__(Load)
        load.__dict__.update(self.__dict__, **changes)
        return load


def visible_mib(total_mib: float) -> float:
    """What CUDA sees of a card: the driver keeps some of what NVML reports."""
    return total_mib * 0.9965 - 240


def reserve_mib(load: Load, context: int | None = None) -> float:
    """Elastic-KV: memory to leave outside vLLM's share, growing with everything that grows.

    The driver's and the context's own, what long prompts gather and plan beyond the profiled
    step, drafting buffers, transients of large batches, collectives, and a little a sequence.
    `context` is one in the place of the load's.
    """
    return (
        752
        + (load.context if context is None else context) * 4 / 1024
        + load.mtp * 128
        + load.batch_tokens * 48 / 1024
        + 256 * log2(load.tensor_parallel)
        + load.sequences * 8
    )


def utilization(load: Load, gpus: Sequence[Gpu], context: int | None = None) -> float:
    """AutoMem: the share of every card that leaves the reserve, and that is free at all.

    What is free is taken coarsely, since what others use comes and goes a little. It bounds the
    share always, so that less free memory or a longer context never give a larger one.
    """
    reserve = reserve_mib(load, context)
    wanted = min(1 - reserve / gpu.total_mib for gpu in gpus)
    room = int(free_share(gpus) * 100 - 0.5) / 100
    return max(int(min(wanted, room) * 1000) / 1000, 0.0)


def free_share(gpus: Sequence[Gpu]) -> float:
    """The largest share of every card that vLLM can ask for and get."""
    return max(min(_free_share(gpu) for gpu in gpus), 0.0)


def _free_share(gpu: Gpu) -> float:
    visible = visible_mib(gpu.total_mib)
    free = min(gpu.free_mib, visible) - STARTUP_MIB
    return min(free / visible, gpu.free_mib / gpu.total_mib) if visible > 0 else 0.0


def weights_bytes(model: ModelCard, load: Load) -> float:
    """What loading leaves on one rank, buffers of the step and of the positions included."""
    kept = [w for w in model.weights if _loaded(w, load)]
    stored = sum(on_rank(w, model, load) for w in kept)
    layers = sum(on_rank(w, model, load) for w in kept if w.part in OFFLOADED)
    drafter = load.batch_tokens * model.hidden_size * load.activation if load.drafting else 0
    rope = model.rope_elements * load.activation
    more = _absorbed_bytes(model, load) + _zero_points_bytes(model, load)
    return stored - min(load.offload_gib * GIB, layers) + drafter + rope + more


def _zero_points_bytes(model: ModelCard, load: Load) -> float:
    """What Machete adds to AWQ's zero points: it keeps each as a float, multiplied by its scale.

    Experts have another kernel.
    """
    group = model.group_size
    if not load.hopper or model.quantization != "awq" or group not in MACHETE_GROUPS:
        return 0.0
    numbers = 0.0
    for weights in model.weights:
        # Files have scales apart; of weights without files they are a part.
        shared = {"I32": ZERO_BITS, "U8": ZERO_BITS + FLOAT_BITS}.get(weights.dtype)
        if weights.part == "layers" and shared:
            numbers += on_rank(weights, model, load) * 8 / (4 + shared / group)
    return numbers / group * (FLOAT_BITS - ZERO_BITS) / 8


def _absorbed_bytes(model: ModelCard, load: Load) -> float:
    """MLA's projection of keys and values, which a quantised checkpoint has a second time.

    vLLM multiplies with it as floats; where it is not quantised, that is a view of the weights.
    """
    if model.mla is None or "attention" in model.spared:
        return 0.0
    if model.quantization is None and "layers" not in ONLINE.get(load.quantization, {}):
        return 0.0
    widths = model.mla.key_dim + model.mla.value_dim
    size = model.heads * widths * model.mla.rank * len(model.layer_types)
    return size * load.activation / load.tensor_parallel


def _loaded(weights: Weights, load: Load) -> bool:
    if weights.part == "mtp":
        return load.mtp > 0
    return weights.part != "vision" or load.vision


def on_rank(weights: Weights, model: ModelCard, load: Load) -> float:
    """Bytes that one rank holds of these weights once they are loaded."""
    size = float(weights.size)
    stored = FLOATS.get(weights.dtype) if model.quantization is None else None
    left = ONLINE.get(load.quantization, {}).get(weights.part)
    if stored and left and weights.sharding != "replicated":
        size *= left / stored
    elif stored:
        size *= load.activation / stored  # float parameters are loaded as the activation type
    if model.quantization == "mxfp4" and weights.part == "experts" and weights.dtype == "U8":
        size *= _padded(model.hidden_size, 256) * _padded(model.intermediate_size, 128)
    return of_rank(size, weights, model, load.tensor_parallel)


def _padded(width: int, multiple: int) -> float:
    """By how much a kernel's padding grows a dimension."""
    return ceil(width / multiple) * multiple / width if width else 1.0


def overheads(model: ModelCard, load: Load) -> tuple[tuple[MemoryPart, float], ...]:
    """Bytes on one rank next to weights and cache, by what they are for."""
    forward = forward_bytes(
        model,
        tokens=load.batch_tokens,
        ranks=load.tensor_parallel,
        activation=load.activation,
        compiled=not load.eager,
        embeds=load.first,
        drafting=load.drafting,
        experts_stay=model.quantization != "awq" or load.version >= releases.AWQ_EXPERTS_STAY,
        uncompressed=uncompressed_tokens(load.context, load.sequences, load.alignment),
    )
    sampler = 0.0
    if load.last:
        sampler = sampler_bytes(model, load.sequences, load.batch_tokens, load.drafting)
    fixed = (CONTEXT_MIB + len(model.layer_types) * ROUNDED_MIB) * MIB
    fixed += 0 if load.eager else COMPILED_MIB * MIB
    groups = (load.tensor_parallel > 1) + (not (load.first and load.last))
    fixed += COLLECTIVE_MIB * MIB * groups
    return (
        ("context", fixed),
        ("activations", max(forward, sampler) + _special(model, load)),
        ("graphs", 0 if load.eager else _graphs_mib(model, load) * MIB),
    )


def _special(model: ModelCard, load: Load) -> float:
    """What only some models and cards need in a step."""
    size = float(VISION_MIB * MIB) if load.vision and load.first else 0.0
    if not load.first:  # what the stage before sends: hidden states and residual
        size += 2 * load.batch_tokens * model.hidden_size * load.activation
    if (
        load.flashinfer or load.turing
    ):  # its workspace; runs on Turing took as much with others, too
        size += FLASHINFER_MIB * MIB
    if load.rounds_input:  # the MLP's inner vectors, the widest that are rounded
        size += load.batch_tokens * model.intermediate_size / load.tensor_parallel
    if load.kv_dtype in TURBOQUANT:  # whole contexts' keys and values, unpacked
        heads = max(1, model.kv_heads // load.tensor_parallel)
        size += load.context * heads * model.head_dim * 2 * load.activation * UNPACKED
    return size


def _graphs_mib(model: ModelCard, load: Load, expected: bool = False) -> float:
    """What the graphs take, or what vLLM expects of them before it sizes the cache."""
    mode = graphs.mode(load.compilation)
    captured = graphs.sizes(
        load.sequences, load.mtp, load.batch_tokens, load.compilation, model.model_type
    )
    layers = len(model.layer_types) + (model.mtp_layers if load.mtp else 0)
    experts = bool(model.experts) and model.quantization != "mxfp4"
    largest, mamba = max(captured, default=0), model.mamba is not None
    piecewise, full = graphs.kinds(mode, captured, load.sequences, load.mtp)
    drafter = graphs.DRAFTER_MIB if load.drafting and piecewise + full else 0
    if expected:
        made = graphs.expected_mib(piecewise, full, layers, experts, largest, mamba=mamba)
    else:
        made = graphs.graphs_mib(piecewise + full, layers, experts, largest, mamba=mamba)
    return made + drafter


def layout_for(model: ModelCard, load: Load) -> Layout:
    """The cache blocks of this load."""
    return layout(
        model,
        dtype=load.kv_dtype,
        activation=load.activation,
        tensor_parallel=load.tensor_parallel,
        mtp=load.mtp,
        # So many steps are under way at once: one a stage, and one being scheduled.
        batch_tokens=load.batch_tokens * (len(load.stages) + 1 if load.stages else 1),
        aligned_states=load.aligned_states,
        alignment=load.alignment,
        version=load.version,
        state_dtype=load.state_dtype,
    )


class Share(NamedTuple):
    """One stage, or the whole model: its layers, what is asked of it, its cards, and by how much
    the cache of all layers is larger than its own."""

    model: ModelCard
    load: Load
    gpus: Sequence[Gpu]
    scale: float


def shares(model: ModelCard, load: Load, gpus: Sequence[Gpu]) -> tuple[Share, ...]:
    """Every stage, or the whole model where there are none."""
    if not load.stages:
        return (Share(model, load, gpus, 1.0),)
    count, whole = len(load.stages), pages(model, load.mtp, 0, len(model.layer_types))
    dealt = stages.models(model, load.stages, load.mtp > 0)
    return tuple(
        Share(
            dealt[at],
            load.but(stages=(), first=at == 0, last=at == count - 1),
            stages.cards_of(gpus, at, count, load.tensor_parallel),
            whole / max(pages(model, load.mtp, start, end), 1),
        )
        for at, (start, end) in enumerate(stages.ranges(load.stages))
    )


def left_bytes(share: Share) -> float:
    """What is left for the cache on its smallest card; negative where weights alone overflow."""
    model, load, gpus, _ = share
    if load.kv_bytes is not None:
        return load.kv_bytes
    room = load.utilization * _smallest_mib(gpus) * MIB
    graphs_counted = load.version >= releases.GRAPHS_SUBTRACTED
    spent = sum(size for name, size in overheads(model, load) if name != "graphs")
    if graphs_counted and not load.eager:
        spent += _graphs_mib(model, load, expected=True) * MIB
    return room - weights_bytes(model, load) - spent


def kv_bytes(model: ModelCard, load: Load, gpus: Sequence[Gpu]) -> float:
    """What is left for the cache, of a pipeline as if each stage left as little as the one with
    the least room; negative where weights alone overflow."""
    if load.kv_blocks is not None:
        return load.kv_blocks * layout_for(model, load).block_bytes
    return min(left_bytes(one) * one.scale for one in shares(model, load, gpus))


def estimate(model: ModelCard, load: Load, gpus: Sequence[Gpu]) -> MemoryEstimate:
    """The forecast; without cards only the cache is forecast, from the bytes it was given."""
    blocks = layout_for(model, load)
    available = kv_bytes(model, load, gpus)
    every = shares(model, load, gpus)
    fullest = min(every, key=lambda one: left_bytes(one) * one.scale) if load.stages else every[0]
    longest = blocks.longest(int(available), model.max_model_len)
    room = not gpus or load.utilization <= free_share(gpus) + 1e-9
    if gpus and (load.kv_bytes is not None or load.kv_blocks is not None):
        # vLLM allocates what it is told, and of given bytes the share means nothing to it.
        held = all(_used_mib(one, available) <= _smallest_mib(one.gpus) for one in every)
        room = held and (room or load.kv_bytes is not None)
    states = lacks_states(model, load, gpus)
    smallest = min((gpu.total_mib for gpu in gpus), default=0)
    return MemoryEstimate(
        fits=room and load.context <= longest and not states,
        gpu_memory_utilization=load.utilization if gpus else None,
        weights_mib=weights_bytes(fullest.model, fullest.load) / MIB,
        kv_mib=available / fullest.scale / MIB,
        needed_mib=blocks.needed(load.context) / fullest.scale / MIB,
        kv_tokens=blocks.tokens(int(available), load.context, load.version),
        max_model_len=longest,
        concurrency=blocks.concurrency(int(available), load.context),
        reserve_mib=smallest * (1 - load.utilization) if gpus else 0.0,
        parts=parts_of(fullest, available),
        lack=states,
    )


def parts_of(share: Share, available: float) -> tuple[tuple[MemoryPart, float], ...]:
    """What a card holds in MiB, where the cache of all layers has so many bytes."""
    total = min((gpu.total_mib for gpu in share.gpus), default=0)
    parts: list[tuple[MemoryPart, float]] = [
        ("weights", weights_bytes(share.model, share.load)),
        *overheads(share.model, share.load),
        ("kv", max(available / share.scale, 0)),
        ("others", max(map(in_use, share.gpus), default=0) * MIB),
    ]
    used = sum(size for _, size in parts) / MIB
    return (*((name, size / MIB) for name, size in parts), ("free", max(total - used, 0.0)))


def _used_mib(share: Share, available: float) -> float:
    return sum(size for name, size in parts_of(share, available) if name != "free")


def lacks_states(model: ModelCard, load: Load, gpus: Sequence[Gpu]) -> str:
    """Why vLLM cannot capture a hybrid's decode steps whole, each of whose sequences then needs a
    block of the cache for its state; empty where it can, or need not."""
    if not model.hybrid or load.eager or not graphs.mode(load.compilation).startswith("FULL"):
        return ""
    blocks = int(kv_bytes(model, load, gpus) // layout_for(model, load).block_bytes)
    if blocks < 1 or load.sequences <= blocks:
        return ""
    return (
        f"the cache has {blocks} blocks, and full CUDA graphs of this model need one for each of"
        f" {load.sequences} sequences; use max_num_seqs = {blocks} or less"
    )


def unforeseen(share: float | None, gpus: Sequence[Gpu], reason: str) -> MemoryEstimate:
    """What is known where nothing is forecast: the share, and what it leaves."""
    reserve = min((gpu.total_mib for gpu in gpus), default=0) * (1 - (share or 1))
    return MemoryEstimate(None, share, 0, 0, 0, 0, 0, 0, reserve, (), reason=reason)


def longest_context(model: ModelCard, load: Load, gpus: Sequence[Gpu]) -> int:
    """The longest context that fits where the share follows from it (AutoMem); 0 for none."""
    limit, blocks = model.max_model_len, layout_for(model, load)
    varying = model.mla or load.kv_dtype in TURBOQUANT  # more of a step's memory with more context
    told = load.kv_blocks is not None or load.kv_bytes is not None
    rooms = [
        (_smallest_mib(one.gpus) * MIB, -left_bytes(one), one.scale)
        for one in shares(model, load.but(utilization=0.0), gpus)
    ]

    def fits(context: int) -> bool:
        share = utilization(load, gpus, context)
        if varying or told:
            asked = load.but(context=context, utilization=share)
            return blocks.needed(context) <= room_for_context(model, asked, gpus)
        needed = blocks.needed(context)
        return all(
            needed <= spare(share * smallest - spent) * scale for smallest, spent, scale in rooms
        )

    if fits(limit):
        return limit
    whole = _last(lambda count: fits(count * GRANULE), (limit - 1) // GRANULE) * GRANULE
    return whole or _last(fits, min(limit, GRANULE) - 1)


def _last(fits: Callable[[int], bool], most: int) -> int:
    """The last number up to `most` that fits, if all before it do; 0 for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def granular(context: int, limit: int) -> int:
    """The model's limit, or a whole multiple of GRANULE: forecasts err by more than the rest."""
    return context if context == limit else context // GRANULE * GRANULE or context


def spare(available: float) -> float:
    """What of the cache a context chosen by us may fill: forecasts err, and a start is minutes."""
    return available * 0.95 - 128 * MIB


def room_for_context(model: ModelCard, load: Load, gpus: Sequence[Gpu]) -> float:
    """What a context chosen by us may fill; of a cache whose blocks are counted, all of it."""
    if load.kv_blocks is not None:
        return kv_bytes(model, load, gpus)
    return min(spare(left_bytes(one)) * one.scale for one in shares(model, load, gpus))


def _smallest_mib(gpus: Sequence[Gpu]) -> float:
    return visible_mib(min(gpu.total_mib for gpu in gpus))


def lacking_gib(model: ModelCard, load: Load, gpus: Sequence[Gpu]) -> float:
    """GiB of weights a rank has no room for beside one request of the context; 0 for none."""
    needed = layout_for(model, load).needed(load.context)
    if load.kv_blocks is not None:
        return max((needed - kv_bytes(model, load, gpus)) / GIB, 0.0)
    each = shares(model, load, gpus)
    return max(*((needed / one.scale - left_bytes(one)) / GIB for one in each), 0.0)
