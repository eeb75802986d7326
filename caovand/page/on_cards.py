"""The processes on the cards, with their names in this pid namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.adapters.system import processes
from caovand.core.figures.memory import cards_with_foreign_pids


def on_cards(status: Mapping[str, Any], model: str) -> list[dict[str, Any]]:
    """One entry per process and card, largest memory first; `own` marks the model's engine.

    Only names are shown: a command line can contain a key, and reading it can hang if its process
    hangs. If the driver's pids are from another namespace, no process has a name. `own` is None
    there, and wherever the engine's processes cannot be distinguished.
    """
    every = [{**status, **slot} for slot in status["slots"]]
    seen = next((slot for slot in every if slot["name"] == model), status)
    memory = seen["figures"]["memory"]
    untold = {card["gpu"] for card in memory if card["engine_mib"] is None}
    unknown = {
        gpu
        for slot in every or (status,)
        for gpu in cards_with_foreign_pids(
            slot["figures"]["memory"], serves=slot["served"] is not None
        )
    }
    ours = {(card["gpu"], pid) for card in memory for pid in card.get("engine_pids", ())}
    rows = []
    for gpu in status["gpus"]:
        index = gpu["index"]
        for pid, mib in sorted(gpu["users"], key=lambda user: (-user[1], user[0])):
            known = index not in unknown
            rows.append(
                {
                    "gpu": index,
                    "pid": pid,
                    "name": (processes.name_of(pid) or "") if known else "",
                    "mib": mib,
                    "own": (index, pid) in ours if known and index not in untold else None,
                }
            )
    return rows
