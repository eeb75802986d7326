"""Who uses the memory of a slot's cards: the engine, by part, and other processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.health.observation import GpuSample

REPORTED = {"weights": "weights_gib", "kv": "kv_gib", "graphs": "graph_gib"}
"""The parts whose size an engine reports, by the name of that figure."""


def by_card(
    samples: Iterable[GpuSample],
    ours: Collection[int],
    forecast: MemoryEstimate | None,
    reported: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """One entry a card: what `ours` have, in parts, and what others have, in MiB.

    `engine` and `others` are None if the driver does not tell processes apart. `engine_pids`
    are those of `ours` on the card.
    """
    found = []
    for sample in samples:
        parts = dict(_parts(*_of_card(forecast, sample.index, reported)))
        users = dict(sample.users)
        own = sorted(users.keys() & ours)
        known = bool(own)
        engine = sum(users[pid] for pid in own) if known else None
        found.append(
            {
                "gpu": sample.index,
                "total_mib": sample.total_mib,
                "used_mib": sample.used_mib,
                "engine_mib": engine,
                "engine_pids": own,
                "others_mib": None if engine is None else max(sample.used_mib - engine, 0),
                "parts": parts if known else {},
            }
        )
    return found


def foreign_pids(memory: Iterable[Mapping[str, Any]], *, serves: bool) -> set[int]:
    """The cards whose processes have pids of another host, from what `by_card` found.

    In a container the driver reports the host's: none is the engine's though it serves, and here
    others may have the same.
    """
    return {card["gpu"] for card in memory if serves and card["engine_mib"] is None}


def _of_card(
    forecast: MemoryEstimate | None, card: int, reported: Mapping[str, Any]
) -> tuple[dict[str, float], dict[str, Any]]:
    """What is forecast and what is reported for this card of ours, which may have a stage."""
    if forecast is None:
        return {}, dict(reported)
    if not forecast.ranks:
        return dict(forecast.parts), dict(reported)
    here = forecast.ranks[0].node  # the stages of other nodes come later
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
    """Each part's size and where that is from: the engine's own report, else the forecast."""
    for name in (*foreseen, *(name for name in REPORTED if name not in foreseen)):
        size = reported.get(REPORTED.get(name, ""))
        if isinstance(size, (int, float)) and size >= 0:
            yield name, {"mib": round(size * 1024), "from": "reported"}
        elif name in foreseen and name not in ("others", "free"):
            yield name, {"mib": round(foreseen[name]), "from": "forecast"}
