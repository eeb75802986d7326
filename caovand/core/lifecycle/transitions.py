"""The state machine: how an event changes a snapshot, and which actions follow.

EDGES has one row for each meaningful (state, event): its handler, and the states that it may enter.
Any other pair changes nothing. Only Spawn creates a child, only STARTING requests it, and STARTING
is entered only once the previous child is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from caovand.core.lifecycle import ending, living, starting, waiting
from caovand.core.lifecycle.events import (
    ChildEvent,
    Exited,
    Failed,
    Gone,
    InspectionEvent,
    LifecycleEvent,
    Planned,
    Progressed,
    Proven,
    Reconfigured,
    Restart,
    Start,
    StartRefused,
    Stop,
    TimePassed,
    Unkillable,
)
from caovand.core.lifecycle.state import LifecycleRules, Snapshot, State, TransitionResult

_S = State
Transition = tuple[Callable[[Snapshot, Any, LifecycleRules], TransitionResult], Set[State]]

EDGES: Mapping[tuple[State, type[LifecycleEvent]], Transition] = {
    (_S.STOPPED, Start): (starting.start_afresh, {_S.STARTING}),
    (_S.STOPPED, Restart): (starting.start_afresh, {_S.STARTING}),
    (_S.STOPPED, Stop): (waiting.stop_without_child, {_S.STOPPED}),
    (_S.STARTING, Planned): (living.planned, {_S.STARTING, _S.RECYCLING}),
    (_S.STARTING, StartRefused): (living.refused, {_S.STARTING, _S.HOLD, _S.FAILED}),
    (_S.STARTING, Progressed): (living.progressed, {_S.STARTING}),
    (_S.STARTING, Proven): (living.proven, {_S.SERVING}),
    (_S.STARTING, Failed): (living.failed, {_S.RECYCLING}),
    (_S.STARTING, Exited): (living.failed, {_S.RECYCLING}),
    (_S.STARTING, TimePassed): (living.overdue, {_S.STARTING, _S.RECYCLING, _S.HOLD}),
    (_S.STARTING, Restart): (living.restart, {_S.RECYCLING}),
    (_S.STARTING, Reconfigured): (living.replan, {_S.STARTING}),
    (_S.STARTING, Stop): (ending.stop, {_S.STOPPING}),
    (_S.SERVING, Planned): (living.planned, {_S.SERVING, _S.RECYCLING}),
    (_S.SERVING, StartRefused): (living.refused, {_S.SERVING}),
    (_S.SERVING, Failed): (living.failed, {_S.RECYCLING}),
    (_S.SERVING, Exited): (living.failed, {_S.RECYCLING}),
    (_S.SERVING, Start): (living.retry_refused, {_S.SERVING}),
    (_S.SERVING, TimePassed): (living.stable, {_S.SERVING}),
    (_S.SERVING, Restart): (living.restart, {_S.RECYCLING}),
    (_S.SERVING, Reconfigured): (living.replan, {_S.SERVING}),
    (_S.SERVING, Stop): (ending.stop, {_S.STOPPING}),
    (_S.RECYCLING, Gone): (ending.gone, {_S.STARTING, _S.BACKOFF, _S.HOLD, _S.FAILED}),
    (_S.RECYCLING, Unkillable): (ending.unkillable, {_S.HOLD}),
    (_S.RECYCLING, TimePassed): (ending.recycling_overdue, {_S.RECYCLING, _S.HOLD}),
    (_S.RECYCLING, Start): (ending.start_when_gone, {_S.RECYCLING}),
    (_S.RECYCLING, Restart): (ending.start_when_gone, {_S.RECYCLING}),
    (_S.RECYCLING, Reconfigured): (ending.start_when_gone_reconfigured, {_S.RECYCLING}),
    (_S.RECYCLING, Stop): (ending.stop, {_S.STOPPING}),
    (_S.BACKOFF, TimePassed): (starting.start_after_backoff, {_S.BACKOFF, _S.STARTING}),
    (_S.BACKOFF, Start): (starting.start_afresh, {_S.STARTING}),
    (_S.BACKOFF, Restart): (starting.start_afresh, {_S.STARTING}),
    (_S.BACKOFF, Reconfigured): (waiting.start_if_changed, {_S.BACKOFF, _S.STARTING}),
    (_S.BACKOFF, Stop): (waiting.stop_without_child, {_S.STOPPED}),
    (_S.HOLD, TimePassed): (waiting.recheck, {_S.HOLD}),
    (_S.HOLD, Planned): (waiting.start_from_hold, {_S.STARTING}),
    (_S.HOLD, StartRefused): (starting.wait_refused, {_S.STARTING, _S.HOLD, _S.FAILED}),
    (_S.HOLD, Start): (starting.start_afresh, {_S.STARTING}),
    (_S.HOLD, Restart): (starting.start_afresh, {_S.STARTING}),
    (_S.HOLD, Reconfigured): (starting.start_reconfigured, {_S.STARTING}),
    (_S.HOLD, Stop): (waiting.stop_without_child, {_S.STOPPED}),
    (_S.FAILED, Start): (starting.start_afresh, {_S.STARTING}),
    (_S.FAILED, Restart): (starting.start_afresh, {_S.STARTING}),
    (_S.FAILED, Reconfigured): (starting.start_reconfigured, {_S.STARTING}),
    (_S.FAILED, Stop): (waiting.stop_without_child, {_S.STOPPED}),
    (_S.STOPPING, Gone): (ending.stopped, {_S.STOPPED}),
    (_S.STOPPING, Unkillable): (ending.stopped_unkillable, {_S.STOPPED}),
    (_S.STOPPING, TimePassed): (ending.stopping_overdue, {_S.STOPPING, _S.STOPPED}),
    (_S.STOPPING, Start): (ending.start_after_stop, {_S.RECYCLING, _S.STOPPING}),
    (_S.STOPPING, Restart): (ending.start_after_stop, {_S.RECYCLING, _S.STOPPING}),
    (_S.STOPPING, Stop): (ending.stop_now, {_S.STOPPING}),
}


def step(snapshot: Snapshot, event: LifecycleEvent, rules: LifecycleRules) -> TransitionResult:
    """Apply `event` to `snapshot`; return the new snapshot and the actions.

    Late events of another child or inspection, and ticks before the deadline, are dropped.
    """
    if isinstance(event, ChildEvent) and event.generation != snapshot.generation:
        return snapshot, ()
    if isinstance(event, InspectionEvent) and event.inspection != snapshot.inspection:
        return snapshot, ()
    if isinstance(event, TimePassed) and not snapshot.is_due(event.at):
        return snapshot, ()
    row = EDGES.get((snapshot.state, type(event)))
    return row[0](snapshot, event, rules) if row else (snapshot, ())
