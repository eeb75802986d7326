"""Decide about every request at the gateway. Pure: an event in, effects out.

Requests wait in a fair order (`fair`). When an engine dies, every request that it had not begun to
answer is a suspect: the gateway sends each again alone, and refuses one that crashes an engine a
second time. A draining engine gets no new requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from caovand.core.gateway.events import (
    Arrived,
    Begun,
    Closing,
    Complete,
    Done,
    Effect,
    End,
    EngineIs,
    EngineState,
    Event,
    Faulted,
    Forward,
    Grew,
    Healthy,
    Left,
    Lost,
    Recall,
    Refuse,
    Release,
    RequestEvent,
    Spent,
    Stage,
    Tick,
    Unsent,
    Why,
)
from caovand.core.gateway.fair import Lane
from caovand.core.gateway.pace import Pace
from caovand.core.gateway.requests import GatewayRules, OpenRequest
from caovand.core.gateway.suspects import Suspects
from caovand.core.gateway.waiting import WaitingRequests

CONFIRM_S = 5.0
"""The time the daemon has to report the death of an engine that broke a connection or faulted."""
RECONNECT_S = 1.0
"""The pause after a failed connection before the engine gets requests again."""
MAX_ATTEMPTS = 3
RETRY_S = 30
"""The Retry-After if nobody knows when an engine will serve."""


class Policy:
    """The requests of one engine's clients; only `take` changes its state."""

    def __init__(self, rules: GatewayRules) -> None:
        self.rules = rules
        self.engine = EngineIs(at=0.0, state=EngineState.STARTING, generation=0)
        self._requests: dict[int, OpenRequest] = {}
        self._waiting = WaitingRequests()
        self._at_engine: dict[int, None] = {}
        self._queued_by_lane = Counter[Lane]()  # requests of each lane that no engine works on
        self._alone: int | None = None
        self._doubtful_until = -math.inf
        self._closing = False
        self._bytes = 0
        self._pace = Pace()
        self._known = Suspects()
        self._effects: list[Effect] = []

    @property
    def waiting(self) -> int:
        """The number of requests that wait for an engine."""
        return len(self._waiting)

    @property
    def at_engine(self) -> int:
        """The number of requests at the engine."""
        return len(self._at_engine)

    def stage(self, number: int) -> Stage | None:
        """The stage of a request; None if it has ended."""
        request = self._requests.get(number)
        return request.stage if request else None

    def take(self, event: Event) -> tuple[Effect, ...]:
        """Apply an event; return its effects. Late events of ended requests change nothing."""
        self._effects = []
        HANDLERS.get(type(event), Policy._move)(self, event)
        self._pump(event.at)
        return tuple(self._effects)

    def _arrive(self, event: Arrived) -> None:
        waits_s, most = self.expected_wait_s(), self.rules.max_waiting
        if self._closing:
            self._refuse(event.number, Why.CLOSING)
        elif self.engine.state is EngineState.GONE or self._ends_for_good:
            self._refuse(event.number, Why.NO_ENGINE)
        elif len(self._requests) - len(self._at_engine) >= most:
            self._refuse(event.number, Why.QUEUE_FULL)
        elif event.lane.key and self._queued_by_lane[event.lane] >= max(most // 2, 1):
            self._refuse(event.number, Why.KEY_FULL)
        elif self._bytes + event.size > self.rules.max_bytes:
            self._refuse(event.number, Why.BYTES_FULL)
        elif waits_s is not None and waits_s > self.rules.hold_s:
            self._refuse(event.number, Why.WOULD_WAIT)
        else:
            request = OpenRequest(event.number, event.size, event.at, event.lane)
            self._requests[event.number] = request
            self._bytes += event.size
            self._queued_by_lane[event.lane] += 1

    def _move(self, event: RequestEvent) -> None:
        request = self._requests.get(event.number)
        if request is None:
            return
        if isinstance(event, Left):
            self._remove(request)
        elif not request.broken and (move := MOVES.get((request.stage, type(event)))):
            move(self, request, event)

    def _close(self, event: Closing) -> None:
        self._closing = True
        for request in [*self._requests.values()]:
            self._end(request, Why.CLOSING)

    def _grow(self, request: OpenRequest, event: Grew) -> None:
        self._bytes += event.size - request.size
        request.size = event.size
        if self._bytes > self.rules.max_bytes:
            self._end(request, Why.BYTES_FULL)

    def _complete(self, request: OpenRequest, event: Complete) -> None:
        request.digest, request.tokens = event.digest, event.tokens
        if self._known.is_killer(event.digest, event.at):
            self._end(request, Why.KILLER)
        elif self.engine.state is EngineState.GONE or self._ends_for_good:
            self._end(request, Why.NO_ENGINE)
        else:
            request.suspect = self._known.is_suspect(event.digest, event.at)
            self._wait_again(request, event.at)

    def _begin(self, request: OpenRequest, event: Begun) -> None:
        request.stage, request.since = Stage.BEGUN, event.at
        self._bytes -= request.size  # nobody needs its body any more
        request.size = 0

    def _answered(self, request: OpenRequest, event: Done) -> None:
        self._pace.answered(event.at - request.forwarded_at)
        if self._alone == request.number:
            self._known.clear(request.digest)
        self._remove(request)

    def _reconnect(self, request: OpenRequest, event: Unsent) -> None:
        self._doubtful_until = event.at + RECONNECT_S
        self._wait_again(request, event.at)

    def _cut_off(self, request: OpenRequest, event: Lost) -> None:
        self._known.cut_off(request.digest, event.at, alone=self._alone == request.number)
        self._end(request, Why.ENGINE_ENDED)

    def _break(self, request: OpenRequest, event: Lost | Faulted) -> None:
        if self.engine.state is EngineState.DRAINING:
            self._leave_to_next(request, event.at)  # this one would drain in vain
            return
        request.broken, request.since = type(event), event.at
        if isinstance(event, Lost):
            self._doubtful_until = event.at + CONFIRM_S

    def _wait_again(self, request: OpenRequest, at: float) -> None:
        if request.number in self._at_engine:
            self._waiting.charge(request.lane, -request.tokens)
        self._leave_engine(request)
        request.stage, request.since, request.broken = Stage.WAITING, at, None
        self._waiting.add(request)

    def _leave_engine(self, request: OpenRequest) -> None:
        if request.number in self._at_engine:
            del self._at_engine[request.number]
            self._queued_by_lane[request.lane] += 1
        if self._alone == request.number:
            self._alone = None

    def _remove(self, request: OpenRequest) -> None:
        self._leave_engine(request)
        if request.stage is Stage.WAITING:
            self._waiting.remove(request)
        self._bytes -= request.size
        self._queued_by_lane[request.lane] -= 1
        del self._requests[request.number]

    def _refuse(self, number: int, why: Why, how: type[Refuse] | type[End] = Refuse) -> None:
        after_s = None if why is Why.KILLER else self.retry_after_s()
        self._effects.append(how(number, why, after_s))

    def _end(self, request: OpenRequest, why: Why) -> None:
        """End a request with an error, sent within its answer if that has begun."""
        self._remove(request)
        self._refuse(request.number, why, End if request.stage is Stage.BEGUN else Refuse)

    @property
    def _ends_for_good(self) -> bool:
        return self.engine.state is EngineState.DRAINING and not self.engine.returns

    def _hear(self, event: EngineIs) -> None:
        before, self.engine = self.engine, event
        lives = event.state in (EngineState.SERVING, EngineState.DRAINING)
        if not lives or event.generation != before.generation:
            self._engine_ended(event.at, planned=before.state is EngineState.DRAINING)
            self._doubtful_until = -math.inf
        elif event.state is EngineState.DRAINING:
            for request in [self._requests[number] for number in self._at_engine]:
                if request.broken:
                    self._leave_to_next(request, event.at)
        if event.state is EngineState.GONE or self._ends_for_good:
            for number in self._waiting:
                self._end(self._requests[number], Why.NO_ENGINE)

    def _engine_ended(self, at: float, *, planned: bool) -> None:
        self._known.engine_ended(at, planned=planned)
        alone = self._alone
        for request in [self._requests[number] for number in self._at_engine]:
            if planned:
                self._leave_to_next(request, at)
                continue
            why = Why.KILLER if request.number == alone else Why.ENGINE_ENDED
            self._known.add(request.digest, at, killer=why is Why.KILLER)
            if request.stage is Stage.BEGUN:
                self._end(request, why)
            else:
                self._blame(request, at, why)
        for number in self._waiting:
            self._recognise(self._requests[number], at)

    def _leave_to_next(self, request: OpenRequest, at: float) -> None:
        """Requeue the requests without an answer yet: the engine stops as planned."""
        if request.stage is Stage.BEGUN:
            self._end(request, Why.ENGINE_ENDED)
        else:
            self._again(request, at)

    def _recognise(self, request: OpenRequest, at: float) -> None:
        """Suspect a waiting request, or end a killer, if an equal one just crashed an engine."""
        if self._known.is_killer(request.digest, at):
            self._end(request, Why.KILLER)
        elif not request.suspect and self._known.is_suspect(request.digest, at):
            self._waiting.suspect(request)

    def _blame(self, request: OpenRequest, at: float, why: Why) -> None:
        """Try a request alone after an attempt that broke; refuse a killer, and the last try."""
        request.tries += 1
        if why is Why.KILLER or request.tries >= MAX_ATTEMPTS:
            self._end(request, why)
            return
        request.suspect = True
        self._again(request, at)

    def _again(self, request: OpenRequest, at: float) -> None:
        self._wait_again(request, at)
        self._effects.append(Recall(request.number))

    def _tick(self, event: Tick) -> None:
        for number in self._waiting:
            request = self._requests[number]
            if event.at - request.since >= self.rules.hold_s:
                self._end(request, Why.TOO_LONG)
        self._known.forget(event.at)
        for request in [self._requests[number] for number in self._at_engine]:
            if request.broken is Lost and event.at - request.since >= CONFIRM_S:
                self._blame(request, event.at, Why.LOST)
        if self._alone is not None:
            request = self._requests[self._alone]
            if not request.broken and event.at - request.since >= request.max_alone_s:
                self._alone, request.suspect = None, False
                self._known.clear(request.digest)

    def unconfirmed(self, at: float) -> list[OpenRequest]:
        """Requests with a fault for which the daemon has had time to report the engine's death."""
        requests = [self._requests[number] for number in self._at_engine]
        return [r for r in requests if r.broken is Faulted and at - r.since >= CONFIRM_S]

    def _release(self, event: Healthy) -> None:
        for request in self.unconfirmed(event.at):
            self._remove(request)
            self._effects.append(Release(request.number))

    def _pump(self, at: float) -> None:
        """Forward the requests that may go to the engine now."""
        engine = self.engine
        while engine.state is EngineState.SERVING and at >= self._doubtful_until:
            if self._alone is not None or (number := self._next(at)) is None:
                return
            request = self._requests[number]
            self._waiting.take(request)
            self._alone = number if request.suspect else None
            request.stage, request.since, request.forwarded_at = Stage.FORWARDED, at, at
            self._at_engine[number] = None
            self._queued_by_lane[request.lane] -= 1
            self._effects.append(Forward(number, engine.generation))

    def _next(self, at: float) -> int | None:
        """The request whose turn it is, if any."""
        if (first := self._waiting.first_suspect) is not None:
            if not self._at_engine:
                return first
            if at - self._requests[first].since >= self.rules.patience_s:
                return None  # the engine becomes free for it
        free = self.engine.at_once is None or len(self._at_engine) < self.engine.at_once
        return self._waiting.first() if free else None

    def expected_wait_s(self) -> float | None:
        """Expected wait in seconds of a request that arrives now; None if unknown."""
        engine = self.engine
        if engine.state is not EngineState.SERVING:
            return engine.expected_s
        return self._pace.wait_s(self.waiting + len(self._at_engine), engine.at_once)

    def retry_after_s(self) -> int:
        """The Retry-After for a refused client, in whole seconds."""
        waits_s = self.expected_wait_s()
        return RETRY_S if waits_s is None else max(math.ceil(waits_s), 1)


HANDLERS: Mapping[type[Event], Callable[[Policy, Any], None]] = {
    EngineIs: Policy._hear,
    Arrived: Policy._arrive,
    Spent: lambda policy, event: policy._waiting.charge(event.lane, event.tokens),
    Tick: Policy._tick,
    Healthy: Policy._release,
    Closing: Policy._close,
}
"""The effect of each event that does not depend on a request's stage; MOVES has the others."""
MOVES: Mapping[tuple[Stage, type[RequestEvent]], Callable[[Policy, OpenRequest, Any], None]] = {
    (Stage.READING, Grew): Policy._grow,
    (Stage.READING, Complete): Policy._complete,
    (Stage.FORWARDED, Begun): Policy._begin,
    (Stage.FORWARDED, Done): Policy._answered,
    (Stage.FORWARDED, Unsent): Policy._reconnect,
    (Stage.FORWARDED, Lost): Policy._break,
    (Stage.FORWARDED, Faulted): Policy._break,
    (Stage.BEGUN, Done): Policy._answered,
    (Stage.BEGUN, Unsent): Policy._reconnect,
    (Stage.BEGUN, Lost): Policy._cut_off,
    (Stage.BEGUN, Faulted): Policy._break,
}
"""The effect of each event at a request's stage; all others belong to an abandoned attempt."""
