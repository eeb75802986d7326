"""Changes that would make a plan fit, cheapest first.

Each is the request with one constraint lifted: sized, and planned only if that fits. Most of its
spaces are those of the plan itself, whose choices `sizing.choice` keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil

from caovand.core.plan import Plan
from caovand.core.units import GIB
from caovand.engines.common.tensors import breaks_in_8_bits
from caovand.engines.vllm.flags.spelling import beyond_limit, option, whole_number
from caovand.engines.vllm.machine.ranks import shape_problem
from caovand.engines.vllm.memory.candidate import visible_mib
from caovand.engines.vllm.memory.estimate import lacking_gib
from caovand.engines.vllm.memory.settings import candidate_of_plan
from caovand.engines.vllm.memory.shards import pinned_gib
from caovand.engines.vllm.planning.decisions import EASING, HINDERING
from caovand.engines.vllm.planning.devices import (
    FREE_CARDS,
    all_without_other_processes,
    memory_holders,
)
from caovand.engines.vllm.planning.partial_plan import PartialPlan
from caovand.engines.vllm.planning.planned_request import PlannedRequest
from caovand.engines.vllm.planning.smaller_checkpoints import smaller_checkpoints
from caovand.engines.vllm.sizing.choice import CONTEXT_STEP, OFFLOAD_MARGIN_GIB, longest_to_the_brim
from caovand.engines.vllm.sizing.offloading import step_cost

MAX_CARDS = 64


def advise(case: PlannedRequest) -> tuple[str, ...]:
    """Return every remedy, or how much is missing if there is none."""
    advice = [sentence for remedy in REMEDIES for sentence in remedy(case)]
    return tuple(advice or _together(case) or _too_large(case))


def in_fewer_bits(case: PlannedRequest) -> str:
    """Advise checkpoints that fit without offloading; "" if there is none."""
    checkpoints = " or ".join(smaller_checkpoints(case))
    return checkpoints and f"use {checkpoints}"


def settings_to_lift(case: PlannedRequest) -> str:
    """The operator's settings without which nothing would be offloaded; "" if there is none."""
    asked = [name for name in (*EASING, *HINDERING) if _is_asked_for(case, name)]
    for names in (*((name,) for name in asked), asked):
        lifted = case.attempt(dict.fromkeys(names)) if names else None
        if lifted and lifted[1].fits and lifted[0].value("cpu_offload_gb") is None:
            planned = lifted[0].value(names[0]) if len(names) == 1 else None
            then = "" if planned is None else f": it plans {planned}"
            return f"leave {', '.join(names)} to the policy and none stay there{then}"
    return ""


def _free(case: PlannedRequest) -> Iterator[str]:
    free, others = all_without_other_processes(case.inventory), case.inventory.others
    if free != case.inventory and case.attempt({}, free):
        yield f"{FREE_CARDS}: {memory_holders(case.gpus, others, case.plan.values)}"


def _sequences(case: PlannedRequest) -> Iterator[str]:
    now = candidate_of_plan(case.plan, case.inventory).sequences
    if now > 1 and case.attempt({"max_num_seqs": 1}):
        yield f"{case.as_typed('max_num_seqs', 1)} instead of {now} leaves room for the context"


def _cache_type(case: PlannedRequest) -> Iterator[str]:
    now = case.plan.value("kv_cache_dtype")
    if breaks_in_8_bits(case.inventory.model):
        return
    smaller = (
        case.attempt({"kv_cache_dtype": "fp8"}) if now in (None, "auto") and case.gpus else None
    )
    if smaller and smaller[1].fits:
        as_typed = case.as_typed("kv_cache_dtype", "fp8")
        yield f"{as_typed} holds a context of {smaller[0].value('max_model_len')} tokens"


