"""What a failure calls for: the same plan again, a more modest one, waiting, or giving up.

Two tables. REACTIONS says for each failure how patient to be; CURES which rungs help against it,
best first, by phase where that matters. Remedies point in opposite directions, so no rung is tried
that is not in the failure's row. A rung's step is taken once at most, and every rung ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from caovand.core.config import PolicySection
from caovand.core.failure import Failure, Finding
from caovand.core.flags import option
from caovand.core.neighbours import Used, most
from caovand.core.plan import Plan, Setting
from caovand.core.rung import Rung, Step
from caovand.core.rungs import BY_NAME, RUNGS

# fatal: only the operator can help. hold: wait for the world, for ever. wait: the same, but after
# `patience` failures take a rung. retry: the same plan again, always. restart: the same plan again
# `patience` times, then a rung. rung: a rung at once.
Kind = Literal["fatal", "hold", "wait", "retry", "restart", "rung"]
Verdict = Literal["again", "lower", "hold", "fail"]


@dataclass(frozen=True)
class Reaction:
    """How to answer a failure, and how often before a rung is taken."""

    kind: Kind
    patience: int = 0


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
    "gpu-lost": Reaction("hold"),
    "gpu-absent": Reaction("hold"),
    "host-oom": Reaction("restart", 1),
    "compile-cache-stale": Reaction("rung"),
    "shared-memory-limit": Reaction("rung"),
    "jit-toolchain": Reaction("rung"),
    "backend-unsupported": Reaction("rung"),
    "bad-arguments": Reaction("fatal"),
    "model-missing": Reaction("fatal"),
    "network": Reaction("retry"),
    "access-denied": Reaction("fatal"),
    "port-busy": Reaction("hold"),
    "plugin-error": Reaction("rung"),
    "compile-failed": Reaction("rung"),
    "engine-died": Reaction("restart", 1),
    "start-stall": Reaction("restart", 1),
    "hang": Reaction("restart", 1),
    "draft-collapse": Reaction("restart", 1),
    "unknown": Reaction("restart", 2),
}

# An engine that was killed says nothing against its plan; the third time in a row something may.
MORE_PATIENCE = 2

ANY = ""  # a row for every phase that has none of its own

_CRASH = ("mtp-safe", "plugin-off", "mtp-off", "piecewise", "eager")
_JIT = ("sampler-plain", "experts", "gdn", "attention", "eager")
_PEAK = ("batch", "sequences", "mtp", "offload")

CURES: Mapping[tuple[Failure, str], tuple[str, ...]] = {
    ("device-oom-load", ANY): ("mtp-off", "offload"),
    ("kv-cache-none", ANY): (
        "gmu-up", "batch", "mtp", "kv-dtype", "sequences", "eager", "offload", "kv-memory",
    ),
    ("kv-cache-short", ANY): (
        "context", "gmu-up", "kv-memory", "kv-dtype", "batch", "mtp", "eager",
    ),
    ("vram-busy", ANY): ("share",),
    ("device-oom-capture", ANY): ("gmu-down", "graph-sizes", "mtp", "eager"),
    ("device-oom-capture", "profile"): _PEAK,
    ("device-oom-capture", "compile"): _PEAK,
    ("device-oom-run", ANY): ("gmu-down", "batch", "mtp", "sequences", "eager"),
    ("sampler-oom", ANY): ("sequences", "gmu-down", "batch"),
    ("illegal-access", ANY): _CRASH,
    ("launch-failure", ANY): _CRASH,
    ("launch-failure", "capture"): ("piecewise", "eager", "plugin-off", "mtp-off"),
    ("collective-timeout", ANY): ("p2p-off", "all-reduce-off", "eager"),
    ("collective-timeout", "capture"): ("all-reduce-off", "p2p-off", "eager"),
    ("gpu-lost", ANY): (),
    ("gpu-absent", ANY): (),
    ("host-oom", ANY): ("jobs", "kv-memory-less", "sequences", "mtp-off"),
    ("compile-cache-stale", ANY): ("fresh-cache", "no-compile-cache", "eager"),
    ("shared-memory-limit", ANY): ("attention", "gdn", "plugin-off", "eager"),
    ("jit-toolchain", ANY): _JIT,
    # Mostly the compiler of compiled steps; kernels may be built in that phase, too.
    ("jit-toolchain", "compile"): ("eager", *_JIT[:-1]),
    ("backend-unsupported", ANY): ("half", "kv-dtype-plain", "attention"),
    ("bad-arguments", ANY): (),
    ("model-missing", ANY): (),
    ("network", ANY): (),
    ("access-denied", ANY): (),
    ("port-busy", ANY): (),
    ("plugin-error", ANY): ("plugin-off",),
    ("compile-failed", ANY): ("fresh-cache", "eager", "plugin-off"),
    ("engine-died", ANY): (*_CRASH[:3], "prefix-caching-off", *_CRASH[3:]),
    ("start-stall", ANY): ("mtp-safe", "plugin-off", "mtp-off", "eager"),
    # What reads files waits for a disk or the network, which no setting makes faster.
    ("start-stall", "resolve"): (),
    ("start-stall", "load"): ("plugin-off",),
    ("start-stall", "drafter"): ("mtp-off", "plugin-off"),
    ("start-stall", "engine"): ("p2p-off", "all-reduce-off"),
    ("start-stall", "compile"): ("fresh-cache", "eager"),
    ("start-stall", "capture"): ("all-reduce-off", "piecewise", "eager"),
    ("hang", ANY): (*_CRASH[:-1], "p2p-off", "all-reduce-off", *_CRASH[-1:]),
    ("draft-collapse", ANY): ("piecewise", "mtp-off"),
    ("unknown", ANY): ("plugin-off", "mtp-off", "eager"),
}  # fmt: skip

# What a traceback blames is given up before anything else.
BLAMED: Mapping[str, str] = {
    "plugin": "plugin-off", "prefix-cache": "prefix-caching-off", "drafter": "mtp-off",
}  # fmt: skip

# Signatures that tell the cause so well that the phase adds nothing: no graph is given up for nvcc.
WHATEVER_PHASE = frozenset({"jit.nvcc"})

# No plan needs less of the disk, whatever was read or written: nothing is given up for it.
DISK: Mapping[str, str] = {
    "disk.full": "waiting for room on the disk{of}: free some (`df -h`)",
    "disk.error": "waiting for the disk to be readable: `journalctl -k` tells of the fault",
}

# The name of a capture: a limit of the machine was reached. No plan is at fault.
LIMIT = "machine_limit"

# How much memory a card has for us is then the question.
OF_MEMORY: frozenset[Failure] = frozenset({
    "device-oom-load", "kv-cache-none", "kv-cache-short", "vram-busy", "device-oom-capture",
    "device-oom-run", "sampler-oom",
})  # fmt: skip

RUNG_NAMES = tuple(rung.name for rung in RUNGS)
_OF_THE_MOMENT = "share "


def no_conflicts(plan: Plan) -> Sequence[str]:
    """Where nothing is known of the machine."""
    return ()


@dataclass(frozen=True)
class LadderRules:
    """What the operator allows: no degrading at all, keys that stay, rungs that may be used.

    `conflicts` says what of a plan cannot run on this machine: no rung may lead there. `others_mib`
    is what other programs have of the cards.
    """

    strict: bool = False
    pinned: frozenset[str] = frozenset()
    allowed: frozenset[str] | None = None
    conflicts: Callable[[Plan], Sequence[str]] = no_conflicts
    others_mib: Used = field(default_factory=dict)


def rules_of(
    policy: PolicySection,
    conflicts: Callable[[Plan], Sequence[str]] = no_conflicts,
    others_mib: Used | None = None,
) -> LadderRules:
    """The ladder's rules in `[policy]`, and on this machine."""
    allowed = None if policy.ladder is None else frozenset(policy.ladder)
    pinned = frozenset(policy.pinned)
    return LadderRules(policy.strict, pinned, allowed, conflicts, others_mib or {})


