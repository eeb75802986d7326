"""The space of candidates that a plan leaves open, and its CUDA graphs."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Literal

from caovand.core.facts.occupancy import DESKTOP_MIB, NOTABLE_MIB, in_use, unoccupied
from caovand.core.model_task import POOLING
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import count
from caovand.engines.vllm.machine.attention import attended_by_flashinfer, cuts_latent_graphs
from caovand.engines.vllm.machine.capabilities import AMPERE, BLACKWELL
from caovand.engines.vllm.machine.link_time import nodes_of
from caovand.engines.vllm.machine.ranks import tensor_groups
from caovand.engines.vllm.memory.candidate import Candidate, free_share, utilization
from caovand.engines.vllm.memory.estimate import lacks_states, room_for_context
from caovand.engines.vllm.memory.kv_cache import layout_for
from caovand.engines.vllm.memory.settings import candidate_of
from caovand.engines.vllm.memory.shards import PARTITION
from caovand.engines.vllm.planning.partial_plan import PartialPlan
from caovand.engines.vllm.sizing.search import GENEROUS_BATCH, requests_that_fit, sequences_for
from caovand.engines.vllm.sizing.space import WORKLOADS, Space

UNKNOWN_CONTEXT = 131_072
"""The context of today's models, for which the reserve of an unknown model is sized."""
SIZED_BY = {"gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override"}
"""Flags that set the size of the cache."""


def graphs_for(partial: PartialPlan) -> str:
    """vLLM's mode of CUDA graphs, if any are captured."""
    typed = partial.config.policy.cuda_graphs
    if typed and typed != "none":
        return typed.upper()
    if partial.task == "transcription":
        return "FULL_DECODE_ONLY"
    old = any(gpu.compute_capability < AMPERE for gpu in partial.cards)
    old = old or cuts_latent_graphs(partial.model, partial.engine, partial.cards)
    cut = partial.task in POOLING or old or not partial.cards or cuts_graphs(partial)
    return "PIECEWISE" if cut else "FULL_AND_PIECEWISE"


def cuts_graphs(partial: PartialPlan) -> bool:
    """Whether attention is FlashInfer's, which early releases capture only without drafts; its
    kernels for SM100 are captured with them."""
    early = partial.engine.release < releases.DRAFTS_IN_WHOLE_GRAPHS
    older = any(gpu.compute_capability[0] != BLACKWELL[0] for gpu in partial.cards)
    ours = attended_by_flashinfer(partial.values, partial.inventory, partial.cards)
    return early and older and partial.mtp > 0 and ours


def share_of_unknown(partial: PartialPlan) -> float:
    """AutoMem without a forecast: the reserve covers the longest possible context."""
    return candidate_of_unknown(partial).utilization


def candidate_of_unknown(partial: PartialPlan) -> Candidate:
    """The candidate to start with if nothing can be forecast."""
    fixed = fixed_space(partial)
    batch = fixed.batch_tokens or GENEROUS_BATCH
    asked = asked_candidate(partial)
    few = min(sequences_for(partial.model, partial.cards, fixed.workload, asked), batch)
    candidate = asked.but(
        context=fixed.context or partial.model.max_model_len or UNKNOWN_CONTEXT,
        sequences=fixed.sequences or few,
        batch_tokens=batch,
        eager=fixed.graphs == "none",
    )
    share = fixed.utilization
    return candidate.but(
        utilization=utilization(candidate, partial.cards) if share is None else share
    )


def block_tokens(partial: PartialPlan) -> int:
    """Tokens in one block of the cache if a hybrid's states are kept at block borders."""
    return layout_for(
        partial.model, replace(asked_candidate(partial), aligned_states=True)
    ).block_tokens


