"""What happens to the state machine, and the actions it answers with.

Events of a child carry its generation, answers to an inspection its number: late ones are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from caovand.core.healing.failure import Finding
from caovand.core.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened at `at` (monotonic seconds); `chance` in [0, 1) is drawn by the caller."""

    at: float
    chance: float = 0.5


@dataclass(frozen=True, kw_only=True)
class OfChild(Event):
    """An event of the child of `generation`."""

    generation: int


@dataclass(frozen=True, kw_only=True)
class OfInspection(Event):
    """The answer to the Inspect action number `inspection`."""

    inspection: int


@dataclass(frozen=True, kw_only=True)
class Start(Event):
    """The operator wants the engine; failures are forgotten."""


@dataclass(frozen=True, kw_only=True)
class Restart(Event):
    """The operator or the head of a cluster wants a new child, or a better plan may fit."""

    reason: str = "restart requested"
    by: Literal["operator", "head", "plan"] = "operator"


@dataclass(frozen=True, kw_only=True)
class Reconfigured(Event):
    """Configuration or mode were read; only a changed plan restarts the engine.

    `changed` is False where both are the same as before.
    """

    changed: bool = True


@dataclass(frozen=True, kw_only=True)
class Stop(Event):
    """The operator wants no engine; with `quit` the daemon ends too."""

    quit: bool = False


@dataclass(frozen=True, kw_only=True)
class Tick(Event):
    """Time passed."""


@dataclass(frozen=True, kw_only=True)
class Planned(OfInspection):
    """The host was inspected and `plan` made."""

    plan: Plan


@dataclass(frozen=True, kw_only=True)
class Refused(OfInspection):
    """No plan can be made or started: `hold` where waiting may help, else the operator must act."""

    finding: Finding
    hold: bool


@dataclass(frozen=True, kw_only=True)
class Progressed(OfChild):
    """The starting child got further; `heartbeat` lines show life but move no deadline."""

    phase: str
    progress: float | None = None
    detail: str = ""
    heartbeat: bool = False


@dataclass(frozen=True, kw_only=True)
class Proven(OfChild):
    """The child answered real completions."""


@dataclass(frozen=True, kw_only=True)
class Failed(OfChild):
    """The child lives but is of no use: hung, stalled, not answering."""

    finding: Finding


@dataclass(frozen=True, kw_only=True)
class Exited(OfChild):
    """The child's first process ended, with any status."""

    finding: Finding


@dataclass(frozen=True, kw_only=True)
class Gone(OfChild):
    """It is proven that nothing of the child is left."""


@dataclass(frozen=True, kw_only=True)
class Unkillable(OfChild):
    """Processes of the child outlived KILL."""

    finding: Finding


@dataclass(frozen=True)
class Inspect:
    """Inspect host and model, and make a plan unless `plan` is one; answer with `number`."""

    number: int
    plan: Plan | None


@dataclass(frozen=True)
class Spawn:
    """Start the one child."""

    generation: int
    plan: Plan


@dataclass(frozen=True)
class End:
    """End the child and everything it left; TERM first, KILL after `grace_s`; answer Gone.

    Before that the gateway's begun answers may take `drain_s` to finish.
    """

    generation: int
    grace_s: float
    drain_s: float = 0.0


@dataclass(frozen=True)
class Quit:
    """The daemon may exit."""


Action = Inspect | Spawn | End | Quit
