"""Answer a failure: retry the plan, degrade it, wait, or give up.

REACTIONS defines the patience with each failure; the engine's Healing lists the rungs that help
against it, best first, by phase if that matters. Remedies for different failures can be opposites,
so only rungs in the failure's row are tried. Each step of a rung is taken at most once, and every
rung is finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from caovand.core.config.schema import PolicySection
from caovand.core.facts.occupancy import Used, maxima
from caovand.core.healing.failure import Failure, Finding
from caovand.core.healing.rung import Healing, Rung, RungStep
from caovand.core.plan import Plan, Setting
from caovand.core.problem import Problem

ReactionKind = Literal["fatal", "hold", "wait", "retry", "restart", "rung"]
"""The reaction to a failure.

fatal: only the operator can help. hold: wait for what is missing, indefinitely. wait: the same, but
after `patience` failures take a rung. retry: always retry the plan. restart: retry the plan
`patience` times, then take a rung. rung: take a rung at once.
"""
DecisionVerdict = Literal["again", "degrade", "hold", "fail"]


@dataclass(frozen=True)
class Reaction:
    """The reaction to a failure, the number of retries before a rung, and the condition it waits
    for."""

    kind: ReactionKind
    patience: int = 0
    waits_for: str = ""


REACTIONS: Mapping[Failure, Reaction] = {
    "device-oom-load": Reaction("rung"),
    "kv-cache-none": Reaction("rung"),
    "kv-cache-short": Reaction("rung"),
    "vram-busy": Reaction("wait", 3),
    "device-oom-capture": Reaction("rung"),
    "device-oom-run": Reaction("rung"),
    "sampler-oom": Reaction("rung"),
    "illegal-access": Reaction("restart", 1),
    "launch-failure": Reaction("restart", 1),
    "collective-timeout": Reaction("restart", 1),
    "gpu-lost": Reaction("hold", waits_for="the lost card"),
    "gpu-absent": Reaction("hold", waits_for="a usable card"),
    "engine-unusable": Reaction("hold", waits_for="an engine that can run"),
    "host-oom": Reaction("restart", 1),
    "shm-full": Reaction("hold", waits_for="space in /dev/shm"),
    "compile-cache-stale": Reaction("rung"),
    "shared-memory-limit": Reaction("rung"),
    "jit-toolchain": Reaction("rung"),
    "backend-unsupported": Reaction("rung"),
    "bad-arguments": Reaction("fatal"),
    "model-missing": Reaction("fatal"),
    "network": Reaction("retry", waits_for="the network"),
    "access-denied": Reaction("fatal"),
    "port-busy": Reaction("hold", waits_for="the port to be free"),
    "plugin-error": Reaction("rung"),
    "compile-failed": Reaction("rung"),
    "engine-died": Reaction("restart", 1),
    "start-stall": Reaction("restart", 1),
    "hang": Reaction("restart", 1),
    "draft-collapse": Reaction("restart", 1),
    "answers-changed": Reaction("restart", 1),
    "answers-degenerate": Reaction("restart", 1),
    "allreduce-wrong": Reaction("rung"),
    "allreduce-hung": Reaction("restart", 1),
    "node-missing": Reaction("hold", waits_for="all nodes"),
    "node-unfit": Reaction("hold", waits_for="nodes that fit the plan"),
    "node-lost": Reaction("retry", waits_for="all nodes"),
    "unknown": Reaction("restart", 2),
}

BEYOND_CARD = Reaction("restart", 1)
"""An allocation larger than the card: caused by an unusual request, or by a step that must
shrink."""

KILL_PATIENCE = 2
"""A killed engine is no evidence against its plan; the third kill in a row may be."""

DISK: Mapping[str, str] = {
    "disk.full": "waiting for space on the disk{of}; fix: free some (`df -h`)",
    "disk.error": "waiting for the disk to become readable; `journalctl -k` shows the fault",
}
"""No plan needs less disk, so no setting is lowered for it."""

LASTING_MESSAGES = frozenset({"net.certificate"})
"""Messages of failures that last until a person acts, although others of their kind pass."""

MACHINE_LIMIT = "machine_limit"
"""Name of a capture: a limit of the machine was reached, so no plan is at fault."""

CONFIGURATION = "configuration"
"""Component of failures that an engine's configuration causes before anything is loaded."""

