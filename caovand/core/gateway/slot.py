"""Translate a slot's state into the engine state that the gateway knows."""

from __future__ import annotations

from caovand.core.gateway.events import EngineState
from caovand.core.lifecycle.state import Snapshot, State

_EXPECTED = {State.STARTING, State.BACKOFF, State.HOLD}


def engine_of(s: Snapshot, *, drains: bool) -> EngineState:
    """The engine as the gateway sees it; with `drains` the living one finishes its answers."""
    if s.state is State.SERVING:
        return EngineState.SERVING
    if s.ending is not None and drains:
        return EngineState.DRAINING
    return EngineState.STARTING if s.state in _EXPECTED or will_return(s) else EngineState.GONE


def will_return(s: Snapshot) -> bool:
    """Whether another engine follows the one that is being stopped."""
    return s.ending is not None and s.ending.after_stop in ("start", "backoff", "hold")
