"""The ladder's rungs: each makes one change that leads to a more modest plan.

All steps go in one direction, so every rung runs out of steps, and so does the ladder.
"""

from __future__ import annotations

from caovand.core.healing.failure import Finding
from caovand.core.healing.rung import Rung, RungStep
from caovand.core.plan import Plan
from caovand.engines.common.healing.rungs import context_step, drafting_step, halve
from caovand.engines.sglang import options
from caovand.engines.sglang.options import (
    ATTENTION,
    CACHE_TYPE,
    CONTEXT,
    DECODE_GRAPHS,
    DRAFTING,
    GRAPHS_OFF,
    PREFILL_GRAPHS,
    REQUESTS,
    SHARE,
    STEP,
    attention_groups,
)

MIN_STEP = 512
MIN_SHARE, LESS_SHARE = 0.5, 0.05
EIGHT_BITS = "fp8_e4m3"
HAS_EIGHT_BITS = frozenset({"sm89", "sm90", "sm100", "sm103", "sm120", "sm121"})
"""Cards whose kernels read an 8-bit cache."""


def _fewer_requests(plan: Plan, finding: Finding) -> RungStep | None:
    # SGLang refuses a group of cards that serves no request.
    return halve(plan, REQUESTS, attention_groups(plan.value), "requests at once")


def _smaller_step(plan: Plan, finding: Finding) -> RungStep | None:
    return halve(plan, STEP, MIN_STEP, "tokens per step")


def _lower_share(plan: Plan, finding: Finding) -> RungStep | None:
    """Reduce the share for weights and cache, which leaves more for a step and for CUDA graphs."""
    now = plan.value(SHARE)
    if not isinstance(now, (int, float)) or now <= MIN_SHARE or finding.beyond_card:
        return None
    goal = round(max(now - LESS_SHARE, MIN_SHARE), 3)
    return RungStep({SHARE: goal}, value=f"{goal:g}", change=f"share of memory {now:g} -> {goal:g}")


def _trade_step_for_cache(plan: Plan, finding: Finding) -> RungStep | None:
    """Halve the tokens per step, and give a third of their memory outside the share to the cache.

    Only this rung raises the share; it ends when the tokens per step can shrink no more.
    """
    smaller = _smaller_step(plan, finding)
    now = plan.value(SHARE)
    if smaller is None or not isinstance(now, (int, float)) or not 0 < now < 1:
        return None
    goal = round(now + (1 - now) / 3, 3)
    change = f"{smaller.change}, share of memory {now:g} -> {goal:g}"
    return RungStep({**smaller.settings, SHARE: goal}, value=smaller.value, change=change)


def _quantise_cache(plan: Plan, finding: Finding) -> RungStep | None:
    """Reduce the cache to 8 bits, on cards that compute with them."""
    if plan.value(CACHE_TYPE) not in ("auto", "bf16", "bfloat16"):
        return None
    if not set(plan.device.split("-")) <= HAS_EIGHT_BITS:
        return None
    change = f"cache {plan.value(CACHE_TYPE)} -> {EIGHT_BITS}"
    return RungStep({CACHE_TYPE: EIGHT_BITS}, value=EIGHT_BITS, change=change)


def _graphs_off(plan: Plan, finding: Finding) -> RungStep | None:
    if plan.value(DECODE_GRAPHS) == GRAPHS_OFF == plan.value(PREFILL_GRAPHS):
        return None
    off = {DECODE_GRAPHS: GRAPHS_OFF, PREFILL_GRAPHS: GRAPHS_OFF}
    return RungStep(off, value="off", change="CUDA graphs on -> off")


def _triton_attention(plan: Plan, finding: Finding) -> RungStep | None:
    """Use kernels that Triton compiles for this card."""
    now = plan.value(ATTENTION)
    if now == "triton":
        return None
    change = f"attention {now or 'of its choice'} -> triton"
    return RungStep({ATTENTION: "triton"}, value="triton", change=change)


def _replicas_off(plan: Plan, finding: Finding) -> RungStep | None:
    groups = options.attention_groups(plan.value)
    replicas = options.replicas(plan.value)
    if groups == replicas == 1:
        return None
    planned = [name for name in sorted(options.PARALLEL) if plan.value(name)]
    change = f"{replicas} replicas -> one engine" if groups == 1 else "attention on all cards"
    return RungStep(dict.fromkeys(planned), change=change)


RUNGS = (
    Rung("share", "reserve less memory for weights and cache", "gpu_memory_utilization",
         (SHARE,), _lower_share),
    Rung("fill", "process fewer tokens per step and give the freed memory to the cache",
         "max_num_batched_tokens", (STEP, SHARE), _trade_step_for_cache),
    Rung("requests", "serve fewer requests at once", "max_num_seqs", (REQUESTS,), _fewer_requests),
    Rung("context", "shorten the context", "max_model_len", (CONTEXT,), context_step(CONTEXT)),
    Rung("cache", "keep the cache in eight bits", "kv_cache_dtype", (CACHE_TYPE,), _quantise_cache),
    Rung("step", "process fewer tokens per step", "max_num_batched_tokens", (STEP,), _smaller_step),
    Rung("graphs-off", "run without CUDA graphs", "cuda_graphs",
         (DECODE_GRAPHS, PREFILL_GRAPHS), _graphs_off),
    Rung("draft-off", "draft nothing", "mtp", (DRAFTING, "speculative_algorithm"),
         drafting_step(DRAFTING)),
    Rung("replicas-off", "serve with one engine instead of replicas", "",
         tuple(sorted(options.PARALLEL)), _replicas_off),
    Rung("attention", "compute attention with Triton's kernels", "",
         (ATTENTION,), _triton_attention),
)  # fmt: skip