MEMORY_FAILURES: frozenset[Failure] = frozenset({
    "device-oom-load", "kv-cache-none", "kv-cache-short", "vram-busy", "device-oom-capture",
    "device-oom-run", "sampler-oom",
})  # fmt: skip
"""Failures that depend on how much free memory the cards have."""


def no_conflicts(plan: Plan) -> Sequence[Problem]:
    """The default for an unknown machine."""
    return ()


@dataclass(frozen=True)
class LadderRules:
    """The engine's ladder and the operator's limits on it: strictness, pinned keys, permitted
    rungs.

    `conflicts` lists settings of a plan that cannot run on this machine: no rung may lead there.
    `others_mib` is the memory that other programs use on the cards.
    """

    healing: Healing
    strict: bool = False
    pinned: frozenset[str] = frozenset()
    allowed: frozenset[str] | None = None
    conflicts: Callable[[Plan], Sequence[Problem]] = no_conflicts
    others_mib: Used = field(default_factory=dict)


def rules_of(
    healing: Healing,
    policy: PolicySection,
    conflicts: Callable[[Plan], Sequence[Problem]] = no_conflicts,
    others_mib: Used | None = None,
) -> LadderRules:
    """The ladder's rules according to `[policy]` and this machine."""
    allowed = None if policy.ladder is None else frozenset(policy.ladder)
    pinned = frozenset(policy.pinned)
    return LadderRules(healing, policy.strict, pinned, allowed, conflicts, others_mib or {})


@dataclass(frozen=True)
class Decision:
    """The answer to a failure, for the machine and in words for people.

    `text` is the change, or why there is none; `obstacles` are remedies that exist but are
    forbidden, each with its reason. An `excused` failure is no evidence against the plan and will
    pass: however often it recurs, it is no reason to give up.
    """

    verdict: DecisionVerdict
    plan: Plan | None = None
    rung: str = ""
    text: str = ""
    obstacles: tuple[str, ...] = ()
    excused: bool = False


def decide(plan: Plan, finding: Finding, repeats: int, rules: LadderRules) -> Decision:
    """Answer a failure; `repeats` is how often this plan had failures of its kind, including this
    one.

    Excused failures do not count.
    """
    if finding.signature in DISK:
        where = finding.captures.get("path")
        text = DISK[finding.signature].format(of=f" of {where}" if where else "")
        return Decision("hold", text=text, excused=True)
    if MACHINE_LIMIT in finding.captures:
        return Decision("hold", text="the same plan again once the limit allows it", excused=True)
    if finding.signature in rules.healing.blameless:
        text = "the same plan again: a request crashed the engine, and no setting helps"
        return Decision("again", text=text, excused=True)
    reaction = BEYOND_CARD if finding.beyond_card else REACTIONS[finding.failure]
    # If the engine's message names a remedy, apply it at once, whatever the failure's reaction is.
    kind = "rung" if rules.healing.precise.get(finding.signature) else reaction.kind
    if is_final(finding, rules.healing):
        return Decision("fail", text="another start cannot help")
    if kind in ("hold", "retry"):
        text = f"waiting for {reaction.waits_for}, then the same plan again"
        return Decision("hold" if kind == "hold" else "again", text=text, excused=True)
    if kind == reaction.kind and repeats <= reaction.patience + (
        KILL_PATIENCE if finding.maybe_killed else 0
    ):
        verdict: DecisionVerdict = "hold" if kind == "wait" else "again"
        return Decision(verdict, text="the same plan again")
    taken, obstacles = _descend(plan, finding, rules)
    if taken:
        lower, change = taken
        return Decision("degrade", lower, str(lower.taken[-1]), change, obstacles)
    text = "; ".join(obstacles) or "no rung of the ladder is left for this failure"
    if kind == "rung":
        return Decision("fail", text=text, obstacles=obstacles)
    return Decision("hold" if kind == "wait" else "again", text=text, obstacles=obstacles)


