"""Errors in --speculative-config about how many drafts are made or verified, and when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from caovand.core.problem import Problem
from caovand.engines.vllm import releases
from caovand.engines.vllm.flags.spelling import count
from caovand.engines.vllm.planning.obstacles import PlanOnCards

DEPTHS, ADAPTIVE = "num_speculative_tokens_per_batch_size", "enable_adaptive_verification"


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
    if config.get(DEPTHS) and (fact := _unordered(config[DEPTHS])):
        yield Problem(
            f"draft by {DEPTHS}",
            fact,
            "list [first, last, drafts] by batch size: [[1, 4, 3]]",
        )
    if config.get(ADAPTIVE) and (fact := _unadaptive(placed)):
        yield Problem(f"use {ADAPTIVE}", fact, "remove it from --speculative-config")


def _unordered(schedule: Any) -> str:
    """What vLLM refuses in numbers of drafts by batch size; empty if nothing."""
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


def _unadaptive(placed: PlanOnCards) -> str:
    """Why vLLM cannot choose how many drafts it verifies; empty if it can."""
    if (count(placed.plan.value("pipeline_parallel_size")) or 1) > 1:
        return "vLLM has no adaptive verification over pipeline stages"
    if placed.plan.value("enable_lora"):
        return "vLLM has no adaptive verification with LoRA"
    if placed.plan.value("enforce_eager"):
        return "adaptive verification needs whole steps in CUDA graphs"
    return ""
