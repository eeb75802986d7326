"""Rules for the capacity: context, sequences, tokens of a step, size of the cache."""

from __future__ import annotations

from math import ceil

from caovand.core.model_task import POOLING
from caovand.core.plan import Setting, Unplannable
from caovand.core.units import GIB, MIB
from caovand.engines.vllm.flags.spelling import beyond_limit, count
from caovand.engines.vllm.machine.attention import attends_as_encoder
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.estimate import KEPT_MIB, KEPT_SHARE, kv_bytes
from caovand.engines.vllm.memory.kv_cache import layout_for
from caovand.engines.vllm.planning.fit import asked_candidate
from caovand.engines.vllm.planning.partial_plan import PartialPlan, policy, user
from caovand.engines.vllm.sizing.search import (
    LEAN_BATCH,
    PASSAGE,
    USUAL_SEQUENCES,
    requests_that_fit,
)
from caovand.engines.vllm.sizing.space import WORKLOADS, Choice, RunnerUp

MAX_OF_RAM, MAX_OF_REST = 16, 4
REQUESTS = 2
STEP_MIB = 64
"""The cache of a CPU build is a modest fraction of the machine's memory, so that it stays the
same."""
UNKNOWN_LIMIT = "config.json does not state the model's limit: vLLM uses the longest that fits"


def max_model_len(partial: PartialPlan) -> Setting | None:
    typed, limit = partial.config.model.max_model_len, partial.model.max_model_len
    if typed is not None:
        if beyond_limit(partial.model, typed, partial.verbatim, dict(partial.config.engine.env)):
            raise Unplannable(
                f"cannot serve a context of {typed} tokens: the model's own limit is {limit}; "
                f"set max_model_len = {limit} or less"
            )
        return user(typed, "[model] max_model_len")
    if not partial.cuda:
        return _longest_on_cpu(partial)
    if partial.choice is None:
        return None
    context = partial.choice.candidate.context
    if not partial.model.limit_known:
        return policy("auto", UNKNOWN_LIMIT)
    if partial.why_unmodelled:
        return policy("auto", f"vLLM takes the longest that fits: {partial.why_unmodelled}")
    if context == limit:
        return policy(context, "the model's own limit, which fits")
    if partial.choice.offloaded:
        return policy(
            context,
            "a longer context would move so many more weights to host memory that it would cost "
            "more time than it is worth; set [model] max_model_len for more",
        )
    if not partial.choice.fits:
        return policy(context, "no context fits; this is the smallest worth starting with")
    return policy(context, _why_no_longer(partial.choice, limit))


def _longest_on_cpu(partial: PartialPlan) -> Setting | None:
    model = partial.model
    if not model.layer_types or "kv_cache_memory_bytes" in partial.verbatim:
        return None
    if not model.limit_known:
        return policy("auto", UNKNOWN_LIMIT)
    longest = layout_for(model, asked_candidate(partial)).longest(
        _cache_bytes_on_cpu(partial), model.max_model_len
    )
    if longest in (0, model.max_model_len):
        return None
    return policy(
        longest, f"the longest that fits {_cache_bytes_on_cpu(partial) // MIB} MiB of cache"
    )


def _why_no_longer(choice: Choice, limit: int) -> str:
    """The reason for a context below the model's limit, and what the runner-up would hold."""
    candidate, second = choice.candidate, choice.runner_up
    margin = (
        f"; {KEPT_SHARE:.0%} of the cache and {KEPT_MIB} MiB are left in case the forecast errs: "
        "[model] max_model_len can use them"
        if candidate.measured
        else ""
    )
    if choice.longest <= candidate.context and second is None:
        return f"the longest that fits; the model's own limit is {limit}{margin}"
    graphs = "" if candidate.eager else "CUDA graphs and "
    served = (
        "one sequence" if candidate.sequences == 1 else f"{candidate.sequences} sequences at once"
    )
    reason = f"the longest that fits with {graphs}{served}"
    if second and not _is_worse(second, candidate):
        other = second.candidate
        reason += f"; {_differing(candidate, other)} would hold {other.context} tokens, "
        slower = f"at {second.slower:.2f} times the time per token"
        reason += "as fast per token" if 0.98 < second.slower < 1.02 else slower
    if choice.longest > candidate.context:
        reason += (
            f"; {choice.longest}{' or more' * (choice.longest < limit)} fit if other settings "
            f"yield: set [model] max_model_len = {choice.longest}"
        )
    return reason + margin


