"""The ladder's rungs: each makes one change that leads to a more modest plan.

All steps go in one direction, so every rung runs out of steps, and so does the ladder.
"""

from __future__ import annotations

from caovand.core.healing.failure import Finding
from caovand.core.healing.rung import Rung, RungStep
from caovand.core.plan import Plan
from caovand.engines.common.healing.rungs import context_step, drafting_step, halve
from caovand.engines.common.options import count
from caovand.engines.llamacpp.planning.options import CONTEXT, SHARED

MIN_BATCH = 32
LAYERS_DIVISOR = 8
"""The fraction of the layers that a step takes off the cards, as its denominator."""


def _fewer_slots(plan: Plan, finding: Finding) -> RungStep | None:
    if plan.value(SHARED) is True:  # with one shared cache they free nothing
        return None
    return halve(plan, "parallel", 1, "sequences")


def _smaller_batch(plan: Plan, finding: Finding) -> RungStep | None:
    """Halve the micro-batch, which determines the buffers, and the batch with it."""
    step = halve(plan, "ubatch_size", MIN_BATCH, "micro-batch")
    if step is None:
        return None
    micro, batch = step.settings["ubatch_size"], count(plan.value("batch_size")) or 0
    return RungStep(
        {"ubatch_size": micro, "batch_size": max(batch // 2, micro)}, value=step.value,
        change=step.change,
    )  # fmt: skip


def _quantise_cache(plan: Plan, finding: Finding) -> RungStep | None:
    """Reduce the cache to 8 bits, which costs next to nothing; flash attention reads it."""
    if plan.value("cache_type_k") not in ("f16", "bf16", "f32"):
        return None
    changed = {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on"}
    return RungStep(changed, value="q8_0", change=f"cache {plan.value('cache_type_k')} -> q8_0")


def _unquantise_values(plan: Plan, finding: Finding) -> RungStep | None:
    if plan.value("cache_type_v") in (None, "f16"):
        return None
    change = f"cache {plan.value('cache_type_v')} -> f16"
    return RungStep({"cache_type_k": "f16", "cache_type_v": "f16"}, value="f16", change=change)


def _flash_auto(plan: Plan, finding: Finding) -> RungStep | None:
    """Let llama-server test whether the card supports it; a quantised cache would insist on it."""
    if plan.value("flash_attn") != "on":
        return None
    changed = {"flash_attn": "auto", "cache_type_k": "f16", "cache_type_v": "f16"}
    return RungStep(changed, value="auto", change="flash attention on -> auto")


def _fewer_layers(plan: Plan, finding: Finding) -> RungStep | None:
    """Keep fewer layers on the cards, one in eight less each time, and finally none."""
    now = count(plan.value("gpu_layers"))
    if now is None:
        return None
    goal = max(now - max(now // LAYERS_DIVISOR, 1), 0)
    change = f"layers on the cards {now} -> {goal}"
    return RungStep({"gpu_layers": goal}, value=str(goal), change=change)


def _prompts_off(plan: Plan, finding: Finding) -> RungStep | None:
    """Keep no prompts of earlier requests in host memory."""
    now = count(plan.value("cache_ram"))
    if now is None:
        return None
    return RungStep({"cache_ram": 0}, value="0", change=f"prompts kept in memory {now} MiB -> none")


def _mmap_off(plan: Plan, finding: Finding) -> RungStep | None:
    """Read the file instead of mapping it, if mapping fails or its disk is slow."""
    if plan.value("load_mode") != "mmap":
        return None
    return RungStep({"load_mode": "none"}, value="none", change="mmap -> reading the file")


RUNGS = (
    Rung("prompts-off", "do not keep prompts in host memory", "", ("cache_ram",), _prompts_off),
    Rung("slots", "decode fewer sequences at once", "max_num_seqs", ("parallel",), _fewer_slots),
    Rung("cache", "keep the cache in eight bits", "kv_cache_dtype",
         ("cache_type_k", "cache_type_v"), _quantise_cache),
    Rung("cache-plain", "keep the cache in half precision", "kv_cache_dtype",
         ("cache_type_k", "cache_type_v"), _unquantise_values),
    Rung("batch", "process fewer tokens per step", "max_num_batched_tokens",
         ("ubatch_size", "batch_size"), _smaller_batch),
    Rung("context", "shorten the context", "max_model_len", (CONTEXT,), context_step(CONTEXT)),
    Rung("layers", "keep fewer layers on the cards", "", ("gpu_layers",), _fewer_layers),
    Rung("draft-off", "draft nothing", "mtp", ("speculative_config", "spec_type"),
         drafting_step("speculative_config")),
    Rung("flash-auto", "let llama.cpp choose the attention", "", ("flash_attn",), _flash_auto),
    Rung("mmap-off", "read the file instead of mapping it", "", ("load_mode",), _mmap_off),
)  # fmt: skip
