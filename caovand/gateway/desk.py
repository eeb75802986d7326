"""Carry requests to the policy, and its decisions back to the task that serves each request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from caovand.adapters.system import wall_clock
from caovand.core.gateway import protocol
from caovand.core.gateway.events import (
    Arrived,
    Closing,
    Complete,
    Effect,
    End,
    Grew,
    Healthy,
    Left,
    Refuse,
    Release,
    RequestEvent,
    Spent,
    Tick,
    Why,
)
from caovand.core.gateway.fair import Lane
from caovand.core.gateway.keys import ClientKey
from caovand.core.gateway.policy import Policy
from caovand.core.gateway.prefixes import Prefixes
from caovand.core.gateway.protocol import Fault
from caovand.core.gateway.record import MAX_KEPT, Record, Totals
from caovand.core.gateway.usage import KeyUsage, Ledger, Quotas
from caovand.core.problem import Problem
from caovand.gateway.facts import Facts

TICK_S = 0.25
WRITE_S = 60.0  # for a client that does not read
MAX_REPORTS = 8  # of at most one line to the daemon


class Refused(Exception):
    """The request ends here with an error."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


class Ticket:
    """One request at the desk; `shape` describes it without its text.

    `aborted` says that the attempt at an engine was aborted. `writing_since` is the time since
    which a write to the client has been blocked.
    """

    def __init__(
        self, number: int, lane: Lane, record: Record, transport: asyncio.Transport | None
    ) -> None:
        self.number, self.lane, self.transport = number, lane, transport
        self.shape, self.expected_tokens, self.record = "", 0.0, record
        self.writing_since: float | None = None
        self.aborted = False
        self.refusal: Refuse | None = None
        self._abort: Callable[[], object] | None = None
        self._effects: deque[Effect] = deque()
        self._news = asyncio.Event()

    def put(self, effect: Effect) -> None:
        """Accept a decision of the policy."""
        if isinstance(effect, Refuse):
            self.refusal = effect
        self._effects.append(effect)
        self._news.set()
        if self._abort is not None:
            self.aborted = True
            self._abort()

    def trying(self, abort: Callable[[], object] | None) -> None:
        """Note that an attempt is running, which `abort` aborts; None: it is over."""
        if self._abort is None and abort is not None:
            self.aborted = False
        self._abort = abort

    async def next(self, limit_s: float | None) -> Effect | None:
        """The next decision; None if none arrives within `limit_s`."""
        while not self._effects:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), limit_s)
            except asyncio.TimeoutError:
                return None
        return self._effects.popleft()