def _is_worse(second: RunnerUp, candidate: Candidate) -> bool:
    """Whether the runner-up is better in nothing, so that mentioning it helps nobody."""
    other = second.candidate
    alike = other.kv_dtype == candidate.kv_dtype and other.vision == candidate.vision
    alike = alike and other.videos <= candidate.videos and other.pixels >= candidate.pixels
    return alike and other.context <= candidate.context and second.slower > 0.98


def _differing(candidate: Candidate, other: Candidate) -> str:
    """How another candidate differs, in a few words."""
    differences = []
    if candidate.eager != other.eager:
        differences.append("CUDA graphs off" if other.eager else "CUDA graphs")
    if candidate.mtp != other.mtp:
        differences.append(f"MTP {other.mtp}")
    if candidate.kv_dtype != other.kv_dtype:
        differences.append(
            f"a cache in {'16 bits' if other.kv_dtype == 'auto' else other.kv_dtype}"
        )
    if candidate.rounds_head != other.rounds_head:
        differences.append(f"an lm_head in {'8' if other.rounds_head else '16'} bits")
    if candidate.vision != other.vision:
        differences.append("the vision tower" if other.vision else "text alone")
    elif candidate.videos != other.videos:
        differences.append("videos" if other.videos else "no videos")
    elif candidate.pixels != other.pixels:
        differences.append("smaller images" if other.pixels else "whole images")
    return " and ".join(differences)


def max_num_seqs(partial: PartialPlan) -> Setting | None:
    typed = partial.config.policy.max_num_seqs
    if typed is not None:
        return user(typed, "[policy] max_num_seqs")
    if partial.choice is None:
        return None
    sequences = partial.choice.candidate.sequences
    if partial.task in POOLING and sequences > USUAL_SEQUENCES:
        return policy(sequences, _why_so_many_texts(partial, partial.choice.candidate))
    return policy(sequences, _why_so_many(partial, partial.choice))


def _why_so_many_texts(partial: PartialPlan, candidate: Candidate) -> str:
    """The limit of an embedder's or ranker's texts: the cache, or the tokens of a step."""
    fitting = requests_that_fit(candidate, partial.model, partial.cards, PASSAGE)
    a_step = candidate.batch_tokens // PASSAGE
    if a_step < candidate.sequences < int(fitting):
        cached = not attends_as_encoder(partial.model)
        room = f"; the cache holds about {fitting:.0f}" if cached else ""
        return (
            f"a step of {candidate.batch_tokens} tokens reads {a_step} texts of {PASSAGE} tokens "
            f"at once, or more shorter ones{room}"
        )
    return f"about as many texts of {PASSAGE} tokens as fit at once"


def _why_so_many(partial: PartialPlan, choice: Choice) -> str:
    """The limit of the sequences: the cards, or the cache and the memory of requests."""
    name, candidate = partial.config.policy.workload, choice.candidate
    workload = WORKLOADS[name]
    if "sequences" not in choice.spared:
        if workload.batch:
            return "vLLM's own limit on such cards; requests beyond it wait"
        if candidate.kernels.turing:
            return (
                "with more, each step would compute longer than it reads the weights, and every "
                "user would wait"
            )
        return "sampling more sequences needs memory"
    if not choice.fits:
        return "memory is short: every sequence needs some"
    if partial.why_unmodelled:
        return "more would need memory that is not forecast"
    tokens = min(candidate.context, workload.cached_tokens)
    fitting = requests_that_fit(candidate, partial.model, partial.cards, tokens)
    if fitting < USUAL_SEQUENCES:
        whole = f"{fitting:.1f} requests of {tokens} tokens"
        return f"the cache holds {whole}, and every sequence needs memory"
    fitted = f"about {fitting:.0f} requests of the workload ({name}, {tokens} tokens)"
    if candidate.sequences * 2 <= fitting:
        return f"every sequence needs memory, and little is left; the cache holds {fitted}"
    reason = f"the cache holds {fitted}"
    layout = layout_for(partial.model, candidate)
    if layout.state_groups and layout.full_groups:
        states = layout.state_groups * layout.state_blocks * layout.block_tokens
        reason += f" with recurrent states as large as {states // layout.full_groups} tokens each"
    if candidate.sequences > fitting + 1:
        reason += ", or more shorter ones; vLLM admits as many as fit"
    return reason


