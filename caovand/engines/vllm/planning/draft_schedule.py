"""Drafts by batch size: fewer where many requests share a step, and what vLLM refuses there.

A step of few requests waits for the weights, so drafts are nearly free. With many it computes, and
a rejected draft costs all of them time. vLLM takes a schedule of [first, last, drafts], with the
number of requests in a step from `first` to `last`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from caovand.core.problem import Problem
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import count
from caovand.engines.vllm.machine.capabilities import BLACKWELL, HOPPER
from caovand.engines.vllm.machine.link_time import nodes_of
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.estimate import lacks_states, room_for_context
from caovand.engines.vllm.memory.kv_cache import layout_for
from caovand.engines.vllm.memory.settings import DEPTHS
from caovand.engines.vllm.memory.steps import graph_mode
from caovand.engines.vllm.planning.partial_plan import PartialPlan, PlanOnCards
from caovand.engines.vllm.sizing.pace import CandidatePace
from caovand.engines.vllm.sizing.space import WORKLOADS

ADAPTIVE = "enable_adaptive_verification"
FEWER = (1, 0)
"""The depths of larger steps: of others the drafting layers' graphs would be captured, too."""


def by_batch_size(sized: PartialPlan) -> PartialPlan:
    """The sized plan, with fewer drafts from the number of requests on at which they answer faster,
    by the modelled time; unchanged if there is none, or if the graphs would cost context."""
    setting, choice = sized.settings.get("speculative_config"), sized.choice
    if not setting or not setting.value or not choice or not _may_vary(sized):
        return sized
    candidate = choice.candidate
    rows = _schedule(sized, candidate)
    if len(rows) < 2:
        return sized
    varied = candidate.but(narrower=tuple(sorted(depth for _, _, depth in rows[1:])))
    if not _fits(sized, varied):
        return sized
    steps = ", ".join(f"{depth or 'none'} from {first} on" for first, _, depth in rows[1:])
    config = {**setting.value, DEPTHS: rows}
    reason = f"{setting.reason}; with more requests in a step fewer are faster (modelled): {steps}"
    changed = replace(setting, value=config, reason=reason)
    return replace(
        sized,
        settings={**sized.settings, "speculative_config": changed},
        choice=replace(choice, candidate=varied),
    )


def _may_vary(sized: PartialPlan) -> bool:
    """Whether vLLM obeys a schedule in this plan, and nobody chose the depth."""
    typed = (
        sized.config.policy.mtp is not None
        or bool((sized.auto_spec or "").strip())
        or "speculative_config" in sized.verbatim
    )
    obeyed = sized.cuda and sized.engine.release >= releases.DRAFTS_BY_BATCH
    one = sized.stages == 1 and sized.count("data_parallel_size") == 1
    # The older model runner gives up full graphs for a schedule.
    older = dict(sized.config.engine.env).get("VLLM_USE_V2_MODEL_RUNNER") == "0"
    return (
        obeyed
        and one
        and not older
        and not typed
        and sized.mode != "stable"
        and not sized.why_unmodelled
    )


def _schedule(sized: PartialPlan, candidate: Candidate) -> list[list[int]]:
    """Rows of [first, last, drafts] up to the candidate's sequences, the planned depth first; none
    if fewer drafts would be faster even for one request."""
    workload, nodes = WORKLOADS[sized.config.policy.workload], nodes_of(sized.inventory)
    depths = tuple(_depths(candidate.mtp, halved=sized.model.drafter is not None))
    candidates = {depth: candidate.but(mtp=depth) for depth in depths}
    paces = {
        depth: CandidatePace(sized.model, each, sized.cards, workload, nodes)
        for depth, each in candidates.items()
    }

    layers = len(sized.model.layer_types)
    # Without drafts, too, vLLM runs the drafting layer once a step, which fills its cache.
    still = layers / (layers + 1)

    def fastest(requests: int) -> int:
        def tokens_s(depth: int) -> float:
            return paces[depth].answering(candidates[depth], requests) * (1 if depth else still)

        return max(depths, key=tokens_s)

    if fastest(1) != candidate.mtp:  # a mode drafts more than the model of time would
        return []
    rows, begun = [], 1
    for depth, fewer in zip(depths, (*depths[1:], -1), strict=True):
        later = range(begun, candidate.sequences + 1)
        end = begun + bisect_left([fastest(n) <= fewer for n in later], True)
        if end > begun:
            rows.append([begun, end - 1, depth])
            begun = end
    return rows


