"""Steps to a more modest plan that reduce a size: context, drafts, memory share, cache, sequences,
parallel compilers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from caovand.core.healing.failure import Finding
from caovand.core.healing.rung import RungStep
from caovand.core.plan import Plan
from caovand.engines.vllm.flags.spelling import count
from caovand.engines.vllm.memory.settings import DEPTHS
from caovand.engines.vllm.planning import drafters
from caovand.engines.vllm.planning.draft_schedule import with_depth
from caovand.engines.vllm.planning.environment import THREADS

BLOCK = 16  # tokens: context lengths are multiples of it
MIN_CONTEXT, MIN_FITTING = 2048, 512  # by guess, and if vLLM names the size that fits
MIN_BATCH = 2048  # tokens; a hybrid model's attention block has up to 1,600
GMU_STEP = 0.03
GMU_DOWNS = 3  # steps, after which the cause is something else
GMU_DEFAULT = 0.9  # vLLM's default, if the plan has none
GMU_BOUNDS = (0.3, 0.97)
SHARE_MARGIN_GIB = 0.5
CACHE_MARGIN = 0.98
OFFLOAD_GIB = (2, 4, 8)
GRAPH_SIZES = (64, 16, 4)
# Process names in the kernel's log of killed processes.
COMPILERS = frozenset({"cc1plus", "cicc", "ptxas", "nvcc", "cudafe++", "fatbinary", "nvlink"})
COMPILING = frozenset({"drafter", "compile", "profile", "capture", "warmup"})
"""The phases of a start in which torch.compile may run."""
LIMIT_KEYS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens")


def _number(finding: Finding, name: str) -> float | None:
    try:
        number = float(finding.captures[name])
    except (KeyError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _has_taken(plan: Plan, *names: str) -> bool:
    return any(taken.rung in names for taken in plan.taken)


def context(plan: Plan, finding: Finding) -> RungStep | None:
    """Reduce to the length named by the error; a second time by at least an eighth, so that the
    rung runs out of steps.
    """
    now = count(plan.value("max_model_len")) or int(_number(finding, "len") or 0)
    fits = _number(finding, "fits")
    goal = int(fits) if fits else min(now // 2, _share_of_cache(finding, now))
    if _has_taken(plan, "context"):
        goal = min(goal, now * 7 // 8)
    goal = goal // BLOCK * BLOCK
    # A context too short for a conversation is not a remedy, unless the operator asked for a short
    # one.
    least = MIN_FITTING if fits else MIN_CONTEXT
    floor = least if now >= least or not fits else BLOCK
    if not floor <= goal < now:
        return None
    return RungStep({"max_model_len": goal}, value=str(goal), change=f"context {now} -> {goal}")


def _share_of_cache(finding: Finding, length: int) -> int:
    """The context whose cache fits by the error's numbers, a little less for what does not shrink
    with it; `length` without numbers.
    """
    need, have = _number(finding, "need"), _number(finding, "have")
    return int(length * CACHE_MARGIN * have / need) if need and have and have < need else length


def _gmu(plan: Plan) -> float:
    value = plan.value("gpu_memory_utilization")
    return GMU_DEFAULT if value is None else float(value)


def on_cpu(plan: Plan) -> bool:
    return plan.device == "cpu"


def _to_gmu(plan: Plan, goal: float) -> RungStep | None:
    now, goal = _gmu(plan), round(goal, 3)
    if on_cpu(plan) or not GMU_BOUNDS[0] <= goal <= GMU_BOUNDS[1] or goal == now:
        return None
    change = f"GPU memory share {now:g} -> {goal:g}"
    changed: dict[str, Any] = {"gpu_memory_utilization": goal}
    if plan.value("kv_cache_memory_bytes") is not None:  # the share then has no effect
        changed["kv_cache_memory_bytes"] = None
        change += ", and vLLM sizes the KV cache"
    return RungStep(changed, value=f"{goal:g}", change=change)


def gmu_up(plan: Plan, finding: Finding) -> RungStep | None:
    """Raise the share; never after lowering it: the higher share was already too much."""
    goal = min(_gmu(plan) + GMU_STEP, GMU_BOUNDS[1])
    if _has_taken(plan, "gmu-down", "share"):
        return None
    return _to_gmu(plan, goal) if goal > _gmu(plan) else None


def gmu_down(plan: Plan, finding: Finding) -> RungStep | None:
    spent = sum(taken.rung == "gmu-down" for taken in plan.taken) >= GMU_DOWNS
    if spent or finding.beyond_card:
        return None
    # At the same share vLLM makes a smaller cache than one whose size was set.
    sized = plan.value("kv_cache_memory_bytes") is not None
    return _to_gmu(plan, _gmu(plan) - (GMU_STEP / 3 if sized else GMU_STEP))


def share(plan: Plan, finding: Finding) -> RungStep | None:
    """Reduce to the memory that others leave free, by vLLM's count."""
    free, total = _number(finding, "free"), _number(finding, "total")
    if not free or not total:
        return None
    goal = int((free - SHARE_MARGIN_GIB) / total * 1000) / 1000
    return _to_gmu(plan, goal) if goal < _gmu(plan) else None


