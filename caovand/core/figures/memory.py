"""Memory use on a slot's cards: the engine's, by part, and other processes'."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.health.observation import GpuSample

REPORTED = {"weights": "weights_gib", "kv": "kv_gib", "graphs": "graph_gib"}
"""Parts whose size an engine reports, with the metric's name."""


def by_card(
    samples: Iterable[GpuSample],
    ours: Collection[int],
    forecast: MemoryEstimate | None,
    reported: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """One entry per card: memory of `ours`, by part, and of others, in MiB.

    `engine` and `others` are None if the driver does not separate processes. `engine_pids` are the
    pids of `ours` on the card.
    """
    cards = []
    for sample in samples:
        parts = dict(_parts(*_of_card(forecast, sample.index, reported)))
        users = dict(sample.users)
        our_pids = sorted(users.keys() & ours)
        known = bool(our_pids)
        engine = sum(users[pid] for pid in our_pids) if known else None
        cards.append(
            {
                "gpu": sample.index,
                "total_mib": sample.total_mib,
                "used_mib": sample.used_mib,
                "engine_mib": engine,
                "engine_pids": our_pids,
                "others_mib": None if engine is None else max(sample.used_mib - engine, 0),
                "parts": parts if known else {},
            }
        )
    return cards


def cards_with_foreign_pids(memory: Iterable[Mapping[str, Any]], *, serves: bool) -> set[int]:
    """Cards whose driver reports pids of another namespace, according to `by_card`.

    In a container the driver reports the host's pids: none of them is a serving engine's, and in
    this namespace they may belong to other processes.
    """
    return {card["gpu"] for card in memory if serves and card["engine_mib"] is None}


def _of_card(
    forecast: MemoryEstimate | None, card: int, reported: Mapping[str, Any]
) -> tuple[dict[str, float], dict[str, Any]]:
    """The forecast and reported sizes for one of our cards, which may hold one pipeline stage."""
    if forecast is None:
        return {}, dict(reported)
    if not forecast.ranks:
        return dict(forecast.parts), dict(reported)
    here = forecast.ranks[0].node  # ranks of other nodes come later
    for rank in forecast.ranks:
        if rank.node == here and card in rank.cards:
            of_stage = {
                name: reported.get(f"stage_{rank.stage}_{name}") for name in REPORTED.values()
            }
            return dict(rank.parts), of_stage
    return dict(forecast.parts), {}


def _parts(
    foreseen: Mapping[str, float], reported: Mapping[str, Any]
) -> Iterable[tuple[str, dict[str, Any]]]:
    """Each part's size and its source: the engine's report, else the forecast."""
    for name in (*foreseen, *(name for name in REPORTED if name not in foreseen)):
        size = reported.get(REPORTED.get(name, ""))
        if isinstance(size, (int, float)) and size >= 0:
            yield name, {"mib": round(size * 1024), "from": "reported"}
        elif name in foreseen and name not in ("others", "free"):
            yield name, {"mib": round(foreseen[name]), "from": "forecast"}
