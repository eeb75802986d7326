"""Memory of steps: activations and the sampler at their peak, CUDA graphs, workspaces.

Widths are elements per token. They were read from PyTorch's allocator at the peak of real steps;
the starts in tests/samples/starts contain the totals. A pass is profiled without attention's own
work, except the memory that MLA sets aside.

One graph is captured for each step size, up to twice the tokens that all sequences decode at once
(vllm/config/vllm.py). A piecewise graph is cut at every attention layer, a full one is whole; in
both the driver records every kernel, so their memory grows with sizes times layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.facts.drafter import Drafter
from caovand.core.facts.forecast import MemoryPart
from caovand.core.facts.inventory import LinearAttention, ModelCard
from caovand.core.model_task import POOLING
from caovand.core.units import MIB
from caovand.engines.vllm import releases
from caovand.engines.vllm.memory.candidate import FLASHINFER_MIB, Candidate
from caovand.engines.vllm.memory.kv_cache import TURBOQUANT
from caovand.engines.vllm.memory.towers import encoding_bytes

MAX_GRAPH = 512
MAX_CAPTURE_KEY = "max_cudagraph_capture_size"
"""The key of --compilation-config that limits the graphs."""
WITH_LARGE_GRAPHS = {"gpt_oss": 1024}
"""Model types for which vLLM captures larger graphs whatever their sequences: the tokens of the
largest (models/config.py)."""
COMPILED = 3
"""vLLM's compilation mode that cuts the model into pieces, its default."""
# What capturing CUDA graphs takes, fitted to measured starts.
FIRST_MIB, FIRST_EXPERTS_MIB = 30, 60
"""MiB of any capture, for a model without and with experts."""
TOKEN_MIB = 0.2
"""MiB per token of the largest graph."""
LAYER_MIB = 0.155
"""MiB per layer of one graph."""
EXPERTS_MIB = 0.14
"""MiB for the experts of such a layer, which need several more kernels; mxfp4 experts need one."""
MAMBA_MIB, SECOND_MAMBA_MIB = 0.1, 0.04
"""MiB per layer of a graph if most layers are Mamba-2 and all have experts, and of a second
piecewise graph: one start of Granite 4 H with 86 graphs of 40 layers took 502 MiB. Unknown without
experts."""
DRAFTER_MIB = 12
"""MiB that capturing the drafting layers takes: 0 to 28 in three starts."""
SECOND_MIB, SECOND_FULL_MIB = 0.125, 0.04
"""MiB that a layer of a second piecewise graph and of a second full one takes."""


def compiles(config: Mapping[str, Any], level: Any = None) -> bool:
    """Whether vLLM compiles the model with this --compilation-config and -O level."""
    return _compilation_mode(config, level) not in ("0", "NONE")


def graph_mode(config: Mapping[str, Any], level: Any = None) -> str:
    """The kind of graphs that vLLM captures with this --compilation-config and -O level."""
    usual = {"0": "NONE", "1": "PIECEWISE"}.get(str(level), "FULL_AND_PIECEWISE")
    mode = str(config.get("cudagraph_mode") or usual).upper()
    whole = _compilation_mode(config, level) in (str(COMPILED), "VLLM_COMPILE")
    return mode if whole or not mode.endswith("PIECEWISE") else "NONE"


def _compilation_mode(config: Mapping[str, Any], level: Any) -> str:
    mode = config.get("mode")
    if mode is None:
        mode = 0 if str(level) == "0" else COMPILED
    return str(mode).upper()


