"""Sizing a draft: the candidate its settings amount to, and what may give way for the context.

TurboQuant caches are never chosen here: k8v4 unpacks whole contexts beside the cache, and in the
published runs it held no more tokens than an 8-bit one. They are there for who names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from caovand.core.model_task import POOLING
from caovand.core.plan import Setting, Unplannable
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import count
from caovand.engines.vllm.machine.attention import attended_by_flashinfer
from caovand.engines.vllm.machine.capabilities import AMPERE, BLACKWELL
from caovand.engines.vllm.machine.ranks import nodes_of, stages
from caovand.engines.vllm.memory.candidate import GIB, MIB, Candidate, free_share, utilization
from caovand.engines.vllm.memory.estimate import kv_bytes
from caovand.engines.vllm.memory.kv_cache import layout_for
from caovand.engines.vllm.memory.settings import candidate_of
from caovand.engines.vllm.memory.shards import PARTITION
from caovand.engines.vllm.planning.devices import emptied, holders
from caovand.engines.vllm.planning.draft import Draft, policy
from caovand.engines.vllm.planning.precision import quantised_at_load, variables
from caovand.engines.vllm.sizing.pace import WORKLOADS
from caovand.engines.vllm.sizing.partition import partition
from caovand.engines.vllm.sizing.search import (
    GENEROUS_BATCH,
    LEAN_BATCH,
    best,
    longest_lean,
    sequences_for,
)
from caovand.engines.vllm.sizing.space import Choice, Space

UNKNOWN_CONTEXT = 131_072
"""The context of today's models, which the reserve of an unknown one is for."""
ENOUGH_EXACT = 32_768
"""A context of this length keeps the model's own type of cache: seven usual conversations. A
checkpoint rarely brings scales for 8 bits, and what they cost each model was not measured."""
MIN_EXACT = 8192
"""Where 16-bit weights leave no room for such a context, they are rounded to 8 bits."""
BEHIND_EXACT = 1e6
"""Added to the score of rounded weights: over fewer or more cards every exact way comes first."""
SIZED_BY = {"gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override"}
"""Flags that say how large the cache is."""
MIN_ALONE = 4096
"""Below this, wait for other programs to free memory instead of serving."""


def size_draft(draft: Draft, others: Sequence[Draft] = ()) -> Draft:
    """The best of the draft and others, with its choice; without limits if a flag keeps memory from
    being forecast.

    If the model fits without counting such a flag, the way of running that fits is kept.
    """
    if not draft.unweighed:
        return _weigh([draft, *others])
    if not draft.weights_unknown:
        found = _weigh([draft])
        if found.choice and found.choice.sound:
            return found
    return replace(draft, choice=Choice(_candidate_of_unknown(draft), fits=True))


def _weigh(drafts: Sequence[Draft]) -> Draft:
    """The best of these drafts, with its choice; the vision tower may give way, the cache's own
    type if it holds little, and 16-bit weights before any go to host memory."""
    fixed = _fixed(drafts[0])
    draft, choice, bases = _in_own_cache(drafts, fixed)
    rounded = (
        [] if _hold_exactly(drafts[0], choice, bases) else list(map(quantised_at_load, drafts))
    )
    if found := [one for one in rounded if one]:
        draft_in_8, choice_in_8, bases_in_8 = _in_own_cache(found, fixed)
        if choice_in_8.sound and (not choice.sound or choice_in_8.score < choice.score):
            draft, bases = draft_in_8, bases_in_8
            choice = replace(choice_in_8, score=BEHIND_EXACT + choice_in_8.score)
    if fixed.context is None or not choice.sound:
        _wait_for_others(bases, drafts[0])
    return replace(draft, choice=choice)


def _hold_exactly(draft: Draft, choice: Choice, bases: Sequence[Candidate]) -> bool:
    """Whether the cards hold the weights as they are stored and some context, if nobody else used
    them and whatever share and context were asked for."""
    if choice.sound and choice.candidate.context >= MIN_EXACT:
        return True
    least, free = min(MIN_EXACT, draft.model.max_model_len), emptied(draft.cards)
    return free != draft.cards or longest_lean(bases, draft.model, free) >= least


Found = tuple[Draft, Choice, tuple[Candidate, ...]]
"""A draft, its choice, and the bases of the search."""


def _in_own_cache(drafts: Sequence[Draft], fixed: Space) -> Found:
    """The best of the drafts with the cache's own type; of all, if that holds little."""
    own = [draft for draft in drafts if not draft.cache]
    found = _best_of(own, fixed)
    context, limit = found[1].candidate.context, drafts[0].model.max_model_len
    enough = context >= min(fixed.context or limit, ENOUGH_EXACT)
    if len(own) == len(drafts) or (found[1].sound and enough):
        return found
    return _best_of(drafts, fixed)


