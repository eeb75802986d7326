"""Explain a finding to people: its certainty, the change to make, and what caovan does by itself.

Pure, and identical for logs read by `caovanctl explain` and for the daemon's incidents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import (
    BEYOND_CARD,
    DISK,
    KILL_PATIENCE,
    MACHINE_LIMIT,
    REACTIONS,
    Decision,
    LadderRules,
    decide,
    is_final,
)
from caovand.core.healing.rung import Healing, Rung
from caovand.core.plan import Plan

Certainty = Literal["certain", "likely", "effect", "unknown"]
"""The certainty of a cause.

certain: only this failure prints the text. likely: the text matches, or only its component is
known. effect: the failure is real, but the log does not show its cause. unknown: no known text
matches.
"""
Heals = Literal["yes", "waits", "no", "depends"]
"""Whether caovan heals the failure by itself.

waits: until an outside cause has passed, then it starts the same plan again. depends: the engine is
unknown.
"""
_FAILED = "the state is FAILED until you change something"
_OTHERS_ADVICE = "follow the advice first"
"""The same for an engine that may not have been started by caovan."""
_DEFAULTS = Plan("", {}, {}, device="cuda")
"""Plan assumed for a log that does not show the engine's arguments: the defaults."""
LEAD = "lead"
"""Name of a capture: an unknown line near the end that sounds like a reason."""
MAX_STEPS = 3  # rungs listed in a forecast of the ladder

_SURE: Mapping[str, Certainty] = {
    "cause": "certain", "generic": "likely", "consequence": "effect", "wrapper": "effect",
}  # fmt: skip
_WHY: Mapping[Certainty, str] = {
    "certain": "the first line that names a cause; later failures follow from it",
    "likely": "the first line that matches, and no line near it explains the failure better",
    "effect": "no earlier line names a known cause; this one shows only how the engine died",
    "unknown": "the first failure reported, in words that no known cause matches",
}


@dataclass(frozen=True)
class Change:
    """One setting to change: its key in caovan.toml, the engine's flag or variable, its value.

    `key` is empty if caovan.toml has none; a value of None removes the option.
    """

    key: str
    option: str
    value: Any
    does: str


@dataclass(frozen=True)
class FailureAnswer:
    """`why` says why this line counts, `how` what caovan does by itself; `resembles` are public
    reports of the same failure, as repository and number."""

    certainty: Certainty
    why: str
    changes: tuple[Change, ...]
    heals: Heals
    how: str
    resembles: tuple[str, ...] = ()


def answer(
    finding: Finding,
    kind: str,
    plan: Plan | None,
    rules: LadderRules,
    resembles: Sequence[str] = (),
    *,
    ours: bool = True,
) -> FailureAnswer:
    """The answer for a plan, None if unknown.

    `kind` is the matching row's kind, "" without a row; `ours` whether caovan runs the engine, and
    has a state for it.
    """
    sure = _certainty(finding, kind)
    heals, how = _forecast(plan, finding, rules, _FAILED if ours else _OTHERS_ADVICE)
    evidence = (
        _WHY[sure] if finding.line else "no single line: it follows from the sequence of messages"
    )
    if LEAD in finding.captures:
        evidence = f"it shows only how the engine died; a cause may be in {finding.captures[LEAD]}"
    changes = tuple(_changes(plan or _DEFAULTS, finding, rules.healing))
    return FailureAnswer(sure, evidence, changes, heals, how, tuple(resembles))


def suspects(finding: Finding, healing: Healing) -> tuple[Rung, ...]:
    """Rungs to recommend to people; none if no setting is at fault."""
    limited = finding.signature in DISK or MACHINE_LIMIT in finding.captures
    blamed = healing.blamed.get(finding.captures.get("component", ""))
    if limited or (finding.failure == "unknown" and blamed is None):
        return ()
    return healing.rungs_for(finding)


def _certainty(finding: Finding, kind: str) -> Certainty:
    if finding.failure == "unknown" and kind != "cause":
        return "unknown"
    return _SURE.get(kind, "likely")


def _changes(plan: Plan, finding: Finding, healing: Healing) -> Iterator[Change]:
    for rung in suspects(finding, healing):
        step = rung.step(plan, finding)
        if step is None:
            continue
        changed = [(healing.option(name), value) for name, value in step.settings.items()]
        for option, value in (*changed, *step.env.items()):
            yield Change(rung.key, option, value, rung.does)


def _forecast(
    plan: Plan | None, finding: Finding, rules: LadderRules, failed: str
) -> tuple[Heals, str]:
    """Describe what the ladder does if the failure keeps recurring; `failed` says what follows its
    end."""
    known = plan or _DEFAULTS
    at_once = decide(known, finding, 1, rules)
    if is_final(finding, rules.healing):
        return "no", f"{at_once.text}; {failed}"
    if at_once.excused:
        waits = finding.signature not in rules.healing.blameless
        return "waits" if waits else "yes", at_once.text.removeprefix("waiting ")
    patience = 0 if at_once.verdict in ("degrade", "fail") else _patience(finding)
    times = "once" if patience == 1 else f"up to {patience} times"
    first = f"the same plan again, {times}" if patience else ""
    rungs = rules.healing.rungs_for(finding)
    later = decide(known, finding, patience + 1, rules)
    if plan is None and rungs:
        steps = f"as far as the plan allows: {'; '.join(rung.does for rung in rungs)}"
    elif later.verdict == "degrade":
        steps = _steps(later, finding, rules)
    elif later.verdict == "hold":
        return "waits", f"{first}, repeated until the condition has passed"
    else:
        left = later.text if patience == 0 else "no rung of the ladder is left"
        return "no", f"{first}; then {left}" if first else f"{left}; {failed}"
    return "yes", f"{first}; then {steps}" if first else steps


def _patience(finding: Finding) -> int:
    more = KILL_PATIENCE if finding.maybe_killed else 0
    return (BEYOND_CARD if finding.beyond_card else REACTIONS[finding.failure]).patience + more


def _steps(decision: Decision, finding: Finding, rules: LadderRules) -> str:
    """The changes of this decision and the next ones; the first few by name."""
    steps: list[str] = []
    while decision.verdict == "degrade" and decision.plan is not None and len(steps) < MAX_STEPS:
        steps.append(decision.text)
        decision = decide(decision.plan, finding, _patience(finding) + 1, rules)
    more = ", and so on" if decision.verdict == "degrade" else ""
    return "; then ".join(steps) + more