@dataclass(frozen=True)
class Decision:
    """What to do, in a form for the machine and in words for people.

    `text` is the change, or why there is none; `obstacles` are remedies that exist and may not be
    used, each with what stands in its way. A failure that is `spared` says nothing against the
    plan and will pass: however often it comes, it is no reason to give up.
    """

    verdict: Verdict
    plan: Plan | None = None
    rung: str = ""
    text: str = ""
    obstacles: tuple[str, ...] = ()
    spared: bool = False


def decide(plan: Plan, finding: Finding, repeats: int, rules: LadderRules) -> Decision:
    """Answer a failure; `repeats` is how often this plan has met its kind, this time included.

    Those that were `spared` are not among them.
    """
    if finding.signature in DISK:
        where = finding.captures.get("path")
        text = DISK[finding.signature].format(of=f" of {where}" if where else "")
        return Decision("hold", text=text, spared=True)
    if LIMIT in finding.captures:
        return Decision("hold", text="the same plan again once the limit allows it", spared=True)
    reaction = REACTIONS[finding.failure]
    kind = reaction.kind
    if kind == "fatal":
        return Decision("fail", text="starting again cannot help")
    if kind == "hold":
        return Decision("hold", text="waiting until it is gone", spared=True)
    if kind == "retry":
        return Decision("again", text="waiting for the network: the same plan again", spared=True)
    if repeats <= reaction.patience + (MORE_PATIENCE if finding.maybe_killed else 0):
        verdict: Verdict = "hold" if kind == "wait" else "again"
        return Decision(verdict, text="the same plan again")
    taken, obstacles = _descend(plan, finding, rules)
    if taken:
        lower, change = taken
        return Decision("lower", lower, lower.rungs[-1], change, obstacles)
    text = "; ".join(obstacles) or "no rung of the ladder is left for it"
    if kind == "rung":
        return Decision("fail", text=text, obstacles=obstacles)
    return Decision("hold" if kind == "wait" else "again", text=text, obstacles=obstacles)