def _share(case: PlannedRequest) -> Iterator[str]:
    """Advise the smallest utilization that holds it, or the one that the policy would choose."""
    name, asked = "gpu_memory_utilization", case.plan.value("gpu_memory_utilization")
    if not case.gpus or not isinstance(asked, (int, float)):
        return
    lacking = lacking_gib(
        case.inventory.model, candidate_of_plan(case.plan, case.inventory), case.gpus
    )
    least = asked + lacking * 1024 / visible_mib(min(gpu.total_mib for gpu in case.gpus))
    free = case.attempt({name: None})
    for share in (ceil(least * 100) / 100, free[0].value(name) if free else None):
        if share and share != asked and share < 1 and case.attempt({name: share}):
            yield f"{case.as_typed(name, share)} holds it at no cost"
            return


def _graphs(case: PlannedRequest) -> Iterator[str]:
    if case.config.policy.cuda_graphs in (None, "none") or case.plan.value("enforce_eager"):
        return
    if case.attempt({"cuda_graphs": "none"}):
        yield (
            f"{case.as_typed('cuda_graphs', 'none')} leaves room for the context, but decodes "
            "more slowly"
        )


def _context(case: PlannedRequest) -> Iterator[str]:
    """Advise the longest context that fits as is, else the longest possible and what it changes."""
    asked, name = whole_number(case.plan.value("max_model_len")), "max_model_len"
    if not asked or not _is_asked_for(case, name):
        return
    model, plan = case.inventory.model, case.plan
    if beyond_limit(model, asked, plan.values, plan.variables):
        asked = model.max_model_len + 1
    most = (asked - 1) // CONTEXT_STEP
    as_is = min(case.memory.max_model_len // CONTEXT_STEP, most)
    if as_is and not plan.taken and _keeps_settings(case, as_is):
        # AutoMem leaves less free for a shorter context.
        if not _is_asked_for(case, "gpu_memory_utilization"):
            as_is = _longest(partial(_keeps_settings, case), as_is, most, guess=as_is + 1)
        if case.attempt({name: as_is * CONTEXT_STEP}):
            yield f"{case.as_typed(name, as_is * CONTEXT_STEP)} fits with everything else unchanged"
        return
    space, cards = case.chosen.space, case.chosen.cards
    guess = longest_to_the_brim(space, model, cards) // CONTEXT_STEP if space else 0
    longest = _longest(lambda steps: case.size({name: steps * CONTEXT_STEP}), 0, most, guess=guess)
    longer = case.attempt({name: longest * CONTEXT_STEP}) if longest else None
    if longer:
        others = ", ".join(_differing(case.plan, longer[0]))
        yield f"{case.as_typed(name, longest * CONTEXT_STEP)} fits if these change: {others}"


def _keeps_settings(case: PlannedRequest, steps: int) -> bool:
    """Whether a context of `steps` steps fits with everything else unchanged."""
    sized = case.size({"max_model_len": steps * CONTEXT_STEP})
    return sized is not None and not _differing(case.chosen, case.request.decide(sized))


def _longest(holds: Callable[[int], object], low: int, high: int, *, guess: int) -> int:
    """The longest context that holds, in steps: at least `low`, which holds, or 0 for none.

    A shorter one never needs more, but the smallest are not worth a start. From a guess that holds,
    the search continues in growing strides.
    """
    guess, stride = min(guess, high), high
    if low < guess:
        low, high, stride = (guess, high, 1) if holds(guess) else (low, guess - 1, stride)
    while low < high:
        middle = min(low + stride, (low + high + 1) // 2)
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
        stride *= 2
    return low


DEPENDENT_SETTINGS = {"max_model_len", "gpu_memory_utilization", "kv_cache_memory_bytes"}


def _differing(plan: Plan | PartialPlan, other: Plan | PartialPlan) -> list[str]:
    """The settings that differ in another plan, except the context and its consequences."""
    names = {*plan.settings, *other.settings} - DEPENDENT_SETTINGS
    return sorted(name for name in names if plan.value(name) != other.value(name))


def _flags(case: PlannedRequest) -> Iterator[str]:
    """Advise removing a verbatim flag that is in the way."""
    remedied = {"max_num_seqs", "max_model_len", "gpu_memory_utilization"}
    for name in (*EASING, *HINDERING):
        if name not in case.plan.verbatim or name in remedied:
            continue
        without = case.attempt({name: None})
        if without:
            planned = without[0].value(name)
            then = "" if planned is None else f": caovan plans {planned}"
            yield f"remove {option(name)}{then}"


def _cards(case: PlannedRequest) -> Iterator[str]:
    """Advise more cards like the first; the split has to divide the model's heads."""
    if not case.gpus or case.memory.conflicts or case.inventory.others:
        return
    card = replace(case.gpus[0], free_mib=max(gpu.free_mib for gpu in case.gpus))
    engine = replace(case.config.engine, gpus=None)
    request = replace(case.request, config=replace(case.config, engine=engine))
    for count in range(len(case.gpus) + 1, MAX_CARDS + 1):
        if shape_problem(case.inventory.model, count):
            continue
        more = replace(case.inventory, gpus=tuple(replace(card, index=n) for n in range(count)))
        wider = replace(case, request=request).attempt({"tensor_parallel_size": count}, more)
        if wider and wider[0].value("cpu_offload_gb") is None:
            yield (
                f"{count} such cards would hold it: {case.as_typed('tensor_parallel_size', count)}"
            )
            return


def _offload(case: PlannedRequest) -> Iterator[str]:
    if case.memory.conflicts or not case.gpus or case.plan.value("cpu_offload_gb"):
        return
    candidate = candidate_of_plan(case.plan, case.inventory)
    lacking = ceil(lacking_gib(case.inventory.model, candidate, case.gpus) + OFFLOAD_MARGIN_GIB)
    pinned = pinned_gib(1, case.inventory.model, len(case.gpus))
    room = case.inventory.least_ram_mib * 0.8 / 1024 / pinned
    for amount in range(lacking, min(lacking + 3, int(room) + 1)):
        if case.attempt({"cpu_offload_gb": amount}):
            cost = step_cost(amount, case.inventory.model, case.gpus, 1 + case.plan.mtp)
            yield f"{case.as_typed('cpu_offload_gb', amount)} keeps weights in host memory: {cost}"
            return


def _together(case: PlannedRequest) -> list[str]:
    """If no single change helps: leave everything the operator decided to the policy."""
    ours = [name for name in EASING if _is_asked_for(case, name)]
    names = [*ours, *(name for name in HINDERING if name in case.plan.verbatim)]
    lifted = case.attempt(dict.fromkeys(names)) if names else None
    if not lifted:
        return []
    context = lifted[0].value("max_model_len")
    holds = f": a context of {context} tokens fits" if context else ""
    return [f"leave {', '.join(names)} to the policy{holds}"]


def _is_asked_for(case: PlannedRequest, name: str) -> bool:
    keys = (case.config.model, case.config.policy)
    return name in case.plan.verbatim or any(getattr(key, name, None) is not None for key in keys)


def _too_large(case: PlannedRequest) -> Iterator[str]:
    """Advise a smaller model, unless it is a conflict that keeps this one from running."""
    cards, ram = sum(gpu.total_mib for gpu in case.gpus) / 1024, case.inventory.host.ram_mib / 1024
    room = f"the cards {cards:.1f}" if cards else f"RAM {ram:.1f}"
    size = case.inventory.model.size() / GIB
    if not case.memory.conflicts or size > (cards or ram):
        yield f"a smaller model: this one has {size:.1f} GiB of weights, {room} GiB"


REMEDIES: tuple[Callable[[PlannedRequest], Iterator[str]], ...] = (
    _free, _share, _sequences, _cache_type, _graphs, _context, _flags, _cards,
    smaller_checkpoints, _offload,
)  # fmt: skip