def larger_kv_memory(plan: Plan, finding: Finding) -> RungStep | None:
    """On the CPU build: raise to the KV cache's full need, if that is at most four times as
    much."""
    now, need = plan.value("kv_cache_memory_bytes"), _number(finding, "need")
    if not on_cpu(plan) or not isinstance(now, int) or not need:
        return None
    if _has_taken(plan, "kv-memory-less"):
        return None
    goal = int(need * 1.1 * 2**30) // 2**20 * 2**20
    if not now < goal <= 4 * now:
        return None
    change = f"KV memory {now >> 20} -> {goal >> 20} MiB"
    return RungStep({"kv_cache_memory_bytes": goal}, value=f"{goal >> 20}", change=change)


def smaller_kv_memory(plan: Plan, finding: Finding) -> RungStep | None:
    now, free = plan.value("kv_cache_memory_bytes"), _number(finding, "free")
    if not on_cpu(plan) or not isinstance(now, int):
        return None
    goal = now // 2 if not free else min(now // 2, int(free * 0.8 * 2**30))
    goal = goal // 2**20 * 2**20
    if goal < 2**24:
        return None
    change = f"KV memory {now >> 20} -> {goal >> 20} MiB"
    return RungStep({"kv_cache_memory_bytes": goal}, value=f"{goal >> 20}", change=change)


