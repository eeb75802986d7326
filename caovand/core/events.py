"""What happens to the state machine, and what it asks for in answer.

Events of a child carry its generation, answers to an inspection its number: late ones are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from caovand.core.failure import Finding
from caovand.core.plan import Plan


@dataclass(frozen=True)
class Event:
    """Something happened at `at` (monotonic seconds); `chance` in [0, 1) is drawn by the caller."""

    at: float
    chance: float = 0.5


@dataclass(frozen=True)
class OfChild(Event):
    """An event of the child of `generation`."""

    generation: int = 0


@dataclass(frozen=True)
class OfInspection(Event):
    """The answer to the Inspect action number `inspection`."""

    inspection: int = 0


@dataclass(frozen=True)
class Start(Event):
    """The operator wants the engine; failures are forgotten."""


@dataclass(frozen=True)
class Restart(Event):
    """The operator wants the engine started anew."""

    reason: str = "restart asked for"


@dataclass(frozen=True)
class Reconfigured(Event):
    """Configuration or mode were read; only a changed plan restarts the engine.

    `changed` is False where they say what they said before.
    """

    changed: bool = True


@dataclass(frozen=True)
class Stop(Event):
    """Nothing is wanted any more; with `quit` the daemon ends too."""

    quit: bool = False


@dataclass(frozen=True)
class Tick(Event):
    """Time passed."""


@dataclass(frozen=True)
class Planned(OfInspection):
    """The machine was inspected and `plan` made."""

    plan: Plan | None = None


@dataclass(frozen=True)
class Refused(OfInspection):
    """No plan can be made or started: `hold` where waiting may help, else the operator must act."""

    finding: Finding | None = None
    hold: bool = False


@dataclass(frozen=True)
class Progressed(OfChild):
    """The starting child got further; `heartbeat` lines show life but move no deadline."""

    phase: str = ""
    progress: float | None = None
    detail: str = ""
    heartbeat: bool = False


@dataclass(frozen=True)
class Proven(OfChild):
    """The child answered real completions."""


@dataclass(frozen=True)
class Failed(OfChild):
    """The child lives but is of no use: hung, stalled, not answering."""

    finding: Finding | None = None


@dataclass(frozen=True)
class Exited(OfChild):
    """The child's first process ended, with any status."""

    finding: Finding | None = None


@dataclass(frozen=True)
class Gone(OfChild):
    """It is proven that nothing of the child is left."""


@dataclass(frozen=True)
class Unkillable(OfChild):
    """Processes of the child outlived KILL."""

    finding: Finding | None = None


@dataclass(frozen=True)
class Inspect:
    """Look at machine and model, and make a plan unless `plan` is given; answer with `number`."""

    number: int
    plan: Plan | None


@dataclass(frozen=True)
class Spawn:
    """Start the one child."""

    generation: int
    plan: Plan


@dataclass(frozen=True)
class End:
    """End the child and everything it left; TERM first, KILL after `grace_s`; answer Gone."""

    generation: int
    grace_s: float


@dataclass(frozen=True)
class Quit:
    """The daemon may exit."""


Action = Inspect | Spawn | End | Quit