class Desk:
    """All requests, under the policy."""

    def __init__(self, facts: Facts, clock: Callable[[], float]) -> None:
        self.facts = facts
        self._listed: tuple[str, ...] = ()
        self.naming = facts.naming
        """The model names that clients may use."""
        self.reports: deque[str] = deque(maxlen=MAX_REPORTS)
        """The shapes of requests that were refused because they crash engines, for the daemon."""
        self.records: deque[dict[str, Any]] = deque(maxlen=MAX_KEPT)
        """The latest finished requests, for the daemon."""
        self.totals = Totals()
        self.prefixes = Prefixes()
        self.now = clock
        self.quotas, self.usage = Quotas(), Ledger()
        self.quotas.know(facts.used_day, facts.used)
        self._policy = Policy(facts.rules)
        self._policy.take(facts.engine)
        self._tickets: dict[int, Ticket] = {}
        self._last = 0
        self._changed = asyncio.Event()

    @property
    def counts(self) -> dict[str, int]:
        """Counts of requests waiting and at the engine."""
        return {"waiting": self._policy.waiting, "at_engine": self._policy.at_engine}

    @property
    def is_idle(self) -> bool:
        """Whether there are no requests."""
        return not self._tickets

    async def changed(self) -> None:
        """Wait until counts, totals or reports have changed."""
        await self._changed.wait()
        self._changed.clear()

    def report_again(self, endings: list[str]) -> None:
        """Report these, and the counts, again: the daemon did not receive them."""
        self.reports.extendleft(reversed(endings))
        self._changed.set()

    def hear(self, facts: Facts) -> None:
        """Accept the daemon's facts."""
        self.facts = facts
        self.learn(self._listed)
        self.quotas.know(facts.used_day, facts.used)
        self._policy.rules = facts.rules
        self._apply(self._policy.take(facts.engine))

    def learn(self, listed: tuple[str, ...]) -> None:
        """Learn the model names that the engine lists, including adapters."""
        self._listed, naming = listed, self.facts.naming
        self.naming = replace(naming, served=tuple(dict.fromkeys((*naming.served, *listed))))

    @property
    def outlook(self) -> str:
        """The message for a waiting request."""
        facts = self.facts
        waits_s = self._policy.expected_wait_s()
        doing = f"the engine is {facts.state}" + (f", phase {facts.phase}" if facts.phase else "")
        return doing if waits_s is None else f"{doing}, ready in about {max(round(waits_s), 1)} s"

    def arrive(
        self, size: int, lane: Lane, record: Record, transport: asyncio.Transport | None = None
    ) -> Ticket:
        """Accept a request whose headers have arrived. Raises Refused."""
        self._last += 1
        ticket = self._tickets[self._last] = Ticket(self._last, lane, record, transport)
        arrived = Arrived(at=self.now(), number=ticket.number, size=size, lane=lane)
        self._apply(self._policy.take(arrived))
        self.check(ticket)
        return ticket

    def check(self, ticket: Ticket) -> None:
        """Raise Refused if the request was refused while its body was read."""
        if ticket.refusal is not None:
            raise Refused(protocol.fault_of(ticket.refusal.why, ticket.refusal.retry_after_s))

    def tell(self, ticket: Ticket, kind: type[RequestEvent]) -> None:
        """Report an event of a request to the policy."""
        self._apply(self._policy.take(kind(at=self.now(), number=ticket.number)))

    def grow(self, ticket: Ticket, size: int) -> None:
        """Report that `size` bytes of a body have arrived, more than announced."""
        self._apply(self._policy.take(Grew(at=self.now(), number=ticket.number, size=size)))

    def complete(self, ticket: Ticket, digest: bytes, tokens: float) -> None:
        """Report a complete body, with its identity and the expected cost of its answer."""
        ticket.expected_tokens = tokens
        at, number = self.now(), ticket.number
        self._apply(self._policy.take(Complete(at=at, number=number, digest=digest, tokens=tokens)))

    def admit(self, key: ClientKey) -> None:
        """Count a request with this key; raises Refused if one of its limits is reached."""
        if limit := self.quotas.admit(key, self.now(), wall_clock.now()):
            problem = Problem("answer", limit.fact, "send it again later")
            raise Refused(Fault(429, "key_limit", problem, limit.retry_after_s))

    def spend(self, ticket: Ticket, used: KeyUsage) -> None:
        """Count the tokens of a request that was at the engine."""
        at, lane, ticket.record.used = wall_clock.now(), ticket.lane, used
        self.quotas.spend(lane.key, used.tokens, at)
        self.usage.add(lane.key, used, at)
        more = used.tokens - ticket.expected_tokens
        self._apply(self._policy.take(Spent(at=self.now(), lane=lane, tokens=more)))

    def ended(self, record: Record) -> None:
        """Keep the record of a finished request, for the daemon."""
        at = self.now()
        self.records.append(record.row(at))
        self.totals.add(record, at)
        self._changed.set()

    def turn_away(self, status: int) -> None:
        """Count a stranger's request; keep nothing else about it, because their number is
        unlimited.
        """
        self.totals.ended[str(status)] += 1
        self._changed.set()

    def take_records(self, most: int) -> list[dict[str, Any]]:
        """Remove and return the oldest records, up to `most`."""
        return [self.records.popleft() for _ in range(min(len(self.records), most))]

    def leave(self, ticket: Ticket) -> None:
        """Drop a request whose client has disconnected."""
        if self._tickets.pop(ticket.number, None) is not None:
            self.tell(ticket, Left)

    def close(self) -> None:
        """End all requests, and refuse new ones."""
        self._apply(self._policy.take(Closing(at=self.now())))

    async def run(self) -> None:
        """Keep the policy's clock running, as long as the loop runs."""
        while True:
            await asyncio.sleep(TICK_S)
            at = self.now()
            self._apply(self._policy.take(Tick(at=at)))
            for ticket in self._tickets.values():
                since = ticket.writing_since
                if since is not None and at - since > WRITE_S and ticket.transport is not None:
                    ticket.transport.abort()

    async def check_health(self, healthy: Callable[[Facts], Awaitable[bool]]) -> None:
        """Ask the engine itself about faults that no death explains, as long as the loop runs.

        An engine that a request has crashed can take many seconds to exit.
        """
        while True:
            await asyncio.sleep(TICK_S)
            if self._policy.unconfirmed(self.now()) and await healthy(self.facts):
                self._apply(self._policy.take(Healthy(at=self.now())))

    def _apply(self, effects: tuple[Effect, ...]) -> None:
        self._changed.set()
        for effect in effects:
            ticket = self._tickets.get(effect.number)
            if isinstance(effect, (Refuse, End, Release)):
                self._tickets.pop(effect.number, None)
            if ticket is None:
                continue
            if isinstance(effect, (Refuse, End)) and effect.why is Why.KILLER:
                self.reports.append(ticket.shape)
            ticket.put(effect)
