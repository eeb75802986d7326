"""Remember a degraded plan that served stably, for the same machine and configuration.

Only the ladder's changes are kept; everything else is planned anew. A plan degraded for lack of
memory is kept together with the occupancy of the cards: once they have more room, the full plan is
tried again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from caovand.core.config.schema import Config, Mode
from caovand.core.facts.inventory import Inventory
from caovand.core.facts.occupancy import Used, has_memory_again
from caovand.core.healing.rung import Healing
from caovand.core.plan import Plan, Setting

OTHERS = "others_mib"
FORMAT_KEY = "format"
SINCE = "since"  # Unix time at which the plan was degraded
LARGEST = 1 << 53
FORMAT = 2
"""Format of the fingerprint in a document. A document of another format is ignored; one without a
format predates formats."""
PLANNED = ("model", "policy", "engine")
"""Sections that determine a plan."""


def fingerprint(config: Config, inventory: Inventory) -> str:
    """Key under which a degraded plan is valid: this configuration, cards, engine and model.

    Only keys that differ from their default count, so a key added by a later version changes no
    fingerprint.
    """
    seen: dict[str, Any] = {
        "keys": {section: _changed(getattr(config, section)) for section in PLANNED},
        "cards": [(gpu.name, gpu.total_mib) for gpu in inventory.gpus],
        "ram_mib": inventory.host.ram_mib,
        "engine": (inventory.engine.version, inventory.engine.torch, inventory.engine.plugin),
        "model": inventory.model.path,
    }
    if inventory.others:
        # A node lists its cards by free memory, which changes.
        seen["others"] = [
            sorted((gpu.name, gpu.total_mib) for gpu in node.gpus) for node in inventory.others
        ]
    text = json.dumps(seen, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _changed(section: Any) -> dict[str, Any]:
    return {
        key.name: value
        for key in fields(section)
        if key.metadata["replans"] and (value := getattr(section, key.name)) != key.default
    }


def to_document(plan: Plan, fingerprint: str, mode: Mode) -> dict[str, Any]:
    """Encode a plan that served stably."""
    return {
        FORMAT_KEY: FORMAT,
        "fingerprint": fingerprint,
        "mode": mode,
        "model": plan.model,
        "rungs": list(plan.rungs),
        "settings": _by_ladder(plan.settings),
        "env": _by_ladder(plan.env),
        OTHERS: {str(card): mib for card, mib in plan.others_mib.items()},
    }


def from_document(
    document: Any, fingerprint: str, mode: Mode, used: Used | None, healing: Healing
) -> Plan | None:
    """The degraded plan in `document`; None if it is unreadable or does not apply.

    Also None if the cards have room again: `used` is the memory in use without the engine, None
    when planning for a running engine.
    """
    if not well_formed(document, healing):
        return None
    # Fingerprints without a format cannot be compared: the plan survives the upgrade.
    if FORMAT_KEY in document and document["fingerprint"] != fingerprint:
        return None
    # Earlier versions did not write this key.
    others = {int(card): mib for card, mib in document.get(OTHERS, {}).items()}
    if used is not None and has_memory_again(others, used):
        return None
    taken = tuple(filter(None, map(healing.read, document["rungs"])))
    settings = _restored(document["settings"])
    env = _restored(document["env"])
    model = document["model"]
    if document["mode"] != mode:
        taken = tuple(one for one in taken if one.rung not in healing.mode_rungs)
        for name in healing.mode_settings:
            settings.pop(name, None)
    return Plan(model, settings, env, taken=taken, others_mib=others) if taken else None


def well_formed(document: Any, healing: Healing) -> bool:
    """Whether this document is from `to_document` and fully usable by this version."""
    if not isinstance(document, dict):
        return False
    texts = [document.get(name) for name in ("fingerprint", "mode", "model")]
    rungs, since = document.get("rungs"), document.get(SINCE)
    return (
        document.get(FORMAT_KEY, FORMAT) == FORMAT
        and all(isinstance(text, str) for text in texts)
        and isinstance(rungs, list)
        and all(isinstance(rung, str) and healing.read(rung) for rung in rungs)
        and _are_settings(document.get("settings"), partial(_fits, healing.kinds))
        and _are_settings(document.get("env"), lambda _, value: value is None or _is_word(value))
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


def _fits(kinds: Mapping[str, tuple[type, ...]], name: str, value: Any) -> bool:
    if value is None or value is False:  # omitted, or its `--no-` form
        return True
    if name in kinds and not isinstance(value, kinds[name]):
        return False
    if isinstance(value, bool):
        return name not in kinds or bool in kinds[name]
    return _is_number(value) or _is_word(value) or isinstance(value, (dict, list))


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= LARGEST and math.isfinite(value)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _by_ladder(settings: Mapping[str, Setting]) -> dict[str, list[Any]]:
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


def kept_steps(
    settings: Mapping[str, Setting], verbatim: Collection[str] = ()
) -> dict[str, Setting]:
    """The settings or variables that the ladder changed in a kept plan, with their reasons.

    Those that the operator passes verbatim are excluded.
    """
    kept = "kept from the last plan that served: "
    return {
        name: Setting(one.value, "remembered", kept + one.reason.removeprefix(kept))
        for name, one in settings.items()
        if one.origin in ("ladder", "remembered") and name not in verbatim
    }
