"""Events at the gateway, and the effects with which its policy responds.

A request's life: READING its body, WAITING for an engine, FORWARDED to one, BEGUN with the first
byte of its answer. Until then it may wait again and be sent again, but never afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from caovand.core.gateway.fair import SHARED_LANE, Lane


class Stage(Enum):
    """The stage of a request."""

    READING = "reading"
    WAITING = "waiting"
    FORWARDED = "forwarded"
    BEGUN = "begun"


class EngineState(str, Enum):
    """The state of an engine, as the daemon reports it.

    STARTING: no engine serves, but one is expected. DRAINING: the engine stops as planned, and
    answers in progress may finish. GONE: no engine serves, and none will until someone acts.
    """

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    GONE = "gone"


class Why(Enum):
    """The reason why a request ends without a complete answer from an engine."""

    NO_ENGINE = "no engine"
    TOO_LONG = "waited too long"
    WOULD_WAIT = "would wait too long"
    QUEUE_FULL = "queue full"
    KEY_FULL = "key full"
    BYTES_FULL = "bytes full"
    ENGINE_ENDED = "the engine exited"
    KILLER = "killer"
    LOST = "the engine closed the connection"
    CLOSING = "the gateway is stopping"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened at `at`, in monotonic seconds."""

    at: float


@dataclass(frozen=True, kw_only=True)
class RequestEvent(Event):
    """An event of the request `number`; numbers rise in the order of arrival."""

    number: int


@dataclass(frozen=True, kw_only=True)
class EngineIs(Event):
    """The daemon reports its engine's state; each engine has a `generation` of its own.

    `at_once` is how many requests it answers at a time, None if that is unknown; `expected_s` how
    long a start is expected to take from now on. `returns` is whether another engine follows one
    that drains.
    """

    state: EngineState
    generation: int
    at_once: int | None = None
    expected_s: float | None = None
    returns: bool = True


@dataclass(frozen=True, kw_only=True)
class Healthy(Event):
    """The engine has answered a health check."""


@dataclass(frozen=True, kw_only=True)
class Arrived(RequestEvent):
    """A request's head has arrived; it announces `size` bytes of body."""

    size: int = 0
    lane: Lane = SHARED_LANE


@dataclass(frozen=True, kw_only=True)
class Grew(RequestEvent):
    """The body is longer than announced: `size` bytes so far."""

    size: int


@dataclass(frozen=True, kw_only=True)
class Complete(RequestEvent):
    """The body has arrived; `digest` identifies it if the same request is sent again. `tokens` is
    its expected cost.
    """

    digest: bytes
    tokens: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Begun(RequestEvent):
    """The first byte of the answer has arrived."""


@dataclass(frozen=True, kw_only=True)
class Done(RequestEvent):
    """The engine's answer is complete."""


@dataclass(frozen=True, kw_only=True)
class Unsent(RequestEvent):
    """The connection to the engine failed, so the engine has not seen the request."""


@dataclass(frozen=True, kw_only=True)
class Lost(RequestEvent):
    """The engine closed the connection before the answer was complete."""


@dataclass(frozen=True, kw_only=True)
class Faulted(RequestEvent):
    """The engine answered, or ended a begun answer, with a fault that is not passed on yet."""


@dataclass(frozen=True, kw_only=True)
class Left(RequestEvent):
    """The client is gone, or the request was answered without an engine."""


@dataclass(frozen=True, kw_only=True)
class Spent(Event):
    """A request in `lane` has cost `tokens` more than estimated."""

    lane: Lane
    tokens: float


@dataclass(frozen=True, kw_only=True)
class Closing(Event):
    """The gateway is stopping."""


@dataclass(frozen=True, kw_only=True)
class Tick(Event):
    """Time passed."""


@dataclass(frozen=True)
class Effect:
    """An action on the request `number`."""

    number: int


@dataclass(frozen=True)
class Forward(Effect):
    """Send it to the engine of `generation`."""

    generation: int


@dataclass(frozen=True)
class Recall(Effect):
    """Abandon the attempt at an engine that exited; the request waits again."""


@dataclass(frozen=True)
class Release(Effect):
    """Pass on the engine's fault: the engine lives, so the fault is the request's."""


@dataclass(frozen=True)
class Refuse(Effect):
    """Answer with an error; no part of an answer has been sent."""

    why: Why
    retry_after_s: int | None = None


@dataclass(frozen=True)
class End(Effect):
    """End the begun answer with the protocol's own error."""

    why: Why
    retry_after_s: int | None = None