def _best_of(drafts: Sequence[Draft], fixed: Space) -> Found:
    """The best of these drafts."""
    draft = drafts[0]
    ways = [(one, asked_candidate(one)) for one in drafts]
    if ways[0][1].vision and _text_only_may_help(draft):
        ways += [(one, base.but(vision=False)) for one, base in ways]
    lean = ways[len(drafts) - 1][1].but(
        sequences=fixed.sequences or 1, batch_tokens=fixed.batch_tokens or LEAN_BATCH, eager=True
    )

    def choose(dealt: tuple[int, ...]) -> tuple[Choice, tuple[Candidate, ...]]:
        bases = tuple(base.but(stages=dealt) for _, base in ways)
        return best(replace(fixed, bases=bases), draft.model, draft.cards), bases

    choice, bases = choose(_deal(draft, lean))
    dealt = _deal(draft, choice.candidate)
    if dealt != choice.candidate.stages:
        again, _ = choose(dealt)
        if (not again.fits, again.score) <= (not choice.fits, choice.score):
            choice = again
    return ways[choice.base][0], choice, bases


def _deal(draft: Draft, candidate: Candidate) -> tuple[int, ...]:
    """The best layers of each stage for this candidate, unless they are set."""
    if not candidate.stages or PARTITION in dict(draft.config.engine.env):
        return candidate.stages
    usual = WORKLOADS[draft.config.policy.workload]
    return partition(draft.model, candidate, draft.cards, usual)


def graphs_for(draft: Draft) -> str:
    """vLLM's mode of CUDA graphs, if any are captured."""
    typed = draft.config.policy.cuda_graphs
    if typed and typed != "none":
        return typed.upper()
    if draft.task == "transcription":
        return "FULL_DECODE_ONLY"
    old = any(gpu.compute_capability < AMPERE for gpu in draft.cards)
    cut = draft.task in POOLING or old or not draft.cards or cuts_graphs(draft)
    return "PIECEWISE" if cut else "FULL_AND_PIECEWISE"


def cuts_graphs(draft: Draft) -> bool:
    """Whether attention is FlashInfer's, which early releases capture only without drafts; its
    kernels for SM100 are captured with them."""
    early = draft.engine.release < releases.DRAFTS_IN_WHOLE_GRAPHS
    older = any(gpu.compute_capability[0] != BLACKWELL[0] for gpu in draft.cards)
    ours = attended_by_flashinfer(draft.values, draft.inventory, draft.cards)
    return early and older and draft.mtp > 0 and ours


def share_of_unknown(draft: Draft) -> float:
    """AutoMem without a forecast: the reserve is for the longest context there may be."""
    return _candidate_of_unknown(draft).utilization


def _candidate_of_unknown(draft: Draft) -> Candidate:
    """The candidate to start with if nothing is forecast."""
    fixed = _fixed(draft)
    batch = fixed.batch_tokens or GENEROUS_BATCH
    few = min(sequences_for(draft.model, draft.cards, draft.turing), batch)
    candidate = asked_candidate(draft).but(
        context=fixed.context or draft.model.max_model_len or UNKNOWN_CONTEXT,
        sequences=fixed.sequences or few,
        batch_tokens=batch,
        eager=fixed.graphs == "none",
    )
    share = fixed.utilization
    return candidate.but(
        utilization=utilization(candidate, draft.cards) if share is None else share
    )


def block_tokens(draft: Draft) -> int:
    """Tokens in one block of the cache if a hybrid's states are kept at block borders."""
    return layout_for(
        draft.model, replace(asked_candidate(draft), aligned_states=True)
    ).block_tokens


def _wait_for_others(bases: Sequence[Candidate], draft: Draft) -> None:
    """Raise Unplannable if only the memory of other processes keeps the model from running here."""
    gpus, model = draft.cards, draft.model
    free = emptied(gpus)
    least = min(MIN_ALONE, model.max_model_len)
    if free == gpus or longest_lean(bases, model, gpus) >= least:
        return
    alone = longest_lean(bases, model, free)
    if alone >= least:
        who = holders(draft.gpus, draft.inventory.others, draft.values)
        raise Unplannable(
            f"cannot start: {who}, which leaves the model no room (alone it would hold"
            f" a context of {alone} tokens); stop them, or name other cards in [engine] gpus",
            "vram-busy",
        )


def _fixed(draft: Draft) -> Space:
    """The part of the space that the operator fixed, by keys or by verbatim flags, which win.

    A typed share is a goal: no more than what is free, unless it is pinned or verbatim.
    """
    config, verbatim = draft.config, draft.verbatim
    policy = config.policy
    share = verbatim.get("gpu_memory_utilization", policy.gpu_memory_utilization)
    share = float(share) if isinstance(share, (int, float)) else None
    typed = "gpu_memory_utilization" not in verbatim and not draft.pinned("gpu_memory_utilization")
    if share is not None and typed:
        share = min(share, int(free_share(draft.cards) * 1000) / 1000)

    def fixed(name: str, typed: int | None) -> int | None:
        return count(verbatim[name]) if name in verbatim else typed

    return Space(
        context=fixed("max_model_len", config.model.max_model_len),
        sequences=fixed("max_num_seqs", policy.max_num_seqs),
        batch_tokens=fixed("max_num_batched_tokens", policy.max_num_batched_tokens),
        utilization=share,
        graphs=_graphs(draft),
        workload=WORKLOADS[policy.workload],
        nodes=nodes_of(draft.inventory),
        in_bytes=_in_bytes(draft),
        # Each replica, and each stage, keeps weights of its own.
        ram_mib=draft.inventory.least_ram_mib
        // stages(verbatim)
        // (draft.split.stages if draft.split else 1),
    )


