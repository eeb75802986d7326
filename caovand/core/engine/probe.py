"""Query an engine's own Python, and parse its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from caovand.core.facts.inventory import EngineInfo
from caovand.core.problem import Problem

MARK = "caovan-probe:"
"""Precedes an answer's JSON, because engines print other text too. Scripts receive it as `MARK`."""


@dataclass(frozen=True, kw_only=True)
class ProbeScripts:
    """Two scripts that each print `MARK` and a JSON object; `module` exports this as `PROBE`.

    `name` is the engine's display name, `install` the command that installs it. `versions` is quick
    and runs each time; its answer contains a "stamp" of what `details` depends on. `details` may
    take a minute, so its answer is cached; an answer without the keys in `asked` is ignored. Both
    run with `env`. `lacking` names the missing package, "" if all are present; `missing` is the
    problem of an engine without its own Python.
    """

    module: str
    name: str
    install: str
    versions: str
    details: str
    asked: frozenset[str]
    env: Mapping[str, str]
    lacking: Callable[[Mapping[str, Any]], str]
    read: Callable[[str, Mapping[str, Any], Mapping[str, Any]], EngineInfo]
    missing: Problem | None = None
