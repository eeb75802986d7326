"""The memory of the ladder: the lowered plan that served stably, for the same machine and wishes.

Only what the ladder changed is kept, so that everything else is planned anew. A plan lowered for
want of memory is kept with what others had of the cards then: with more room the full one is tried.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from caovand.core.config import Config, Mode
from caovand.core.inventory import Inventory
from caovand.core.neighbours import Used, has_room_again
from caovand.core.plan import Plan, Setting

MTP_RUNGS = ("mtp", "mtp-safe", "mtp-off")
MTP_SETTING = "speculative_config"


def fingerprint(config: Config, inventory: Inventory) -> str:
    """What a remembered plan is good for: these wishes, cards, engine and model."""
    wishes = {name: asdict(getattr(config, name)) for name in ("model", "policy", "engine")}
    wishes["policy"].pop("mode")  # a mode change clears the MTP rungs only
    seen = {
        "wishes": wishes,
        "cards": [(gpu.name, gpu.total_mib) for gpu in inventory.gpus],
        "ram_mib": inventory.host.ram_mib,
        "engine": (inventory.engine.vllm, inventory.engine.torch, inventory.engine.plugin),
        "model": inventory.model.path,
    }
    text = json.dumps(seen, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_document(plan: Plan, fingerprint: str, mode: Mode) -> dict[str, Any]:
    """What to write down of a plan that served stably."""
    return {
        "fingerprint": fingerprint,
        "mode": mode,
        "model": plan.model,
        "rungs": list(plan.rungs),
        "settings": _lowered(plan.settings),
        "env": _lowered(plan.env),
        "others_mib": {str(card): mib for card, mib in plan.others_mib.items()},
    }


def from_document(document: Any, fingerprint: str, mode: Mode, used: Used | None) -> Plan | None:
    """The lowered plan in `document`, None where it is for something else or not readable.

    Nor is it for cards that have room again: `used` is what is in use of them without the engine,
    None for the plan of an engine that runs.
    """
    try:
        if document["fingerprint"] != fingerprint:
            return None
        rungs = tuple(str(rung) for rung in document["rungs"])
        settings = _restored(document["settings"])
        env = _restored(document["env"])
        model = str(document["model"])
        # Not in documents of earlier versions.
        others = {int(card): int(mib) for card, mib in document.get("others_mib", {}).items()}
        same_mode = document["mode"] == mode
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    if used is not None and has_room_again(others, used):
        return None
    if not same_mode:
        rungs = tuple(rung for rung in rungs if rung.split(" ")[0] not in MTP_RUNGS)
        settings.pop(MTP_SETTING, None)
    return Plan(model, settings, env, rungs=rungs, others_mib=others) if rungs else None


def _lowered(settings: Mapping[str, Setting]) -> dict[str, list[Any]]:
    return {
        name: [setting.value, setting.reason]
        for name, setting in settings.items()
        if setting.origin in ("ladder", "remembered")
    }


def _restored(document: Mapping[str, Any]) -> dict[str, Setting]:
    return {
        name: Setting(value, "remembered", str(reason))
        for name, (value, reason) in document.items()
    }