def cures(finding: Finding) -> tuple[Rung, ...]:
    """The rungs that help against a failure, best first."""
    phase = ANY if finding.signature in WHATEVER_PHASE else finding.phase
    names = CURES.get((finding.failure, phase), CURES[(finding.failure, ANY)])
    blamed = BLAMED.get(finding.captures.get("component", ""))
    if blamed and names:
        names = (blamed, *(name for name in names if name != blamed))
    return tuple(BY_NAME[name] for name in names)


def worth_remembering(plan: Plan) -> bool:
    """Whether a plan that served is good beyond this moment.

    A share of what others leave is planned anew from what is free. What else was given up for want
    of memory is remembered with what others had (`good_plan`).
    """
    return not any(rung.startswith(_OF_THE_MOMENT) for rung in plan.rungs)


def is_degraded(plan: Plan) -> bool:
    """Whether a rung was taken that costs more than time once."""
    taken = (BY_NAME.get(rung.partition(" ")[0]) for rung in plan.rungs)
    return any(rung is None or rung.degrades for rung in taken)


def _descend(
    plan: Plan, finding: Finding, rules: LadderRules
) -> tuple[tuple[Plan, str] | None, tuple[str, ...]]:
    """The plan of the first rung that may be used and has a step left, with its change in words;
    and what kept better ones from it.
    """
    obstacles: list[str] = []
    known = frozenset(rules.conflicts(plan))
    for rung in cures(finding):
        step = rung.step(plan, finding)
        if step is None or _label(rung, step) in plan.rungs:
            continue
        lower = _apply(plan, rung, step, finding, rules)
        if frozenset(rules.conflicts(lower)) - known and step.paired:
            step = step.paired
            lower = _apply(plan, rung, step, finding, rules)
        # Up and down again is where it failed before; what cannot run here is no way down.
        if lower.identity in plan.tried or frozenset(rules.conflicts(lower)) - known:
            continue
        obstacle = _obstacle(plan, rung, step, rules)
        if not obstacle:
            return (lower, step.change), tuple(obstacles)
        obstacles.append(f"cannot {rung.does} ({step.change}): {obstacle}")
    return None, tuple(obstacles)


def _obstacle(plan: Plan, rung: Rung, step: Step, rules: LadderRules) -> str:
    """What forbids this step of a rung, "" if nothing does."""
    if rules.strict and rung.degrades:
        return "[policy] strict is true"
    pinned = [key for key in (rung.key, *step.settings) if key in rules.pinned]
    if pinned:
        return f"[policy] pinned names {pinned[0]}"
    if rules.allowed is not None and rung.name not in rules.allowed:
        return f'[policy] ladder does not name "{rung.name}"'
    for name in dict.fromkeys((*rung.touches, *step.settings, *step.env)):
        if name in plan.verbatim:
            return f"{option(name)} is given verbatim; change or remove it"
        if name in plan.env and plan.env[name].origin == "user":
            return f"[engine] env sets {name}; change or remove it"
    return ""


def _label(rung: Rung, step: Step) -> str:
    return f"{rung.name} {step.value}".rstrip()


def _apply(plan: Plan, rung: Rung, step: Step, finding: Finding, rules: LadderRules) -> Plan:
    reason = f"{step.change}, because of {finding.failure}"
    settings = {name: Setting(value, "ladder", reason) for name, value in step.settings.items()}
    env = {name: Setting(value, "ladder", reason) for name, value in step.env.items()}
    of_memory = finding.failure in OF_MEMORY
    return replace(
        plan,
        settings={**plan.settings, **settings},
        env={**plan.env, **env},
        rungs=(*plan.rungs, _label(rung, step)),
        tried=(*plan.tried, plan.identity),
        others_mib=most(plan.others_mib, rules.others_mib) if of_memory else plan.others_mib,
    )
