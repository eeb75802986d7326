"""A slot's state machine as its components see it: they read its state, and report by events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from caovand.core.config.schema import Config, Mode
from caovand.core.engine.record import Engine
from caovand.core.lifecycle.events import LifecycleEvent
from caovand.core.lifecycle.state import Snapshot


class Machine(Protocol):
    """Only `apply` changes the snapshot; `notice` publishes texts for people."""

    @property
    def config(self) -> Config:
        """The configuration in effect."""

    @property
    def engine(self) -> Engine:
        """The kind of engine."""

    @property
    def snapshot(self) -> Snapshot:
        """The machine's current state."""

    @property
    def notice(self) -> Callable[..., None]:
        """Publish and log an event: its kind and text."""

    @property
    def mode(self) -> tuple[Mode, str]:
        """The mode in effect and its origin."""

    def apply(self, event: LifecycleEvent) -> None:
        """Apply an event."""

    def apply_operator_event(self, event: LifecycleEvent) -> None:
        """Apply an event that the operator requested."""


@dataclass(frozen=True)
class SlotHooks:
    """A slot's part in the life of its engine."""

    at_engine: Callable[[], int]
    """The number of the gateway's requests at the engine."""
    before_kill: Callable[[], Awaitable[None]]
    """Returns when the engine may be stopped."""
    hurry: Callable[[], bool]
    """Whether stopping must not wait for the cards' memory."""
    after_end: Callable[[bool], Awaitable[None]]
    """Returns when the next engine may start; receives whether processes survived SIGKILL."""
