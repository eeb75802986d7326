"""Events of the state machine, and the actions with which it responds.

Events of a child carry its generation, answers to an inspection its number; late ones are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caovand.core.healing.failure import Finding
from caovand.core.plan import Plan


@dataclass(frozen=True, kw_only=True)
class LifecycleEvent:
    """An event at `at` (monotonic seconds); the caller draws `chance` from [0, 1)."""

    at: float
    chance: float = 0.5


@dataclass(frozen=True, kw_only=True)
class ChildEvent(LifecycleEvent):
    """An event of the child of `generation`."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class InspectionEvent(LifecycleEvent):
    """The answer to the Inspect action number `inspection`."""

    inspection: int


@dataclass(frozen=True, kw_only=True)
class Start(LifecycleEvent):
    """The operator requests the engine; earlier failures no longer count."""


@dataclass(frozen=True, kw_only=True)
class Restart(LifecycleEvent):
    """The operator or the cluster's head requests a new child, or a better plan may fit."""

    reason: str = "restart requested"
    by: Literal["operator", "head", "plan"] = "operator"


@dataclass(frozen=True, kw_only=True)
class Reconfigured(LifecycleEvent):
    """Configuration or mode were reread; only a changed plan restarts the engine.

    `changed` is False if both are the same as before.
    """

    changed: bool = True


@dataclass(frozen=True, kw_only=True)
class Stop(LifecycleEvent):
    """The operator stops the engine; with `quit` the daemon also exits."""

    quit: bool = False


@dataclass(frozen=True, kw_only=True)
class TimePassed(LifecycleEvent):
    """Time passed."""


@dataclass(frozen=True, kw_only=True)
class Planned(InspectionEvent):
    """The host was inspected and `plan` made."""

    plan: Plan


@dataclass(frozen=True, kw_only=True)
class StartRefused(InspectionEvent):
    """No plan can be made or started; waiting can help only with `hold`."""

    finding: Finding
    hold: bool


@dataclass(frozen=True, kw_only=True)
class Progressed(ChildEvent):
    """The starting child progressed; `heartbeat` lines show life but do not extend the deadline."""

    phase: str
    progress: float | None = None
    detail: str = ""
    heartbeat: bool = False


@dataclass(frozen=True, kw_only=True)
class Proven(ChildEvent):
    """The child answered real completions."""


@dataclass(frozen=True, kw_only=True)
class Failed(ChildEvent):
    """The child lives but is unusable: hung, stalled or not answering."""

    finding: Finding


@dataclass(frozen=True, kw_only=True)
class Exited(ChildEvent):
    """The child's first process exited, with any status."""

    finding: Finding


@dataclass(frozen=True, kw_only=True)
class Gone(ChildEvent):
    """The child is completely gone; this is proven."""


@dataclass(frozen=True, kw_only=True)
class Unkillable(ChildEvent):
    """Processes of the child outlived KILL."""

    finding: Finding


@dataclass(frozen=True)
class Inspect:
    """Inspect host and model, and make a plan unless `plan` is one; reply with `number`."""

    number: int
    plan: Plan | None


@dataclass(frozen=True)
class Spawn:
    """Start the one child."""

    generation: int
    plan: Plan


@dataclass(frozen=True)
class EndChild:
    """Stop the child and all processes it left: TERM first, KILL after `grace_s`; reply Gone.

    Before that, the gateway's answers in progress get `drain_s` to finish.
    """

    generation: int
    grace_s: float
    drain_s: float = 0.0


@dataclass(frozen=True)
class Quit:
    """The daemon may exit."""


Action = Inspect | Spawn | EndChild | Quit