def captured_sizes(
    sequences: int, mtp: int, batch_tokens: int, config: Mapping[str, Any], model_type: str = ""
) -> tuple[int, ...]:
    """Sizes in tokens of the steps that are captured; `config` is --compilation-config."""
    width = 1 + mtp
    listed, largest = (
        config.get("cudagraph_capture_sizes"),
        config.get(MAX_CAPTURE_KEY),
    )
    if isinstance(listed, (list, tuple)):
        wanted = [size for size in listed if isinstance(size, int)]
    else:
        if not isinstance(largest, int):
            usual = usual_largest_graph(sequences, mtp)
            largest = WITH_LARGE_GRAPHS.get(model_type, usual)
        wanted = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
        wanted = [size for size in wanted if size <= largest]
    # Drafting makes every request 1 + MTP tokens long: sizes are rounded up to that.
    rounded = {-(-size // width) * width for size in wanted if size > 0}
    return tuple(sorted(size for size in rounded if size <= batch_tokens))


def usual_largest_graph(sequences: int, mtp: int) -> int:
    """Tokens of the largest step that vLLM captures for most models."""
    return min(sequences * (1 + mtp) * 2, MAX_GRAPH)


def graph_kinds(
    mode: str, captured: tuple[int, ...], sequences: int, *depths: int
) -> tuple[int, int]:
    """Piecewise and full graphs: of mixed steps, and of decoding steps at each depth."""
    every = len(captured)
    decoding = sum(size <= sequences * (1 + depth) for depth in depths for size in captured)
    counts = {
        "NONE": (0, 0),
        "PIECEWISE": (every, 0),
        "FULL": (0, every),
        "FULL_DECODE_ONLY": (0, decoding),
    }
    return counts.get(mode.upper(), (every, decoding))


def graphs_mib(
    graphs: int, layers: int, experts: bool = False, largest: int = 0, *, mamba: bool = False
) -> float:
    """MiB that graphs of a model take, by its number of layers, with or without experts.

    `largest` is the tokens of the largest; the smaller ones share its buffers. `mamba` layers are
    Mamba-2's.
    """
    each = LAYER_MIB + (EXPERTS_MIB if experts else 0)
    each = MAMBA_MIB if mamba and experts else each
    return _first_mib(experts, largest) + graphs * layers * each if graphs else 0.0


def expected_mib(
    piecewise: int,
    full: int,
    layers: int,
    experts: bool = False,
    largest: int = 0,
    *,
    mamba: bool = False,
) -> float:
    """MiB that vLLM expects these graphs to take, and subtracts before it sizes the cache.

    It captures two of each kind and multiplies the memory of the second, which is below the mean.
    """
    if not piecewise + full:
        return 0.0
    second = SECOND_MIB + (EXPERTS_MIB if experts else 0)
    each = layers * (SECOND_MAMBA_MIB if mamba and experts else second)
    whole = max(layers * SECOND_FULL_MIB, 1)
    return _first_mib(experts, largest) + piecewise * each + full * whole


def _first_mib(experts: bool, largest: int) -> float:
    return FIRST_MIB + (FIRST_EXPERTS_MIB if experts else 0) + largest * TOKEN_MIB


CUBLAS_MIB = 32
"""The workspace of matrix products, which is never freed."""
STREAMS, STREAMS_OF_GEMMA = 4, 5
"""Hidden states alive next to a layer's own: residual, input, output; in Gemma norms too."""
FIRST_STREAMS, FIRST_STREAMS_DRAFTING = 3, 7
"""Hidden states alive while the first compiled piece runs; the drafting head runs while the model's
states are still alive. Compiling copies the embeddings as well."""
SAMPLER_BYTES, DRAFTING_SAMPLER_BYTES = 14, 30
"""Bytes per logit in the sampler's warm-up: as loaded, as float32, probabilities, noise."""
SAMPLER_ROWS = 132
"""Rows of float32 logits that the top-k and top-p kernel keeps, one per multiprocessor."""
UNCOMPRESSED = 65536
"""Tokens of earlier context that MLA decompresses at once, if contexts are that long."""


def forward_bytes(model: ModelCard, candidate: Candidate) -> float:
    """The peak of a step of this candidate on one rank, without the sampler."""
    tokens, ranks = candidate.batch_tokens, candidate.tensor_parallel
    attention = tokens * _attention_width(model, ranks)
    if model.mla:
        heads = max(1, model.heads // ranks)
        uncompressed = uncompressed_tokens(
            candidate.context, candidate.sequences, candidate.alignment
        )
        attention += uncompressed * heads * (model.mla.key_dim + model.mla.value_dim)
    width = max(tokens * _mlp_width(model, ranks), attention)
    # Experts work on the tokens of all replicas, gathered before and reduced afterwards.
    together = tokens * (candidate.replicas if model.experts else 1)
    # Whether their buffers are kept from layer to layer.
    stay = model.quantization != "awq" or candidate.kernels.version >= releases.AWQ_EXPERTS_STAY
    cut = 1 if candidate.whole_experts else ranks * candidate.replicas
    experts = together * _experts_width(model, cut, stay)
    experts += 2 * (together - tokens) * model.hidden_size
    width = width + experts if stay else max(width, experts)
    width += tokens * _streams(model) * model.hidden_size
    if candidate.drafting and model.drafter:
        width = max(width, tokens * _drafter_width(model.drafter, ranks))
        width += tokens * len(model.drafter.reads) * model.hidden_size
    if not candidate.eager:
        streams = FIRST_STREAMS_DRAFTING if candidate.drafting else FIRST_STREAMS
        copied = model.vocab_size / ranks if candidate.first and candidate.cold else 0
        first = model.hidden_size * (copied + tokens * streams)
        width = max(width, first)
    return CUBLAS_MIB * MIB + width * candidate.activation


def _drafter_width(drafter: Drafter, ranks: int) -> float:
    """Elements while a drafter reads the target's hidden states: joined, projected and normalised,
    then the keys and values of all its layers, normalised and rotated in copies."""
    keys = max(1, drafter.kv_heads // ranks) * drafter.head_dim * drafter.layers
    return len(drafter.reads) * drafter.target_width + 2 * drafter.width + 5 * keys


def drafted_bytes(model: ModelCard, candidate: Candidate) -> float:
    """The logits of a block, which a drafter computes at once for every sequence."""
    gathered = 2 if candidate.tensor_parallel > 1 else 1
    rows = candidate.sequences * candidate.mtp * gathered
    return CUBLAS_MIB * MIB + float(rows * model.vocab_size * candidate.activation)


def sampler_bytes(model: ModelCard, sequences: int, tokens: int, drafting: bool) -> float:
    """The peak of the sampler's warm-up, in which every sequence ends a step of these tokens."""
    logit = DRAFTING_SAMPLER_BYTES if drafting else SAMPLER_BYTES
    kept = CUBLAS_MIB * MIB + tokens * model.hidden_size * 2
    return kept + model.vocab_size * (sequences * logit + SAMPLER_ROWS * 4)


def uncompressed_tokens(context: int, sequences: int, block: int) -> int:
    """Tokens for which MLA sets aside memory to decompress what earlier steps have cached."""
    wanted = min(max(8 * context, 4 * sequences * block), UNCOMPRESSED)
    return max(wanted, sequences * block)


def _streams(model: ModelCard) -> int:
    return STREAMS_OF_GEMMA if model.model_type.startswith("gemma") else STREAMS


def _mlp_width(model: ModelCard, ranks: int) -> float:
    """Elements of the gate and up projections together, and of their product."""
    dense = max(model.dense_size, model.shared_size) if model.experts else model.intermediate_size
    return 3 * dense / ranks


def _attention_width(model: ModelCard, ranks: int) -> float:
    """Elements of the query, key and value projections, their norms, and the output."""
    if model.mla:
        keys = model.mla.key_dim + (model.latent - model.mla.rank)
        heads = max(1, model.heads // ranks)
        return heads * (keys + model.mla.value_dim) + 2 * model.latent + model.mla.query_rank
    head = max(model.head_dim, model.global_head_dim)
    queries = max(1, model.heads // ranks) * head
    keys = max(1, model.kv_heads // ranks) * head
    gate = queries if model.linear else 0
    attention = 3 * (queries + keys) + gate
    recurrent = model.linear or model.mamba
    return max(attention, _recurrent_width(recurrent) / ranks) if recurrent else attention


def _recurrent_width(linear: LinearAttention) -> float:
    """Elements of the joint projection, its separate and convolved parts, the output and its
    norm."""
    keys, values = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
    return 4 * keys + 6 * values


def _experts_width(model: ModelCard, ranks: int, stay: bool) -> float:
    """Elements of a token's expert buffers, kept between layers (`stay`) or for one layer."""
    if not model.experts:
        return 0.0
    inner, hidden = (model.expert_size or model.intermediate_size) / ranks, model.hidden_size
    if model.quantization == "mxfp4":  # one kernel computes gate, up and their product
        return model.experts_per_token * (inner + hidden)
    product = max(inner, hidden) if stay else inner
    return model.experts_per_token * (product + max(2 * inner, hidden))


CONTEXT_MIB, COMPILED_MIB, COLLECTIVE_MIB, VISION_MIB = 226, 14, 120, 480
ENCODING_MIB, SMALL_IMAGES = 1024, ("gemma3", "gemma4")
"""The least for steps next to a vision tower if we size the cache, and types of small images.
Qwen's towers, while they encode the largest image of 65,536 patches, take 1.5 to 1.8 GiB by the
widths of their layers; the reserve has the rest."""
ROUNDED_MIB = 2
"""MiB by which PyTorch's allocator rounds up the tensors of a layer: 0 to 6 were measured."""
SM75_MIB = 32
"""Upper bound of the memory that caovan's attention allocates while its layers are built. On an
H200 a start with it had 0.2 GiB more cache than was forecast without FlashInfer's workspace."""
UNPACKED = 4.25
"""Contexts that TurboQuant unpacks into keys and values of the activation type."""


def overheads(model: ModelCard, candidate: Candidate) -> tuple[tuple[MemoryPart, float], ...]:
    """Bytes on one rank next to weights and cache, by purpose."""
    sampler = 0.0
    if candidate.last and model.task not in POOLING:
        sampler = sampler_bytes(
            model, candidate.sequences, candidate.batch_tokens, candidate.drafting
        )
    if candidate.drafting and model.drafter:
        sampler = max(sampler, drafted_bytes(model, candidate))
    activations = max(forward_bytes(model, candidate), sampler) + _special_bytes(model, candidate)
    activations = max(activations, encoding_bytes(model, candidate))
    encodes = not candidate.measured and candidate.vision and candidate.first
    if encodes and not model.model_type.startswith(SMALL_IMAGES):
        activations = max(activations, ENCODING_MIB * MIB)
    fixed = (CONTEXT_MIB + len(model.layer_types) * ROUNDED_MIB) * MIB
    fixed += 0 if candidate.eager else COMPILED_MIB * MIB
    groups = (candidate.tensor_parallel > 1) + (not (candidate.first and candidate.last))
    groups += candidate.replicas > 1 and bool(model.experts)
    fixed += COLLECTIVE_MIB * MIB * groups
    return (
        ("context", fixed),
        ("activations", activations),
        ("graphs", 0 if candidate.eager else captured_mib(model, candidate) * MIB),
    )


def _special_bytes(model: ModelCard, candidate: Candidate) -> float:
    """Bytes that only some models and cards need in a step."""
    size = float(VISION_MIB * MIB) if candidate.vision and candidate.first else 0.0
    if not candidate.first:  # from the previous stage: hidden states and residual
        size += 2 * candidate.batch_tokens * model.hidden_size * candidate.activation
    if candidate.kernels.sm75_attention:
        size += SM75_MIB * MIB
    elif (
        candidate.kernels.flashinfer or candidate.kernels.turing
    ):  # its workspace; runs on Turing took as much with other attention, too
        size += FLASHINFER_MIB * MIB
    if candidate.rounds_input:  # the MLP's inner vectors, the widest that are quantised
        size += candidate.batch_tokens * model.intermediate_size / candidate.tensor_parallel
    if candidate.kv_dtype in TURBOQUANT:  # whole contexts' keys and values, unpacked
        heads = max(1, model.kv_heads // candidate.tensor_parallel)
        size += candidate.context * heads * model.head_dim * 2 * candidate.activation * UNPACKED
    return size


def captured_mib(model: ModelCard, candidate: Candidate, expected: bool = False) -> float:
    """MiB that the graphs take, or that vLLM expects them to before it sizes the cache."""
    mode = graph_mode(candidate.compilation)
    captured = captured_sizes(
        candidate.sequences,
        candidate.mtp,
        candidate.batch_tokens,
        candidate.compilation,
        model.model_type,
    )
    layers = len(model.layer_types) + (model.mtp_layers if candidate.mtp else 0)
    experts = bool(model.experts) and model.quantization != "mxfp4"
    largest, mamba = max(captured, default=0), model.mamba is not None
    depths = (candidate.mtp, *candidate.narrower)
    piecewise, full = graph_kinds(mode, captured, candidate.sequences, *depths)
    drafter = DRAFTER_MIB if candidate.drafting and piecewise + full else 0
    if expected:
        made = expected_mib(piecewise, full, layers, experts, largest, mamba=mamba)
    else:
        made = graphs_mib(piecewise + full, layers, experts, largest, mamba=mamba)
    return made + drafter
