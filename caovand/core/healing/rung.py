"""Rungs of the ladder, and the healing part of an engine's record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from caovand.core.healing.failure import Failure, Finding
from caovand.core.plan import Plan, Taken


@dataclass(frozen=True)
class RungStep:
    """The changes made by one use of a rung. `value` distinguishes several uses.

    `pair` is a further step to take with this one if the machine cannot run this one alone.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    value: str = ""
    change: str = ""
    pair: RungStep | None = None

    @property
    def paired(self) -> RungStep | None:
        """Both steps merged; None without a pair."""
        if self.pair is None:
            return None
        return RungStep(
            {**self.settings, **self.pair.settings},
            {**self.env, **self.pair.env},
            self.value,
            f"{self.change}, {self.pair.change}",
        )


@dataclass(frozen=True)
class Rung:
    """A fallback: its effect, the `caovan.toml` key that it overrides, and its steps.

    `touches` are the settings or variables it changes, which must not be set by the operator.
    `degrades` and `passing` describe its uses (plan.Taken).
    """

    name: str
    does: str
    key: str
    touches: tuple[str, ...]
    step: Callable[[Plan, Finding], RungStep | None]
    degrades: bool = True
    passing: bool = False

    def taken(self, value: str) -> Taken:
        """One use of this rung."""
        return Taken(self.name, value, self.degrades, self.passing)


ANY = ""  # key in CURES for all phases without a row of their own


@dataclass(frozen=True, kw_only=True)
class Healing:
    """An engine's rungs, and the failures that each helps against.

    `cures` lists rungs by failure and phase, best first. `precise` lists rungs for a signature that
    is more specific than its failure; none if only a person can help. `blamed` is the rung for a
    component that a traceback names. `whatever_phase` are signatures with the same meaning in every
    phase. `blameless` are signatures caused by requests, which no setting helps. `option` spells a
    setting's flag. Changing the mode undoes `mode_rungs` and `mode_settings`. `kinds` are the types
    of settings that a kept plan may restore and that calculations use.
    """

    rungs: tuple[Rung, ...]
    cures: Mapping[tuple[Failure, str], tuple[str, ...]]
    option: Callable[[str], str]
    blamed: Mapping[str, str] = field(default_factory=dict)
    whatever_phase: frozenset[str] = frozenset()
    precise: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    blameless: frozenset[str] = frozenset()
    mode_rungs: frozenset[str] = frozenset()
    mode_settings: tuple[str, ...] = ()
    kinds: Mapping[str, tuple[type, ...]] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> Mapping[str, Rung]:
        """Rungs by name."""
        return {rung.name: rung for rung in self.rungs}

    def rungs_for(self, finding: Finding) -> tuple[Rung, ...]:
        """Rungs that help against a failure, best first; a blamed component's rung comes before all
        others.
        """
        if finding.signature in self.blameless:
            return ()
        phase = ANY if finding.signature in self.whatever_phase else finding.phase
        names = self.precise.get(finding.signature)
        if names is None:
            of_any = self.cures.get((finding.failure, ANY), ())
            names = self.cures.get((finding.failure, phase), of_any)
        blamed = self.blamed.get(finding.captures.get("component", ""))
        if blamed and names:
            names = (blamed, *(name for name in names if name != blamed))
        return tuple(self.by_name[name] for name in names)

    def read(self, label: str) -> Taken | None:
        """Parse a use of a rung in a document ("mtp 2"); None if there is no such rung."""
        name, _, value = label.partition(" ")
        rung = self.by_name.get(name)
        return rung.taken(value) if rung else None
