"""The moments of loading when a card holds most, before a cache exists: only small cards notice.

An lm_head that caovan rounds to 8 bits is in memory in 16 bits, too, until it is rounded.
A model with an MTP layer is loaded first, then its drafter with an embedding and an lm_head of its
own, which give way to the model's once everything is loaded (`_maybe_share_embeddings` and
`_maybe_share_lm_head` in 0.21 and 0.33).
"""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.inventory import ModelCard
from caovand.core.units import GIB, MIB
from caovand.engines.vllm.memory.candidate import Candidate, free_share, visible_mib
from caovand.engines.vllm.memory.shards import PipelineStage, on_rank, weights_bytes


def loading_bytes(model: ModelCard, candidate: Candidate) -> float:
    """Bytes of weights on one rank while its last weights are loaded.

    If caovan's kernels round the head, the drafter has the model's from the start, and the MTP
    layer is rounded last.
    """
    rounding = drafter = weights_bytes(model, candidate)
    exact = candidate.but(rounds_head=False, rounds_drafter=False)
    for weights in model.weights:
        size = on_rank(weights, model, exact)
        if weights.part == "mtp":
            drafter += size - on_rank(weights, model, candidate)
        elif weights.part == "embedding":
            drafter += size
        elif weights.part == "head" and candidate.rounds_head:
            rounding += size
        elif weights.part == "head":
            drafter += size
    return max(rounding, drafter) if loads_drafter(model, candidate) else rounding


def loads_drafter(model: ModelCard, candidate: Candidate) -> bool:
    """Whether the model's own MTP layer is loaded as a drafter."""
    return candidate.drafting and not candidate.looks_up and model.drafter is None


def lacking_to_load_gib(stages: Sequence[PipelineStage]) -> float:
    """GiB that a card lacks at that moment; 0 if all have room, or without cards."""
    return max(map(_lacking_gib, stages))


def _lacking_gib(stage: PipelineStage) -> float:
    if not stage.gpus:
        return 0.0
    room = free_share(stage.gpus) * visible_mib(min(gpu.total_mib for gpu in stage.gpus)) * MIB
    return max((loading_bytes(stage.model, stage.candidate) - room) / GIB, 0.0)


def why_not_loaded(stages: Sequence[PipelineStage]) -> str:
    """Why the weights cannot be loaded although they would fit afterwards; empty if they can."""
    lacking, last = lacking_to_load_gib(stages), stages[-1]
    if not lacking:
        return ""
    if loads_drafter(last.model, last.candidate):
        return (
            f"{lacking:.1f} GiB too little while the drafter is loaded with an embedding and an"
            " lm_head of its own, which vLLM drops afterwards; set mtp = 0"
        )
    if last.candidate.rounds_head:
        return (
            f"{lacking:.1f} GiB too little while the lm_head is rounded, in memory in 16 and in 8"
            ' bits; set lm_head = "half"'
        )
    return ""
