"""The failure in which a start of a plan is known to end, before it begins."""

from __future__ import annotations

from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Inventory
from caovand.core.healing.failure import Failure, Finding, Foreseen
from caovand.core.plan import Plan
from caovand.core.units import MIB
from caovand.engines.vllm.flags import command_line
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.estimate import spare_tokens
from caovand.engines.vllm.memory.settings import candidate_of_plan, cards_of_plan
from caovand.engines.vllm.planning import obstacles
from caovand.engines.vllm.planning.decisions import conflicts, forecast
from caovand.engines.vllm.planning.devices import FREE_CARDS
from caovand.engines.vllm.planning.partial_plan import PlanOnCards

WEIGHTS_SHARE, STEPS_SHARE, GRAPHS_SHARE, NEED_SHARE = 0.08, 0.1, 0.6, 0.05
"""The relative error of each part of a forecast. For twelve models on an H200 weights were forecast
at most 6.3 % too large, CUDA graphs 58 %, and the capacity of the cache 4 % too small."""
INSISTED_KEY = "max_model_len"


def foreseen_failure(plan: Plan, inventory: Inventory) -> Foreseen | None:
    """The failure in which a start of this plan is known to end."""
    # A word that belongs to no flag may be another value of a flag that takes several.
    if problems := command_line.argument_problems(plan.extra_args, inventory.engine, strays=False):
        return _bad_arguments(str(problems[0]))
    cards = cards_of_plan(plan, inventory)
    for problem in conflicts(plan, inventory, cards):
        lacks_cards = any(obstacles.cards(PlanOnCards(plan, inventory, cards)))
        return _bad_arguments(str(problem), hold=lacks_cards)
    return _foresee_short_cache(plan, inventory)


def _bad_arguments(text: str, *, hold: bool = False) -> Foreseen:
    failure: Failure = "gpu-absent" if hold else "bad-arguments"
    return Foreseen(Finding(failure, text, "plan"), hold)


def _foresee_short_cache(plan: Plan, inventory: Inventory) -> Foreseen | None:
    """Predict a cache that is too small by more than the forecast's error."""
    memory = forecast(plan, inventory)
    if not is_clear(memory):
        return None
    have, need = memory.kv_mib / 1024, memory.needed_mib / 1024
    short = memory.shortage or f"{have:.1f} GiB left for the cache, {need:.1f} GiB needed"
    insist = f"add {INSISTED_KEY} to [policy] pinned to try it anyway"
    text = "; ".join((f"cannot start: it does not fit: {short}", *plan.advice[:2], insist))
    longest = _with_margin(memory, candidate_of_plan(plan, inventory))
    captures = {"fits": str(longest)} if longest else {}
    failure: Failure = "kv-cache-short" if memory.kv_mib > 0 else "kv-cache-none"
    others = any(remedy.startswith(FREE_CARDS) for remedy in plan.advice)
    return Foreseen(Finding(failure, text, "plan", captures), others, INSISTED_KEY)


def _with_margin(memory: MemoryEstimate, asked: Candidate) -> int:
    """The context to lower to, in tokens: a start that compiles leaves less than the forecast."""
    if memory.gpu_memory_utilization is None or not memory.kv_mib > 0:
        return memory.max_model_len
    cache = memory.kv_mib * MIB
    return int(memory.max_model_len * max(spare_tokens(asked, cache), 0) / cache)


def is_clear(memory: MemoryEstimate) -> bool:
    """Whether a forecast says that the cache is too small even if it errs as far as it ever did."""
    if memory.fits is not False or memory.lack:
        return False
    parts = dict(memory.parts)
    margin = NEED_SHARE * memory.needed_mib
    if memory.gpu_memory_utilization is not None:  # on a card the cache has what the rest leaves
        margin += WEIGHTS_SHARE * memory.weights_mib + STEPS_SHARE * parts.get("activations", 0)
        margin += GRAPHS_SHARE * parts.get("graphs", 0)
    return memory.needed_mib - memory.kv_mib > margin
