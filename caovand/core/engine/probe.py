"""What an engine's own Python is asked, and how its answers are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from caovand.core.facts.inventory import EngineInfo
from caovand.core.problem import Problem

MARK = "caovan-probe:"
"""Precedes the JSON of an answer: engines print other text too. Scripts have it
as `MARK`."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Two scripts, each of which prints `MARK` and a JSON object; `module` holds this as `PROBE`.

    `name` is the engine's for people, `install` the command that installs one.
    `versions` is quick and asked each time; its answer has a "stamp" of what `details` depends on.
    `details` may take a minute, so its answer is kept; one without the keys `asked` is not used.
    Both run with `env`. `lacking` names what is not installed, "" for nothing; `missing` is then
    the problem of an engine that has no Python of its own.
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
