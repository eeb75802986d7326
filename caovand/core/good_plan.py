"""The memory of the ladder: the lowered plan that served stably, for the same machine and wishes.

Only what the ladder changed is kept, so that everything else is planned anew. A plan lowered for
want of memory is kept with what others had of the cards then: with more room the full one is tried.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from caovand.core.config import Config, Mode
from caovand.core.inventory import Inventory
from caovand.core.neighbours import Used, has_room_again
from caovand.core.plan import Plan, Setting
from caovand.core.rungs import BY_NAME

MTP_RUNGS = ("mtp", "mtp-safe", "mtp-off")
MTP_SETTING = "speculative_config"
OTHERS = "others_mib"
SINCE = "since"  # Unix time at which the plan was lowered
LARGEST = 1 << 53
_COUNT, _NUMBER, _TABLE = (int,), (int, float), (dict,)
# What the planner and the forecast calculate with; the rest goes to vLLM as it is.
KINDS: Mapping[str, tuple[type, ...]] = {
    "max_model_len": _COUNT, "max_num_seqs": _COUNT, "max_num_batched_tokens": _COUNT,
    "kv_cache_memory_bytes": _COUNT, "gpu_memory_utilization": _NUMBER, "cpu_offload_gb": _NUMBER,
    "kv_cache_dtype": (str,), "dtype": (str,), "attention_backend": (str,),
    "enforce_eager": (bool,), "enable_prefix_caching": (bool,), "async_scheduling": (bool,),
    "disable_custom_all_reduce": (bool,), "speculative_config": _TABLE,
    "compilation_config": _TABLE, "additional_config": _TABLE,
}  # fmt: skip


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
        OTHERS: {str(card): mib for card, mib in plan.others_mib.items()},
    }


def from_document(document: Any, fingerprint: str, mode: Mode, used: Used | None) -> Plan | None:
    """The lowered plan in `document`, None where it is for something else or not readable.

    Nor is it for cards that have room again: `used` is what is in use of them without the engine,
    None for the plan of an engine that runs.
    """
    if not well_formed(document) or document["fingerprint"] != fingerprint:
        return None
    # Not in documents of earlier versions.
    others = {int(card): mib for card, mib in document.get(OTHERS, {}).items()}
    if used is not None and has_room_again(others, used):
        return None
    rungs = tuple(document["rungs"])
    settings = _restored(document["settings"])
    env = _restored(document["env"])
    model = document["model"]
    if document["mode"] != mode:
        rungs = tuple(rung for rung in rungs if rung.split(" ")[0] not in MTP_RUNGS)
        settings.pop(MTP_SETTING, None)
    return Plan(model, settings, env, rungs=rungs, others_mib=others) if rungs else None


def well_formed(document: Any) -> bool:
    """Whether this is what `to_document` makes, with nothing in it that this version cannot use."""
    if not isinstance(document, dict):
        return False
    texts = [document.get(name) for name in ("fingerprint", "mode", "model")]
    rungs, since = document.get("rungs"), document.get(SINCE)
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(rungs, list)
        and all(isinstance(rung, str) and rung.split(" ")[0] in BY_NAME for rung in rungs)
        and _are_settings(document.get("settings"), _fits)
        and _are_settings(document.get("env"), lambda _, value: _is_word(value))
        and _are_cards(document.get(OTHERS, {}))
        and (since is None or (_is_number(since) and 0 <= since < LARGEST))
    )


def _are_settings(found: Any, fits: Callable[[str, Any], bool]) -> bool:
    return isinstance(found, dict) and all(
        name.isidentifier()
        and isinstance(entry, list)
        and len(entry) == 2
        and fits(name, entry[0])
        and isinstance(entry[1], str)
        for name, entry in found.items()
    )


def _are_cards(found: Any) -> bool:
    return isinstance(found, dict) and all(
        card.isdecimal() and isinstance(mib, int) and _is_number(mib) for card, mib in found.items()
    )


def _fits(name: str, value: Any) -> bool:
    if value is None or value is False:  # left out, or its `--no-` twin
        return True
    if name in KINDS and not isinstance(value, KINDS[name]):
        return False
    if isinstance(value, bool):
        return name not in KINDS or bool in KINDS[name]
    return _is_number(value) or _is_word(value) or isinstance(value, (dict, list))


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= LARGEST and math.isfinite(value)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


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
