"""Why an engine stopped: the label under which the next start is counted."""

from __future__ import annotations

from caovand.core.healing.failure import FAILURES
from caovand.core.lifecycle.events import LifecycleEvent, Restart, Start, Stop
from caovand.core.lifecycle.state import Snapshot

OPERATOR = "operator"
HEAD = "head"
PLAN = "plan"
CAUSES = (*FAILURES, OPERATOR, HEAD, PLAN)


def cause_of_end(before: Snapshot, event: LifecycleEvent, after: Snapshot) -> str:
    """The cause of the engine's stop: a failure, the operator, the cluster's head or a new plan.

    "" if no engine stopped.
    """
    if not before.spawned or before.ending is not None or after.ending is None:
        return ""
    if isinstance(event, Restart):
        return event.by
    if isinstance(event, (Start, Stop)):
        return OPERATOR
    if after.finding is not None and after.finding is not before.finding:
        return after.finding.failure
    return PLAN
