"""The load of a plan, and what SGLang reserves for itself by its own rule (memory_hook.py).

`--mem-fraction-static` is the share of the memory that is free when it starts, for weights and
cache; what is left is for activations, CUDA graphs and workspaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caovand.core.facts.inventory import Gpu, ModelCard, Weights
from caovand.core.facts.occupancy import host_reserve_mib
from caovand.engines.common.tensors import FLOATS, element_bytes, of_rank

MIB = 1 << 20
CONTEXT_MIB = 512
"""Memory that CUDA and NCCL take before SGLang measures what is free."""
EIGHT_BITS = ("fp8_e4m3", "fp8_e5m2")
STEPS = ((20, 2048, 8), (35, 4096, 48), (60, 4096, 32), (160, 8192, 256))
"""For cards of up to these GiB: tokens of a step, and sequences of the largest graph."""
LARGEST_STEP = (16384, 512)
MORE_GRAPHS = {48: 160, 32: 160, 256: 512}
"""Sequences of the largest graph over four cards or more."""
LARGE_CARD_MIB, LARGE_RESERVE_MIB = 60 * 1024, 10 * 1024
PREFILL_BUCKETS = 50
"""Graphs of prompt lengths, about, at 8 MiB each."""


@dataclass(frozen=True)
class Load:
    """What memory depends on; `share` is --mem-fraction-static."""

    context: int
    requests: int
    step: int
    share: float
    ranks: int = 1
    depth: int = 0
    cache_type: str = "auto"
    activation: int = 2
    graphs: bool = True


def usual_step(gpus: Sequence[Gpu], ranks: int) -> tuple[int, int]:
    """Tokens of a step and sequences of the largest graph that SGLang takes for these cards."""
    total_mib = min(gpu.total_mib for gpu in gpus)
    for gib, tokens, sequences in STEPS:
        if total_mib < gib * 1024:
            return tokens, MORE_GRAPHS.get(sequences, sequences) if ranks >= 4 else sequences
    return LARGEST_STEP


def reserve_mib(load: Load, gpus: Sequence[Gpu]) -> float:
    """Memory outside the share: activations by the tokens of a step, graphs by their sequences."""
    total_mib = min(gpu.total_mib for gpu in gpus)
    _, sequences = usual_step(gpus, load.ranks)
    found = 512 + max(load.step, 2048) * 1.5 + load.ranks * 128
    if load.graphs:
        found += min(sequences, load.requests) * 2 + PREFILL_BUCKETS * 8
    return max(found, LARGE_RESERVE_MIB) if total_mib > LARGE_CARD_MIB else found


def usual_share(load: Load, gpus: Sequence[Gpu]) -> float:
    """The share that leaves the reserve on the smallest card."""
    total_mib = min(gpu.total_mib for gpu in gpus)
    left_mib = reserve_mib(load, gpus) + max(map(_of_the_host, gpus))
    return max(int((1 - left_mib / total_mib) * 1000) / 1000, 0.05)


def _of_the_host(gpu: Gpu) -> int:
    """The host's part of unified memory, which SGLang sees as free."""
    return host_reserve_mib(gpu.total_mib) if gpu.unified else 0


def weights_bytes(model: ModelCard, load: Load) -> float:
    """Weights of one rank, the drafting head's only if it drafts."""
    kept = (one for one in model.weights if one.part != "mtp" or load.depth)
    return sum(of_rank(_size(one, model, load), one, model, load.ranks) for one in kept)


def _size(weights: Weights, model: ModelCard, load: Load) -> float:
    stored = FLOATS.get(weights.dtype) if model.quantization is None else None
    return weights.size * load.activation / stored if stored else weights.size


def token_bytes(model: ModelCard, load: Load) -> float:
    """Cache of a token on one rank. Windowed layers count as whole ones, which errs upwards."""
    element = 1 if load.cache_type in EIGHT_BITS else load.activation
    if load.cache_type in ("bf16", "bfloat16"):
        element = 2
    layers = len(model.cached_layers) + (model.mtp_layers if load.depth else 0)
    if model.latent:
        return layers * model.latent * element
    heads = max(1, model.kv_heads // load.ranks)
    return layers * 2 * heads * model.head_dim * element


def cache_bytes(model: ModelCard, load: Load, gpus: Sequence[Gpu]) -> float:
    """Bytes that the share leaves for the cache on the card with the least free memory."""
    free = min(gpu.free_mib + _of_the_host(gpu) for gpu in gpus) - CONTEXT_MIB
    return free * load.share * MIB - weights_bytes(model, load)


def activation_bytes(model: ModelCard, dtype: object) -> int:
    """Bytes of an activation; `dtype` is --dtype."""
    return element_bytes(model.dtype if dtype in (None, "auto") else str(dtype))
