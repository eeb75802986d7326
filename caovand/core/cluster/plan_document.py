"""Encode a plan as a document for another node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from caovand.core.document import (
    PartReader,
    anything,
    flag,
    into,
    listed,
    one_of,
    record,
    row,
    string,
    table,
)
from caovand.core.plan import Origin, Plan, Setting, Taken
from caovand.core.problem import Problem

TEXTS = ("model", "device", "engine")
TUPLES = ("extra_args", "warnings", "advice", "tried")


def plan_to(plan: Plan) -> dict[str, Any]:
    """Encode a plan as JSON values, without the digest of its API key."""
    return {
        **{name: getattr(plan, name) for name in TEXTS},
        **{name: list(getattr(plan, name)) for name in TUPLES},
        "settings": _settings_to(plan.settings),
        "env": _settings_to(plan.env),
        "verbatim": sorted(plan.verbatim),
        "taken": [[rung.rung, rung.value, rung.degrades, rung.passing] for rung in plan.taken],
    }


def _settings_to(settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {
        name: [setting.value, setting.origin, setting.reason] for name, setting in settings.items()
    }


def _plan_of(warnings: tuple[str, ...], **fields: Any) -> Plan:
    return Plan(**fields, caveats=tuple(map(Problem.stated, warnings)))


_STRINGS = listed(string())
_SETTINGS = table(
    into(lambda parts: Setting(*parts), row(anything, one_of(get_args(Origin)), string()))
)
_TAKEN = into(lambda parts: Taken(*parts), row(string(), string(), flag, flag))
read_plan: PartReader[Plan] = record(_plan_of, {
    **dict.fromkeys(TEXTS, string()),
    **dict.fromkeys(TUPLES, _STRINGS),
    **dict.fromkeys(("settings", "env"), _SETTINGS),
    "verbatim": into(frozenset, _STRINGS),
    "taken": listed(_TAKEN),
})  # fmt: skip
"""Read the document of a plan."""