def _in_bytes(draft: Draft) -> bool:
    """Whether we may set the cache's size: what is passed verbatim means what vLLM makes of it."""
    flag = "--kv-cache-memory-bytes"
    known = not draft.engine.flags or flag in draft.engine.flags
    return draft.cuda and known and not SIZED_BY & draft.verbatim.keys()


def _graphs(draft: Draft) -> Literal["open", "preferred", "kept", "none"]:
    """Whether the policy may run eagerly to save memory."""
    verbatim, typed = draft.verbatim, draft.config.policy.cuda_graphs
    if verbatim.get("enforce_eager") or typed == "none":
        return "none"
    if verbatim.get("enforce_eager") is False or "compilation_config" in verbatim:
        return "kept"
    if typed is None:
        return "open"
    return "kept" if draft.pinned("cuda_graphs") else "preferred"


def asked_candidate(draft: Draft) -> Candidate:
    """The candidate of the settings decided and the keys typed so far."""
    policy, model = draft.config.policy, draft.model
    text_only = draft.config.model.text_only
    if text_only is None and model.weights and not model.size("vision"):
        text_only = True
    values = {
        "max_num_seqs": policy.max_num_seqs,
        "max_num_batched_tokens": policy.max_num_batched_tokens,
        "language_model_only": text_only,
        "compilation_config": {"cudagraph_mode": graphs_for(draft)},
        **draft.values,
    }
    return candidate_of(values, draft.inventory, draft.cards, variables(draft))


def _text_only_may_help(draft: Draft) -> bool:
    return "language_model_only" not in draft.verbatim and draft.config.model.text_only is None


MAX_OF_RAM = 16
REQUESTS = 2
STEP_MIB = 64
"""The cache of a CPU build is a modest part of the machine's memory, so that it stays the same."""
UNKNOWN_LIMIT = "config.json does not tell the model's limit: vLLM takes the longest that fits"


def _cache_bytes_on_cpu(draft: Draft) -> int:
    return max(draft.inventory.least_ram_mib // MAX_OF_RAM // STEP_MIB, 1) * STEP_MIB * MIB


def max_model_len_on_cpu(draft: Draft) -> Setting | None:
    model = draft.model
    if not model.layer_types or "kv_cache_memory_bytes" in draft.verbatim:
        return None
    if not model.limit_known:
        return policy("auto", UNKNOWN_LIMIT)
    longest = layout_for(model, asked_candidate(draft)).longest(
        _cache_bytes_on_cpu(draft), model.max_model_len
    )
    if longest in (0, model.max_model_len):
        return None
    return policy(
        longest, f"the longest that fits {_cache_bytes_on_cpu(draft) // MIB} MiB of cache"
    )


def _cache_bytes_on_cards(draft: Draft) -> Setting | None:
    """The size of the cache where vLLM would measure too little room for it."""
    if draft.unweighed or draft.choice is None or not draft.choice.candidate.in_bytes:
        return None
    candidate, cards = draft.choice.candidate, draft.cards
    ours = kv_bytes(draft.model, candidate, cards)
    cold = kv_bytes(draft.model, candidate.but(in_bytes=False, cold=True), cards)
    return policy(
        int(ours),
        f"vLLM would leave it {max(cold, 0) / GIB:.2f} GiB at the first start, whose compiling"
        f" takes memory that no later step needs; {ours / GIB:.2f} GiB fit",
    )


def kv_cache_memory_bytes(draft: Draft) -> Setting | None:
    if draft.cuda:
        return _cache_bytes_on_cards(draft)
    if not draft.model.layer_types:
        return policy(
            _cache_bytes_on_cpu(draft), f"a {MAX_OF_RAM}th of the memory; the model is unknown"
        )
    asked = count(draft.value("max_model_len"))
    if not asked and not draft.model.limit_known:
        return policy(
            _cache_bytes_on_cpu(draft), f"a {MAX_OF_RAM}th of the memory; {UNKNOWN_LIMIT}"
        )
    context = asked or draft.model.max_model_len
    one = layout_for(draft.model, asked_candidate(draft)).needed(context)
    if not one:
        return policy(STEP_MIB * MIB, "the model keeps no cache, and vLLM's default takes memory")
    whole = -(-one * REQUESTS // (STEP_MIB * MIB)) * STEP_MIB * MIB
    if whole <= _cache_bytes_on_cpu(draft):
        return policy(whole, f"room for {REQUESTS} requests of {context} tokens")
    least = -(-one // (STEP_MIB * MIB)) * STEP_MIB * MIB
    amount = max(least, _cache_bytes_on_cpu(draft))
    return policy(amount, f"room for {amount / one:.1f} requests of {context} tokens")
