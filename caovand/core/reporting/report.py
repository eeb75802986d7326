"""A plan with its forecast as plain values, for `caovanctl plan --json` and status documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caovand.core.facts.forecast import MemoryEstimate, RankForecast
from caovand.core.plan import Plan
from caovand.core.secrets import shown_value


def describe(
    plan: Plan, argv: Sequence[str], env: Mapping[str, str], memory: MemoryEstimate | None
) -> dict[str, Any]:
    """Settings with origin and reason, the command line, the forecast, the warnings."""
    return {
        "model": plan.model,
        "task": plan.task,
        "settings": {
            name: {"value": s.value, "origin": s.origin, "reason": s.reason}
            for name, s in plan.settings.items()
        },
        "argv": list(argv),
        "env": {name: shown_value(name, value) for name, value in env.items()},
        "memory": None if memory is None else values(memory),
        "rungs": list(plan.rungs),
        "warnings": list(plan.warnings),
        "identity": plan.identity,
    }


def values(memory: MemoryEstimate) -> dict[str, Any]:
    """The forecast as plain values; null without a forecast."""
    values = _values(memory)
    if not memory.parts:
        known = ("gpu_memory_utilization", "reserve_mib", "advice", "reason")
        return {name: value if name in known else None for name, value in values.items()}
    return values


def _values(memory: MemoryEstimate) -> dict[str, Any]:
    return {
        "fits": memory.fits,
        "gpu_memory_utilization": memory.gpu_memory_utilization,
        "weights_gib": round(memory.weights_mib / 1024, 3),
        "kv_gib": round(memory.kv_mib / 1024, 3),
        "kv_needed_gib": round(memory.needed_mib / 1024, 3),
        "kv_tokens": memory.kv_tokens,
        "max_model_len": memory.max_model_len,
        "concurrency": round(memory.concurrency, 2),
        "reserve_mib": round(memory.reserve_mib),
        "parts_mib": {name: round(size) for name, size in memory.parts},
        "host_parts_mib": {name: round(size) for name, size in memory.host_parts},
        "ranks": [_rank(rank) for rank in memory.ranks],
        "advice": list(memory.advice),
        "reason": "; ".join(map(str, memory.conflicts)) or memory.reason,
    }


def _rank(rank: RankForecast) -> dict[str, Any]:
    parts = dict(rank.parts)
    return {
        "stage": rank.stage,
        "node": rank.node,
        "gpus": list(rank.cards),
        "layers": list(rank.layers),
        "weights_gib": round(parts["weights"] / 1024, 3),
        "kv_gib": round(parts["kv"] / 1024, 3),
        "parts_mib": {name: round(size) for name, size in rank.parts},
        "fullest": rank.fullest,
    }


def forecast_figures(memory: MemoryEstimate | None) -> dict[str, float]:
    """The values that the forecast expects the engine to report, by name.

    Pipeline stages differ, so each has its own values, such as `stage_0_weights_gib`.
    """
    if memory is None or memory.fits is None:
        return {}
    forecast = values(memory)
    figures: dict[str, float] = {"kv_tokens": forecast["kv_tokens"]}
    for name in ("weights_gib", "kv_gib"):
        if memory.ranks:
            figures |= {f"stage_{rank['stage']}_{name}": rank[name] for rank in forecast["ranks"]}
        else:
            figures[name] = forecast[name]
    return figures


def compare(
    forecast: Mapping[str, float], reported: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Forecast value, reported value and relative error, by name."""
    pairs = ((name, value, reported.get(name)) for name, value in forecast.items())
    return {
        name: {"forecast": value, "reported": actual, "off": round(value / actual - 1, 3)}
        for name, value, actual in pairs
        if isinstance(actual, (int, float)) and actual
    }