def max_num_batched_tokens(partial: PartialPlan) -> Setting | None:
    typed = partial.config.policy.max_num_batched_tokens
    if typed is not None:
        return user(typed, "[policy] max_num_batched_tokens")
    if partial.choice is None:
        return None
    size = partial.choice.candidate.batch_tokens
    if partial.choice.offloaded and size > LEAN_BATCH:
        return policy(size, "each step of a prompt reads weights from host memory")
    if "batch" in partial.choice.spared:
        return policy(size, "memory is short: a smaller step needs less")
    return policy(size, "large steps read long prompts fastest")


def kv_cache_memory_bytes(partial: PartialPlan) -> Setting | None:
    if partial.cuda:
        return _cache_bytes_on_cards(partial)
    model, share, step = partial.model, _cache_bytes_on_cpu(partial), STEP_MIB * MIB
    if not model.layer_types:
        return policy(share, f"a {MAX_OF_RAM}th of the memory; the model is unknown")
    asked = count(partial.value("max_model_len"))
    if not asked and not model.limit_known:
        return policy(share, f"a {MAX_OF_RAM}th of the memory; {UNKNOWN_LIMIT}")
    context = asked or model.max_model_len
    request = layout_for(model, asked_candidate(partial)).needed(context)
    if not request:
        return policy(step, "the model has no cache, and vLLM's default would use memory")
    usual = ceil(request * REQUESTS / step) * step
    if usual <= share:
        return policy(usual, f"room for {REQUESTS} requests of {context} tokens")
    size = max(ceil(request / step) * step, share)
    return policy(size, f"room for {size / request:.1f} requests of {context} tokens")


def _cache_bytes_on_cpu(partial: PartialPlan) -> int:
    ram_mib, weights_mib = partial.inventory.least_ram_mib, partial.model.size() // MIB
    least_mib = ram_mib // MAX_OF_RAM
    known = weights_mib and partial.model.layer_types and partial.model.limit_known
    share_mib = (ram_mib - weights_mib) // MAX_OF_REST if known else 0
    return max(max(least_mib, share_mib) // STEP_MIB, 1) * STEP_MIB * MIB


def _cache_bytes_on_cards(partial: PartialPlan) -> Setting | None:
    """The size of the cache, set if vLLM would measure too little room for it."""
    if partial.why_unmodelled or partial.choice is None or not partial.choice.candidate.in_bytes:
        return None
    candidate, cards = partial.choice.candidate, partial.cards
    ours = kv_bytes(partial.model, candidate, cards)
    cold = kv_bytes(partial.model, candidate.but(in_bytes=False, cold=True), cards)
    if cold >= ours:
        more = "as much as vLLM would leave it"
        if cold - ours >= 2 * MIB:
            more = f"vLLM would leave it {cold / GIB:.2f}, but its graphs need the difference"
        reason = f"{ours / GIB:.2f} GiB: {more}; the context is sized to fill it"
        return policy(int(ours), reason)
    return policy(
        int(ours),
        f"vLLM would leave it {max(cold, 0) / GIB:.2f} GiB at the first start, where compiling "
        f"uses memory that no later step needs; {ours / GIB:.2f} GiB fit",
    )