def _depths(most: int, *, halved: bool) -> Iterator[int]:
    """The depths to choose from, the deepest first: a drafter makes any number in one pass."""
    yield most
    while halved and most > 3:
        most //= 2
        yield most
    yield from (depth for depth in FEWER if depth < most)


def _fits(sized: PartialPlan, candidate: Candidate) -> bool:
    """Whether the context still fits next to the graphs of every depth."""
    model, gpus = sized.model, sized.cards
    needed = layout_for(model, candidate).needed(candidate.context)
    return needed <= room_for_context(model, candidate, gpus) and not lacks_states(
        model, candidate, gpus
    )


def with_depth(config: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """--speculative-config with at most `depth` drafts, at any number of requests."""
    changed = {**config, "num_speculative_tokens": depth}
    rows = changed.pop(DEPTHS, None)
    if isinstance(rows, list):
        rows = [[first, last, min(drafts, depth)] for first, last, drafts in rows]
        if any(drafts < depth for _, _, drafts in rows):
            changed[DEPTHS] = rows
    return changed


def depths(placed: PlanOnCards) -> Iterator[Problem]:
    """Errors in --speculative-config about how many drafts are made or verified, and when."""
    config, release = placed.plan.value("speculative_config"), placed.inventory.engine.release
    if not isinstance(config, Mapping):
        return
    for name in (DEPTHS, ADAPTIVE):
        if config.get(name) and release < releases.DRAFTS_BY_BATCH:
            version = placed.inventory.engine.version
            newer = releases.name(releases.DRAFTS_BY_BATCH)
            yield Problem(
                f"use {name}", f"vLLM {version} does not support it", f"use vLLM {newer} or newer"
            )
            return
    if config.get(DEPTHS) and (fact := _schedule_error(config[DEPTHS])):
        yield Problem(
            f"draft by {DEPTHS}",
            fact,
            "list [first, last, drafts] by batch size: [[1, 4, 3]]",
        )
    if config.get(ADAPTIVE) and (fact := _adaptive_error(placed)):
        yield Problem(f"use {ADAPTIVE}", fact, "remove it from --speculative-config")


def _schedule_error(schedule: Any) -> str:
    """Why vLLM refuses these numbers of drafts by batch size; empty if it accepts them."""
    rows = schedule if isinstance(schedule, list) else [None]
    if not all(isinstance(row, list) and len(row) == 3 and _whole(row) for row in rows):
        return "it is not a list of [first, last, drafts] in whole numbers"
    ordered = sorted(rows)
    if ordered[0][0] != 1:
        return "its first batch size is not 1"
    ends = (0, *(row[1] for row in ordered))
    if any(not end < row[0] <= row[1] for end, row in zip(ends, ordered, strict=False)):
        return "its ranges overlap, or end before they begin"
    return ""


def _whole(row: list[Any]) -> bool:
    return all(type(number) is int and number >= 0 for number in row)


def _adaptive_error(placed: PlanOnCards) -> str:
    """Why vLLM cannot choose how many drafts it verifies; empty if it can.

    In 0.33 its configuration refuses this, and the attention backends do: see
    `supports_device_cpu_query_lens_mismatch` and `get_varlen_cudagraph_max_query_len`.
    """
    plan = placed.plan
    if (count(plan.value("pipeline_parallel_size")) or 1) > 1:
        return "vLLM has no adaptive verification over pipeline stages"
    if plan.value("enable_lora"):
        return "vLLM has no adaptive verification with LoRA"
    if placed.model.linear:
        return "the states of Gated DeltaNet are planned with all drafts, before some are left out"
    if plan.value("attention_backend") == "FLASHINFER" and placed.first(BLACKWELL):
        return "FlashInfer's attention obeys it on SM100 alone"
    if plan.value("attention_backend") in (None, "FLASH_ATTN") and placed.first(HOPPER):
        return "graphs of FlashAttention 2 replay no steps with different numbers of drafts"
    config = plan.value("compilation_config")
    mode = graph_mode(config if isinstance(config, Mapping) else {})
    if plan.value("enforce_eager") or mode in ("NONE", "PIECEWISE"):
        return "adaptive verification needs whole steps in CUDA graphs"
    return ""
