"""Memory that SGLang needs outside its share (activations, CUDA graphs, workspaces), and the share
itself.

`--mem-fraction-static` is the fraction of the memory free at the start that weights and cache get.
SGLang's own rule (memory_hook.py) leaves 1.5 MiB for each token of a step, whatever the model: 3 to
7 GiB on cards of 12 to 48 GiB. `steps_mib` counts what the model's tensors need.
"""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.core.facts.occupancy import host_reserve_mib
from caovand.core.units import MIB
from caovand.engines.sglang.memory.load import SglangLoad

CONTEXT_MIB = 512
"""Memory that CUDA and NCCL allocate before SGLang measures free memory."""
STEPS, MAX_STEP = {20: 2048, 35: 4096, 60: 4096, 160: 8192}, 16384
"""Tokens of a step for cards of up to so many GiB, and for larger ones."""
MAX_GRAPH = 512
"""Sequences of the largest decode graph that SGLang captures by default on the largest cards. On
other cards the default goes down to 8, and larger steps run without graphs."""
LARGE_CARD_MIB, LARGE_RESERVE_MIB = 60 * 1024, 10 * 1024
MIN_RESERVED_STEP = 2048
"""The step size below which SGLang's rule reserves no less memory."""
PREFILL_BUCKETS = 50
"""Approximate number of graphs for prompt lengths, of 8 MiB each."""
LATENT_PREFILL_MIB = 1536
"""Memory of all these graphs for MLA, by SGLang's rule."""
PADDING_MIB = 3
"""Additional memory per sequence of the largest graph and attention group, by the same rule."""
EXPANDED_TOKENS = 128 * 1024
"""Cached tokens whose keys and values MLA expands in a step (SGLANG_MAX_KV_CHUNK_CAPACITY)."""
RANK_MIB = 128
"""Buffers of NCCL and of all-reduces per rank, by SGLang's rule."""
WORKSPACE_MIB = 896
"""FlashInfer's 384 MiB, and SGLang's own allowance of 512 MiB for metadata and fragments."""
SLACK = 0.02
"""The fraction of a card that is left for memory that is not counted."""
VISION_MIB = 1024
"""Activations of a vision tower."""
MARGIN = 1.5
"""Activations are freed and reallocated in other sizes: fragments of half their size remain."""
SAMPLING_COPIES = 4
"""Logits, their probabilities, and both sorted, in float32."""


def usual_step(gpus: Sequence[Gpu]) -> int:
    """Tokens of a step that SGLang 0.5.23 uses for these cards."""
    total_mib = min(gpu.total_mib for gpu in gpus)
    fitting = (tokens for gib, tokens in STEPS.items() if total_mib < gib * 1024)
    return next(fitting, MAX_STEP)


def steps_mib(model: ModelCard, load: SglangLoad, gpus: Sequence[Gpu]) -> float:
    """Memory that this model's steps need outside the share."""
    activations = MARGIN * load.step * _token_elements(model, load) * load.activation / MIB
    sampled = load.requests * (1 + load.depth)
    logits = SAMPLING_COPIES * 4 * sampled * model.vocab_size / MIB
    if load.attention_groups > 1:  # the head computes the logits of all groups at once
        logits += load.attention_groups * sampled * model.vocab_size * load.activation / MIB
    table = 4 * load.requests * load.context / MIB
    vision = VISION_MIB if load.images else 0
    graphs = _graphs_mib(model, load) * (2 if load.depth else 1)  # the head has its own
    fixed = WORKSPACE_MIB + load.ranks * RANK_MIB + SLACK * min(gpu.total_mib for gpu in gpus)
    return fixed + activations + logits + table + vision + graphs + _expanded_mib(model, load)


def _expanded_mib(model: ModelCard, load: SglangLoad) -> float:
    """Keys and values that a step expands from cached tokens; fewer tokens if each card has more
    heads, as the plan's environment sets it."""
    if model.mla is None:
        return 0.0
    tokens = min(load.context, EXPANDED_TOKENS // load.attention_groups)
    widths = 2 * model.mla.key_dim + model.mla.value_dim + model.latent - model.mla.rank
    return tokens * model.heads / load.attending * widths * load.activation / MIB


def _token_elements(model: ModelCard, load: SglangLoad) -> float:
    """Activation elements per token on one rank, if the widest layers' buffers live together.

    Experts and MLPs compute the tokens of all attention groups.
    """
    heads = 2 * model.heads * model.head_dim + 2 * model.kv_heads * model.head_dim
    if model.mla:
        widths = model.mla.key_dim + model.latent - model.mla.rank + model.mla.value_dim
        heads = 2 * model.heads * widths
    linear = model.linear
    if linear:
        keys, values = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
        heads = max(heads, 2 * (2 * keys + 2 * values))
    experts = model.experts_per_token * (3 * model.expert_size / load.ranks + model.hidden_size)
    mlp = 0 if model.experts and not model.dense_size else model.intermediate_size
    dense = 3 * max(mlp, model.dense_size) + 3 * model.shared_size
    of_all = dense / load.ranks + (experts if model.experts else 0)
    of_group = 6 * model.hidden_size + heads / load.attending
    return of_group + load.attention_groups * of_all


def _graphs_mib(model: ModelCard, load: SglangLoad) -> float:
    if not load.graphs:
        return 0.0
    sequences = min(load.requests, MAX_GRAPH)
    groups = load.attention_groups if load.attention_groups > 1 else 0
    prompts = LATENT_PREFILL_MIB if model.latent else PREFILL_BUCKETS * 8
    return sequences * (2 + groups * PADDING_MIB) + prompts


def _usual_reserve_mib(model: ModelCard, load: SglangLoad, gpus: Sequence[Gpu]) -> float:
    """Memory that SGLang leaves: activations by the tokens of a step, graphs by their sequences."""
    total_mib = min(gpu.total_mib for gpu in gpus)
    step_mib = max(load.step * load.attention_groups, MIN_RESERVED_STEP) * 1.5
    reserve_mib = 512 + step_mib + load.ranks * RANK_MIB + _graphs_mib(model, load)
    return max(reserve_mib, LARGE_RESERVE_MIB) if total_mib > LARGE_CARD_MIB else reserve_mib


def usual_share(model: ModelCard, load: SglangLoad, gpus: Sequence[Gpu]) -> float:
    """The share that leaves as much on the smallest card as SGLang's rule does."""
    total_mib = min(gpu.total_mib for gpu in gpus)
    left_mib = _usual_reserve_mib(model, load, gpus) + max(map(of_the_host, gpus))
    return _round_down(1 - left_mib / total_mib)


def largest_share(model: ModelCard, load: SglangLoad, gpus: Sequence[Gpu]) -> float:
    """The largest share that leaves enough memory for the steps of this model."""
    left_mib = steps_mib(model, load, gpus) + max(map(of_the_host, gpus))
    return _round_down(1 - left_mib / max(measured_mib(gpus), 1.0))


def _round_down(share: float) -> float:
    return max(int(share * 1000) / 1000, 0.05)


def measured_mib(gpus: Sequence[Gpu]) -> float:
    """The free memory that SGLang measures at its start, of which it takes the share."""
    return float(min(gpu.free_mib + of_the_host(gpu) for gpu in gpus) - CONTEXT_MIB)


def of_the_host(gpu: Gpu) -> int:
    """The host's part of unified memory, which SGLang considers free."""
    return host_reserve_mib(gpu.total_mib) if gpu.unified else 0