def fixed_space(partial: PartialPlan) -> Space:
    """The part of the space that the operator fixed, by keys or by verbatim flags, which win.

    A configured utilization is a goal: no more than the free memory, unless it is pinned or
    verbatim.
    """
    config, verbatim = partial.config, partial.verbatim
    policy = config.policy
    share = verbatim.get("gpu_memory_utilization", policy.gpu_memory_utilization)
    share = float(share) if isinstance(share, (int, float)) else None
    typed = "gpu_memory_utilization" not in verbatim and not partial.pinned(
        "gpu_memory_utilization"
    )
    if share is not None and typed:
        share = min(share, int(free_share(partial.cards) * 1000) / 1000)

    def fixed(name: str, typed: int | None) -> int | None:
        return count(verbatim[name]) if name in verbatim else typed

    return Space(
        context=fixed("max_model_len", config.model.max_model_len),
        sequences=fixed("max_num_seqs", policy.max_num_seqs),
        batch_tokens=fixed("max_num_batched_tokens", policy.max_num_batched_tokens),
        utilization=share,
        graphs=_graphs(partial),
        workload=WORKLOADS[policy.workload],
        nodes=nodes_of(partial.inventory),
        in_bytes=_in_bytes(partial),
        sizes_graphs=partial.cuda and "compilation_config" not in verbatim,
        deals_layers=PARTITION not in dict(config.engine.env),
        # Each replica, and each stage, keeps its own weights.
        ram_mib=partial.inventory.least_ram_mib
        // tensor_groups(verbatim)
        // (partial.trial.split.stages if partial.trial.split else 1),
    )


def _in_bytes(partial: PartialPlan) -> bool:
    """Whether we may set the cache's size: verbatim values are left to vLLM."""
    flag = "--kv-cache-memory-bytes"
    known = not partial.engine.flags or flag in partial.engine.flags
    return partial.cuda and known and not SIZED_BY & partial.verbatim.keys()


def _graphs(partial: PartialPlan) -> Literal["open", "preferred", "kept", "none"]:
    """Whether the policy may run eagerly to save memory."""
    verbatim, typed = partial.verbatim, partial.config.policy.cuda_graphs
    if verbatim.get("enforce_eager") or typed == "none":
        return "none"
    if verbatim.get("enforce_eager") is False or "compilation_config" in verbatim:
        return "kept"
    if typed is None:
        return "open"
    return "kept" if partial.pinned("cuda_graphs") else "preferred"


def asked_candidate(partial: PartialPlan) -> Candidate:
    """The candidate described by the settings and keys so far."""
    policy, model = partial.config.policy, partial.model
    text_only = partial.config.model.text_only
    if text_only is None and model.weights and not model.size("vision"):
        text_only = True
    values = {
        "max_num_seqs": policy.max_num_seqs,
        "max_num_batched_tokens": policy.max_num_batched_tokens,
        "language_model_only": text_only,
        "compilation_config": {"cudagraph_mode": graphs_for(partial)},
        **partial.values,
    }
    return candidate_of(values, partial.inventory, partial.cards, partial.memory_variables)


def reserve_next_to_others(partial: PartialPlan) -> PartialPlan:
    """The sized plan with the reserve of a card that nobody else uses, next to the memory that
    others use, as far as its cache holds more than its context and sequences need."""
    choice, space, model, gpus = partial.choice, partial.space, partial.model, partial.cards
    others = max(map(in_use, gpus), default=0)
    if (
        not choice
        or not space
        or not choice.sound
        or partial.why_unmodelled
        or others < DESKTOP_MIB
    ):
        return partial
    candidate, unified = choice.candidate, any(gpu.unified for gpu in gpus)
    fixed = space.utilization is not None or not candidate.measured
    if fixed or unified or candidate.kv_blocks is not None:
        return partial
    least = min(gpu.total_mib for gpu in gpus)
    alone = utilization(candidate, tuple(map(unoccupied, gpus)))
    wanted = alone - (others - NOTABLE_MIB) / least
    needed = layout_for(model, candidate).needed(candidate.context)
    tokens = min(candidate.context, space.workload.cached_tokens)
    served = min(candidate.sequences, requests_that_fit(candidate, model, gpus, tokens))

    def suffices(smaller_candidate: Candidate) -> bool:
        return (
            needed <= room_for_context(model, smaller_candidate, gpus)
            and served <= requests_that_fit(smaller_candidate, model, gpus, tokens)
            and not lacks_states(model, smaller_candidate, gpus)
        )

    shares = range(ceil(wanted * 1000), int(candidate.utilization * 1000))
    smaller = (candidate.but(utilization=thousandths / 1000) for thousandths in shares)
    chosen = next(filter(suffices, smaller), candidate)
    return replace(partial, choice=replace(choice, candidate=chosen))