def _halve(plan: Plan, name: str, unset: int, least: int, label: str) -> RungStep | None:
    """Half of a setting; `unset` is the starting value for a plan without one."""
    now = count(plan.value(name))
    goal = unset if now is None else max(now // 2, least)
    if now is not None and goal >= now:
        return None
    shown = "vLLM's default" if now is None else now
    return RungStep({name: goal}, value=str(goal), change=f"{label} {shown} -> {goal}")


def batch(plan: Plan, finding: Finding) -> RungStep | None:
    return _halve(plan, "max_num_batched_tokens", MIN_BATCH, MIN_BATCH, "batch tokens")


def sequences(plan: Plan, finding: Finding) -> RungStep | None:
    """Lower max_num_seqs to the number that vLLM names, else halve it."""
    most, now = _number(finding, "most"), count(plan.value("max_num_seqs"))
    if most and most >= 1 and (now is None or most < now):
        shown = "vLLM's default" if now is None else now
        goal = int(most)
        return RungStep(
            {"max_num_seqs": goal}, value=str(goal), change=f"sequences {shown} -> {goal}"
        )
    return _halve(plan, "max_num_seqs", 32, 1, "sequences")


def limit(plan: Plan, finding: Finding) -> RungStep | None:
    """Lower an argument to the maximum that vLLM allows, if its message names both."""
    name, most = finding.captures.get("argument", "").replace("-", "_"), _number(finding, "most")
    now = count(plan.value(name)) if name in LIMIT_KEYS else None
    if name not in LIMIT_KEYS or not most or most < 1 or (now is not None and now <= most):
        return None
    goal = int(most)
    shown = "vLLM's default" if now is None else now
    return RungStep({name: goal}, value=f"{name} {goal}", change=f"{name} {shown} -> {goal}")


def _depth(plan: Plan) -> int:
    """The planned draft depth, or the one that verbatim flags set, which are then reported as the
    obstacle."""
    return plan.mtp or count(plan.value("spec_tokens")) or 0


def _to_mtp(plan: Plan, depth: int) -> RungStep | None:
    now = _depth(plan)
    if not 0 <= depth < now:
        return None
    config = plan.value("speculative_config")
    config = config if isinstance(config, Mapping) else {}
    config = with_depth(config, depth) if depth else None
    shown = str(depth) if depth else "off"
    return RungStep({"speculative_config": config}, value=shown, change=f"MTP {now} -> {shown}")


def mtp_less(plan: Plan, finding: Finding) -> RungStep | None:
    """Draft one token fewer; nothing instead if a separate model makes all drafts in one pass, as
    fewer would save neither its weights nor its cache."""
    config = plan.value("speculative_config")
    at_once = isinstance(config, Mapping) and config.get("method") == drafters.METHOD
    return _to_mtp(plan, 0 if at_once else _depth(plan) - 1)


def mtp_even(plan: Plan, finding: Finding) -> RungStep | None:
    """Draft as many tokens in steps of many requests as in those of one."""
    config = plan.value("speculative_config")
    if not isinstance(config, Mapping) or not config.get(DEPTHS):
        return None
    even = {name: value for name, value in config.items() if name != DEPTHS}
    return RungStep(
        {"speculative_config": even}, change=f"MTP {plan.mtp} at any number of requests"
    )


def mtp_safe(plan: Plan, finding: Finding) -> RungStep | None:
    return _to_mtp(plan, 3)


def mtp_off(plan: Plan, finding: Finding) -> RungStep | None:
    return _to_mtp(plan, 0)


def compilation(plan: Plan) -> Mapping[str, Any]:
    value = plan.value("compilation_config")
    return value if isinstance(value, Mapping) else {}


def has_graphs(plan: Plan) -> bool:
    return not on_cpu(plan) and not plan.value("enforce_eager")


def fewer_graphs(plan: Plan, finding: Finding) -> RungStep | None:
    config = compilation(plan)
    size = "max_cudagraph_capture_size"
    now = count(config.get(size)) or count(plan.value(size))
    smaller = [size for size in GRAPH_SIZES if now is None or size < now]
    if not has_graphs(plan) or not smaller or "cudagraph_capture_sizes" in config:
        return None
    goal = smaller[0]
    changed = {**config, "max_cudagraph_capture_size": goal}
    shown = "vLLM's default" if now is None else now
    return RungStep(
        {"compilation_config": changed}, value=str(goal), change=f"largest graph {shown} -> {goal}"
    )


def _is_of_a_build(finding: Finding) -> bool:
    """Whether a compiler was killed, according to its driver, ninja or the kernel."""
    captures = finding.captures
    return "compiler" in captures or "object" in captures or captures.get("name") in COMPILERS


def fewer_jobs(plan: Plan, finding: Finding) -> RungStep | None:
    """Halve the number of parallel compilers; finished parts of a killed build stay, so each try is
    shorter.

    FlashInfer, torch's extensions and vLLM obey MAX_JOBS; nvcc uses one thread a job.
    """
    set_to = str(plan.env["MAX_JOBS"].value) if "MAX_JOBS" in plan.env else ""
    now = int(set_to) if re.fullmatch("[0-9]{1,6}", set_to) else 0
    if not _is_of_a_build(finding) or now < 2:
        return None
    goal = str(now // 2)
    return RungStep(env={"MAX_JOBS": goal}, value=goal, change=f"compiler jobs {now} -> {goal}")


def one_thread(plan: Plan, finding: Finding) -> RungStep | None:
    """Use one thread for torch.compile: the fault may be in its pool, or in the memory that the
    pool takes."""
    now = str(plan.env[THREADS].value) if THREADS in plan.env else "1"
    if now == "1" or finding.phase not in COMPILING:
        return None
    return RungStep(env={THREADS: "1"}, value="1", change=f"threads of torch.compile {now} -> 1")


def offload(plan: Plan, finding: Finding) -> RungStep | None:
    now = plan.value("cpu_offload_gb") or 0
    more = [size for size in OFFLOAD_GIB if size > now]
    if on_cpu(plan) or not more:
        return None
    change = f"weights kept in host memory {now} -> {more[0]} GiB a card"
    return RungStep({"cpu_offload_gb": more[0]}, value=str(more[0]), change=change)
