"""Encode a plan as a document for another node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from caovand.core.plan import Origin, Plan, Setting, Taken

ORIGINS = frozenset(get_args(Origin))
TEXTS = ("model", "device", "engine")
TUPLES = ("extra_args", "warnings", "advice", "tried")


class BadDocument(ValueError):
    """A document from another node cannot be read."""


def plan_to(plan: Plan) -> dict[str, Any]:
    """Encode a plan as JSON values, without the digest of its API key."""
    return {
        **{name: getattr(plan, name) for name in TEXTS},
        **{name: list(getattr(plan, name)) for name in TUPLES},
        "settings": _settings_to(plan.settings),
        "env": _settings_to(plan.env),
        "verbatim": sorted(plan.verbatim),
        "taken": [[one.rung, one.value, one.degrades, one.passing] for one in plan.taken],
    }


def plan_from(document: Any) -> Plan:
    """Decode a plan. Raises BadDocument."""
    names = {*TEXTS, *TUPLES, "settings", "env", "verbatim", "taken"}
    if not isinstance(document, dict) or set(document) != names:
        raise BadDocument("plan has other parts")
    texts = {name: document[name] for name in TEXTS}
    if not all(isinstance(text, str) for text in texts.values()):
        raise BadDocument("a part of plan is not a text")
    lists = {name: document[name] for name in (*TUPLES, "verbatim")}
    if not all(map(_is_texts, lists.values())):
        raise BadDocument("a part of plan is not a list of texts")
    taken = document["taken"]
    if not isinstance(taken, list) or not all(map(_is_taken, taken)):
        raise BadDocument("plan has rungs that cannot be read")
    parts: dict[str, Any] = {**texts, **{name: tuple(lists[name]) for name in TUPLES}}
    return Plan(
        **parts,
        settings=_settings_from(document["settings"]),
        env=_settings_from(document["env"]),
        verbatim=frozenset(lists["verbatim"]),
        taken=tuple(Taken(*one) for one in taken),
    )


def _settings_to(settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {name: [one.value, one.origin, one.reason] for name, one in settings.items()}


def _settings_from(found: Any) -> dict[str, Setting]:
    if not isinstance(found, dict):
        raise BadDocument("settings is not a table")
    settings = {}
    for name, entry in found.items():
        if not isinstance(entry, list) or len(entry) != 3:
            raise BadDocument(f"setting {name[:64]} is not a value with its origin and reason")
        value, origin, reason = entry
        if not isinstance(origin, str) or origin not in ORIGINS or not isinstance(reason, str):
            raise BadDocument(f"setting {name[:64]} has no origin or reason")
        settings[name] = Setting(value, origin, reason)  # type: ignore[arg-type]
    return settings


def _is_texts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def _is_taken(found: Any) -> bool:
    if not isinstance(found, list) or len(found) != 4:
        return False
    texts, marks = found[:2], found[2:]
    return all(isinstance(one, str) for one in texts) and all(type(one) is bool for one in marks)
