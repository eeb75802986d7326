"""The ladder's rungs: each makes one change that leads to a more modest plan.

All steps go in one direction, so every rung runs out of steps, and so does the ladder.
"""

from __future__ import annotations

from caovand.core.healing.failure import Finding
from caovand.core.healing.rung import Rung, RungStep
from caovand.core.plan import Plan
from caovand.engines.common.healing.rungs import context_step
from caovand.engines.ollama.planning import variables
from caovand.engines.ollama.planning.variables import CACHE_TYPE, CARDS, CONTEXT, FLASH, OVERHEAD

FIRST_OVERHEAD, MAX_OVERHEAD = 1 << 30, 16 << 30


def _fewer_requests(plan: Plan, finding: Finding) -> RungStep | None:
    now = variables.number(plan, variables.PARALLEL)
    if now < 2:
        return None
    goal = str(now // 2)
    return RungStep(
        env={variables.PARALLEL: goal}, value=goal, change=f"requests at once {now} -> {goal}"
    )


def _quantise_cache(plan: Plan, finding: Finding) -> RungStep | None:
    """Reduce the cache to 8 bits, which costs next to nothing; flash attention reads it."""
    if variables.text(plan, CACHE_TYPE) != "f16":
        return None
    return RungStep(env={CACHE_TYPE: "q8_0", FLASH: "1"}, value="q8_0", change="cache f16 -> q8_0")


def _flash_off(plan: Plan, finding: Finding) -> RungStep | None:
    """Turn flash attention off; a quantised cache would need it."""
    if not variables.has_flash(plan):
        return None
    change = "flash attention on -> off"
    return RungStep(env={FLASH: "0", CACHE_TYPE: "f16"}, value="off", change=change)


def _raise_overhead(plan: Plan, finding: Finding) -> RungStep | None:
    """Leave Ollama less of each card: it decides itself how many layers go there."""
    if variables.text(plan, CARDS) in ("", variables.NO_CARD):
        return None
    now = variables.number(plan, OVERHEAD)
    goal = max(2 * now, FIRST_OVERHEAD)
    if goal > MAX_OVERHEAD:
        return None
    shown = f"{goal >> 20} MiB"
    change = f"memory left free on each card {now >> 20} MiB -> {shown}"
    return RungStep(env={OVERHEAD: str(goal)}, value=shown, change=change)


def _use_cpu(plan: Plan, finding: Finding) -> RungStep | None:
    if variables.text(plan, CARDS) in ("", variables.NO_CARD):
        return None
    return RungStep(env={CARDS: variables.NO_CARD}, value="cpu", change="cards -> none")


RUNGS = (
    Rung("cache", "keep the cache in eight bits", "kv_cache_dtype",
         (CACHE_TYPE, FLASH), _quantise_cache),
    Rung("parallel", "serve fewer requests at once", "max_num_seqs",
         (variables.PARALLEL,), _fewer_requests),
    Rung("context", "shorten the context", "max_model_len", (CONTEXT,), context_step(CONTEXT)),
    Rung("overhead", "leave more memory of each card free, so that fewer layers go there",
         "gpu_memory_utilization", (OVERHEAD,), _raise_overhead),
    Rung("flash-off", "compute attention step by step", "", (FLASH, CACHE_TYPE), _flash_off),
    Rung("processor", "run on the CPU", "", (CARDS,), _use_cpu),
)  # fmt: skip
