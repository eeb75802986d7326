"""Rules for the capacity: the context, the sequences, the tokens of a step."""

from __future__ import annotations

from caovand.core.model_task import POOLING
from caovand.core.plan import Setting, Unplannable
from caovand.engines.vllm.flags.spelling import beyond_limit
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.kv_cache import layout_for
from caovand.engines.vllm.planning.fit import UNKNOWN_LIMIT, max_model_len_on_cpu
from caovand.engines.vllm.planning.partial_plan import PartialPlan, policy, user
from caovand.engines.vllm.sizing.search import (
    LEAN_BATCH,
    PASSAGE,
    USUAL_SEQUENCES,
    requests_that_fit,
)
from caovand.engines.vllm.sizing.space import Choice, RunnerUp
from caovand.engines.vllm.sizing.workload import WORKLOADS


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
        return max_model_len_on_cpu(partial)
    if partial.choice is None:
        return None
    context = partial.choice.candidate.context
    if not partial.model.limit_known:
        return policy("auto", UNKNOWN_LIMIT)
    if partial.unweighed:
        return policy("auto", f"vLLM takes the longest that fits: {partial.unweighed}")
    if context == limit:
        return policy(context, "the model's own limit, which fits")
    if partial.choice.offloaded:
        return policy(
            context,
            "a longer one would move so many more weights to host memory that it costs more time"
            " than it is worth; set [model] max_model_len for more",
        )
    if not partial.choice.fits:
        return policy(context, "no context fits; this is the smallest that is worth a start")
    return policy(context, _why_no_longer(partial.choice, limit))


def _why_no_longer(choice: Choice, limit: int) -> str:
    """The reason for a context below the model's limit, and what the runner-up would hold."""
    candidate, second = choice.candidate, choice.runner_up
    if choice.longest <= candidate.context and second is None:
        return f"the longest that fits; the model's own limit is {limit}"
    graphs = "" if candidate.eager else "CUDA graphs and "
    reason = f"the longest that fits with {graphs}{count_of(candidate.sequences)}"
    if second and not _is_worse(second, candidate):
        other = second.candidate
        reason += f"; {_differing(candidate, other)} would hold {other.context} tokens, "
        even = 0.98 < second.slower < 1.02
        reason += (
            "as fast per token" if even else f"at {second.slower:.2f} times the time per token"
        )
    if choice.longest > candidate.context:
        reason += (
            f"; up to {choice.longest} fit if other settings give way: set [model] max_model_len ="
            f" {choice.longest}"
        )
    return reason


def _is_worse(second: RunnerUp, candidate: Candidate) -> bool:
    """Whether the runner-up is better in nothing, so that mentioning it helps nobody."""
    other = second.candidate
    alike = other.kv_dtype == candidate.kv_dtype and other.vision == candidate.vision
    return alike and other.context <= candidate.context and second.slower > 0.98


def count_of(sequences: int) -> str:
    return "one sequence" if sequences == 1 else f"{sequences} sequences at once"


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
    if candidate.vision != other.vision:
        differences.append("the vision tower" if other.vision else "text alone")
    return " and ".join(differences)


def max_num_seqs(partial: PartialPlan) -> Setting | None:
    typed = partial.config.policy.max_num_seqs
    if typed is not None:
        return user(typed, "[policy] max_num_seqs")
    if partial.choice is None:
        return None
    count = partial.choice.candidate.sequences
    if partial.task in POOLING and count > USUAL_SEQUENCES:
        return policy(count, f"about as many texts of {PASSAGE} tokens as fit at once")
    return policy(count, _why_so_many(partial, partial.choice))


def _why_so_many(partial: PartialPlan, choice: Choice) -> str:
    """What limits the sequences: the cards, or the cache and the memory of requests."""
    name, candidate = partial.config.policy.workload, choice.candidate
    workload = WORKLOADS[name]
    if "sequences" not in choice.spared:
        if workload.batch:
            return "vLLM's own limit on such cards; requests beyond it wait"
        if candidate.turing:
            return (
                "with more, each step would compute longer than it reads the weights, and "
                "everybody would wait"
            )
        return "sampling more takes memory"
    if partial.unweighed:
        return "more would take memory that is not forecast"
    tokens = min(candidate.context, workload.cached_tokens)
    fitting = requests_that_fit(candidate, partial.model, partial.cards, tokens)
    if fitting < USUAL_SEQUENCES:
        whole = f"{fitting:.1f} requests of {tokens} tokens"
        return f"the cache holds {whole}, and every sequence takes memory"
    reason = (
        f"the cache holds about {fitting:.0f} requests of the workload ({name}, {tokens} tokens)"
    )
    layout = layout_for(partial.model, candidate)
    if layout.state_groups and layout.full_groups:
        states = layout.state_groups * layout.state_blocks * layout.block_tokens
        reason += f" with recurrent states as large as {states // layout.full_groups} tokens each"
    if candidate.sequences > fitting + 1:
        reason += ", and more that are shorter; vLLM admits as many as fit"
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
