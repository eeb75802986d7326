"""Remember a degraded plan that served stably, for the same machine and configuration.

Only the ladder's changes are kept; everything else is planned anew. A plan degraded for lack of
memory is kept together with the occupancy of the cards: once more memory is free, the full plan is
tried again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from caovand.core.config.schema import Config, Mode
from caovand.core.document import (
    MAX_NUMBER,
    PartReader,
    anything,
    listed,
    number,
    optional,
    read_or_none,
    record,
    require,
    row,
    string,
    table,
    whole,
)
from caovand.core.facts.inventory import Inventory
from caovand.core.facts.occupancy import Used, has_memory_again
from caovand.core.healing.rung import Healing
from caovand.core.plan import Plan, Setting

OTHERS = "others_mib"
FORMAT_KEY = "format"
SINCE = "since"  # Unix time at which the plan was degraded
FORMAT = 2
"""Format of the fingerprint in a document. A document of another format is ignored; one without a
format predates formats."""
PLANNED = ("model", "policy", "engine")
"""Sections that determine a plan."""
_KEPT = "restored from the last plan that served: "
_KEPT_BEFORE = re.compile(rf"^(?:{_KEPT}|kept from the last plan that served: )+")
"""What precedes a reason that was kept before; earlier versions wrote "kept from"."""


def fingerprint(config: Config, inventory: Inventory) -> str:
    """Key under which a degraded plan is valid: this configuration, cards, engine and model.

    Only keys that differ from their default count, so a key added by a later version changes no
    fingerprint.
    """
    seen: dict[str, Any] = {
        "keys": {section: _changed_settings(getattr(config, section)) for section in PLANNED},
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


def _changed_settings(section: Any) -> dict[str, Any]:
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

    Also None if the cards have free memory again: `used` is the memory in use without the engine,
    None when planning for a running engine.
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
    settings = _restore(document["settings"])
    env = _restore(document["env"])
    model = document["model"]
    if document["mode"] != mode:
        taken = tuple(step for step in taken if step.rung not in healing.mode_rungs)
        for name in healing.mode_settings:
            settings.pop(name, None)
    return Plan(model, settings, env, taken=taken, others_mib=others) if taken else None


def well_formed(document: Any, healing: Healing) -> bool:
    """Whether this document is from `to_document` and fully usable by this version."""
    rung = require(string(), healing.read, "is not a rung of this version")
    readers: Mapping[str, PartReader[Any]] = {
        FORMAT_KEY: require(whole(), lambda version: version == FORMAT, "has another format"),
        **dict.fromkeys(("fingerprint", "mode", "model"), string()),
        "rungs": listed(rung),
        "settings": _settings(partial(_fits, healing.kinds)),
        "env": _settings(lambda _, value: value is None or _is_word(value)),
        OTHERS: table(whole(-MAX_NUMBER), name=require(string(9), str.isdecimal, "is not a card")),
        SINCE: optional(number(0)),
    }
    optional_keys = (FORMAT_KEY, OTHERS, SINCE)
    reader: PartReader[dict[str, Any]] = record(
        dict, readers, may_lack=optional_keys, may_have_more=True
    )
    return read_or_none(reader, document) is not None


def _settings(fits: Callable[[str, Any], bool]) -> PartReader[dict[str, tuple[Any, ...]]]:
    name = require(string(), str.isidentifier, "is not the name of a setting")
    return require(
        table(row(anything, string()), name=name),
        lambda settings: all(fits(name, value) for name, (value, _) in settings.items()),
        "has a value that its setting cannot have",
    )


def _fits(kinds: Mapping[str, tuple[type, ...]], name: str, value: Any) -> bool:
    if value is None or value is False:  # omitted, or its `--no-` form
        return True
    if name in kinds and not isinstance(value, kinds[name]):
        return False
    if isinstance(value, bool):
        return name not in kinds or bool in kinds[name]
    return (
        read_or_none(number(), value) is not None
        or _is_word(value)
        or isinstance(value, (dict, list))
    )


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _by_ladder(settings: Mapping[str, Setting]) -> dict[str, list[Any]]:
    return {
        name: [setting.value, setting.reason]
        for name, setting in settings.items()
        if setting.origin in ("ladder", "remembered")
    }


def _restore(document: Mapping[str, Any]) -> dict[str, Setting]:
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
    return {
        name: Setting(setting.value, "remembered", _KEPT + _KEPT_BEFORE.sub("", setting.reason))
        for name, setting in settings.items()
        if setting.origin in ("ladder", "remembered") and name not in verbatim
    }
