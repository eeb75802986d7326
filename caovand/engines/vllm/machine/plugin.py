"""The plugin's answers on what it supports in the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caovand.core.facts.inventory import EngineInfo


@dataclass(frozen=True)
class ProbeVerdict:
    """Whether a part of the plugin supports the engine, None if it was not probed, and why not."""

    ok: bool | None
    reason: str = ""


def verdict(
    engine: EngineInfo, part: Literal["gdn_interface", "states", "attention", "lm_head"]
) -> ProbeVerdict:
    """The plugin's answer on this part."""
    found: str = getattr(engine, part)
    return ProbeVerdict(found == "pass" if found else None, found.removeprefix("fail: "))