def is_final(finding: Finding, healing: Healing) -> bool:
    """Whether only a person can resolve this failure: until then, no start can succeed."""
    if finding.captures.get("component") == CONFIGURATION or finding.signature in LASTING_MESSAGES:
        return True
    precise = healing.precise.get(finding.signature)
    return REACTIONS[finding.failure].kind == "fatal" and not precise


def worth_remembering(plan: Plan) -> bool:
    """Whether a plan that served is worth remembering.

    How much memory to give up to other programs is decided afresh from free memory. Other rungs
    taken for lack of memory are remembered together with the occupancy (`degraded.py`).
    """
    return not any(taken.passing for taken in plan.taken)


def _descend(
    plan: Plan, finding: Finding, rules: LadderRules
) -> tuple[tuple[Plan, str] | None, tuple[str, ...]]:
    """The plan after the first permitted rung with a step left, and the change in words; and the
    obstacles to better rungs."""
    obstacles: list[str] = []
    known = frozenset(rules.conflicts(plan))
    for rung in rules.healing.rungs_for(finding):
        step = rung.step(plan, finding)
        if step is None or rung.taken(step.value) in plan.taken:
            continue
        lower = _apply(plan, rung, step, finding, rules)
        if frozenset(rules.conflicts(lower)) - known and step.paired:
            step = step.paired
            lower = _apply(plan, rung, step, finding, rules)
        # Skip plans that failed before, and plans that cannot run on this machine.
        if lower.identity in plan.tried or frozenset(rules.conflicts(lower)) - known:
            continue
        obstacle = _obstacle(plan, rung, step, rules)
        if not obstacle:
            return (lower, step.change), tuple(obstacles)
        obstacles.append(f"cannot {rung.does} ({step.change}): {obstacle}")
    return None, tuple(obstacles)


def _obstacle(plan: Plan, rung: Rung, step: RungStep, rules: LadderRules) -> str:
    """Why this step of a rung is forbidden; "" if it is allowed."""
    if rules.strict and rung.degrades:
        return "[policy] strict is true"
    pinned = [key for key in (rung.key, *step.settings) if key in rules.pinned]
    if pinned:
        return f"[policy] pinned names {pinned[0]}"
    if rules.allowed is not None and rung.name not in rules.allowed:
        return f'[policy] ladder does not name "{rung.name}"'
    healing = rules.healing
    for name in dict.fromkeys((*rung.touches, *step.settings, *step.env)):
        if name in plan.verbatim:
            return f"{healing.option(name)} is passed verbatim; change or remove it"
        if name in plan.env and plan.env[name].origin == "user":
            return f"[engine] env sets {name}; change or remove it"
    return ""


def _apply(plan: Plan, rung: Rung, step: RungStep, finding: Finding, rules: LadderRules) -> Plan:
    reason = f"{step.change}, because of {finding.failure}"
    settings = {name: Setting(value, "ladder", reason) for name, value in step.settings.items()}
    env = {name: Setting(value, "ladder", reason) for name, value in step.env.items()}
    of_memory = finding.failure in MEMORY_FAILURES
    return replace(
        plan,
        settings={**plan.settings, **settings},
        env={**plan.env, **env},
        taken=(*plan.taken, rung.taken(step.value)),
        tried=(*plan.tried, plan.identity),
        others_mib=maxima(plan.others_mib, rules.others_mib) if of_memory else plan.others_mib,
    )
