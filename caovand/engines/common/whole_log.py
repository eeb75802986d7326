"""Parts of explaining a whole log after the fact, the same for several engines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from caovand.core.healing.failure import Finding
from caovand.core.log import PhaseTime
from caovand.core.plan import Plan, Setting
from caovand.core.secrets import hide
from caovand.engines.common.wrapping import unwrapped, without_colours

HIDDEN = "(hidden)"


def lines_of(text: str) -> list[str]:
    """The lines of a log file as the engine printed them, without colours."""
    return [unwrapped(line) for line in re.split(r"\r?\n", without_colours(text))]


def public(finding: Finding, line: int) -> Finding:
    """The finding at this line of the file, without anything that looks like a secret."""
    return replace(
        finding,
        line=line,
        text=hide(finding.text, mark=HIDDEN),
        captures={name: hide(value, mark=HIDDEN) for name, value in finding.captures.items()},
    )


def planned(configured: Mapping[str, Any]) -> Plan | None:
    """The plan that the arguments in a log make, None without any."""
    if not configured:
        return None
    settings = {name: Setting(value, "user", "") for name, value in configured.items()}
    return Plan(str(configured.get("model", "")), settings, {}, device="cuda")


def durations(times: Mapping[str, Sequence[float]]) -> tuple[PhaseTime, ...]:
    """Each phase from its first mark to the next phase's."""
    names = list(times)
    found = []
    for place, name in enumerate(names):
        end = times[names[place + 1]][0] if place + 1 < len(names) else times[name][-1]
        found.append(PhaseTime(name, round(max(end - times[name][0], 0.0), 3)))
    return tuple(found)
