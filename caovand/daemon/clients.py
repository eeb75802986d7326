"""A slot's clients behind the gateway: the gateway's view of the engine, and its reports.

Before a planned stop of the engine, the gateway learns that it is draining, and answers in progress
get some seconds to finish.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any, Protocol

from caovand.adapters.network.http import Endpoint
from caovand.core.config.key import ConfigError
from caovand.core.config.schema import Config
from caovand.core.gateway.record import MAX_KEPT, Totals, add_growth
from caovand.core.gateway.requests import ConnectionLimits
from caovand.core.gateway.slot import engine_of, will_return
from caovand.core.lifecycle.events import EndChild
from caovand.core.lifecycle.state import Snapshot, State
from caovand.core.plan import Plan
from caovand.daemon.keys import Keys
from caovand.daemon.machine import Machine
from caovand.daemon.shared import Changes, now
from caovand.daemon.start.starts import Starts

SILENT_S = 1.0
"""If the gateway has not polled for this long, there is no gateway to wait for."""
POLL_S = 0.2
NO_REQUESTS: Mapping[str, int] = {"waiting": 0, "at_engine": 0}
EXTRA_DIVISOR = 8
"""The engine gets one extra request per this many that it serves at a time."""


class ClientsSlot(Machine, Protocol):
    """The parts of a slot that its clients need."""

    @property
    def endpoint(self) -> Endpoint | None:
        """The address at which the engine listens; None if there is none."""

    def client_key(self) -> str:
        """The key that clients must send, "" for none. Raises ConfigError if it is unknown."""

    def keep_alive_s(self) -> float:
        """The time for which the engine keeps an idle connection open; 0 if unknown."""

    def reading_rate(self) -> float | None:
        """Tokens per second at which the engine reads long prompts; None without a measurement."""

    def blame(self, requests: Sequence[str]) -> None:
        """Record the requests that have crashed the last engine."""


class Clients:
    """The clients of one slot."""

    def __init__(self, slot: ClientsSlot, starts: Starts, keys: Keys, changes: Changes) -> None:
        self.totals: Mapping[str, Any] = Totals().document()
        """Totals of all finished requests since the daemon started."""
        self._counts: Mapping[str, int] = NO_REQUESTS
        # the part counted by the current gateway process
        self._reported: Mapping[str, Any] = self.totals
        self.requests: deque[dict[str, Any]] = deque(maxlen=MAX_KEPT)
        """The latest finished requests."""
        self._slot, self._starts, self._keys, self._changes = slot, starts, keys, changes
        self._seq, self._last_news = 0, dict[str, Any]()
        self._known = 0  # the latest seq that the gateway has acted on
        self._heard_at, self._asking = float("-inf"), 0
        self._drains, self._drained_by = False, float("-inf")
        self._locked = secrets.token_hex(16)  # a random key that no client has

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts of requests waiting and at the engine; both zero once the gateway has exited."""
        return NO_REQUESTS if self._silent else self._counts

    @property
    def _silent(self) -> bool:
        return not self._asking and now() - self._heard_at > SILENT_S

    # -- queries of the gateway ---------------------------------------------------------------

    async def next(self, since: int, wait_s: float) -> Mapping[str, Any]:
        """The gateway's view, once it is newer than `since`, or after `wait_s`."""
        deadline = now() + wait_s
        self._asking += 1
        try:
            while True:
                news = self._changes.event
                document = self._document()
                left_s = deadline - now()
                if self._seq != since or left_s <= 0:
                    return document
                try:
                    await asyncio.wait_for(news.wait(), left_s)
                except asyncio.TimeoutError:
                    return self._document()
        finally:
            self._asking -= 1
            self._heard_at = now()

    def report(
        self,
        seq: int,
        counts: Mapping[str, int],
        totals: Mapping[str, Any],
        endings: Sequence[str],
    ) -> None:
        """Process the gateway's report, based on its view `seq`."""
        self.totals = add_growth(self.totals, self._reported, totals)
        self._reported = totals
        self._known, self._counts, self._heard_at = seq, dict(counts), now()
        for shape in endings:
            text = f"refusing a request that has crashed the engine twice: {shape}"
            self._slot.notice("noticed", text)
        self._slot.blame(endings)

    def _document(self) -> dict[str, Any]:
        snapshot, section = self._slot.snapshot, self._slot.config.gateway
        plan, endpoint = snapshot.plan, self._slot.endpoint
        news = {
            "engine": engine_of(snapshot, drains=self._drains).value,
            "generation": snapshot.generation,
            "returns": will_return(snapshot),
            "phase": snapshot.phase if snapshot.state is State.STARTING else "",
            "at_once": self._at_once(plan) if plan else None,
            "names": _client_names(plan, self._slot.config),
            "context": self._slot.engine.planning.context(plan) if plan else None,
            "url": endpoint.url if endpoint else "",
            "key": endpoint.key if endpoint else self._key(),
            "keep_alive_s": self._slot.keep_alive_s(),
            "reuses_connections": self._slot.engine.api.reuses_connections,
            "health": self._slot.engine.api.health,
            "hold_s": section.hold_s,
            "max_waiting": section.max_waiting,
            "limits": {
                entry.name: getattr(section, entry.name) for entry in fields(ConnectionLimits)
            },
            "aliases": dict(section.aliases),
            "temperature": section.temperature,
            "max_tokens": section.max_tokens,
            "effort": section.reasoning_effort,
            "alias_defaults": {
                alias: astuple(defaults) for alias, defaults in section.alias_defaults
            },
            "keys": self._keys.for_gateway(),
        }
        if news != self._last_news:
            self._seq, self._last_news = self._seq + 1, news
        now_known = {
            "expected_s": self._expected_s(snapshot),
            "used": self._keys.used_today(),
            "reading_rate": self._slot.reading_rate(),
        }
        return {**news, "seq": self._seq, **now_known}

    def _key(self) -> str:
        """The key until an engine that checks one exists."""
        try:
            return self._slot.client_key()
        except ConfigError:
            return self._locked

    def _at_once(self, plan: Plan) -> int | None:
        """Maximum requests at the engine: slightly more than it serves at a time, so that it never
        waits for the gateway."""
        most = self._slot.engine.planning.at_once(plan)
        return most and most + max(most // EXTRA_DIVISOR, 1)

    def _expected_s(self, s: Snapshot) -> float | None:
        """Expected seconds until an engine serves; None if unknown."""
        plan = s.plan.identity if s.plan else ""
        at, whole_s = now(), self._starts.remaining_s(plan, 0.0)
        if s.state is State.STARTING:
            return self._starts.remaining_s(plan, at - s.since)
        if whole_s is None or not (s.state is State.BACKOFF or will_return(s)):
            return None
        wait_s = s.deadline - at if s.state is State.BACKOFF and s.deadline else 0.0
        return whole_s + max(wait_s, 0.0)

    # -- planned stop -------------------------------------------------------------------------

    def ends(self, action: EndChild, *, again: bool) -> None:
        """Announce the engine's planned stop; if announced `again`, a grace of 0 s also cuts the
        drain.
        """
        if not again:
            self._drains, self._drained_by = action.drain_s > 0, now() + action.drain_s
        elif action.grace_s == 0:
            self._drained_by = float("-inf")

    async def drain(self) -> None:
        """Wait until the engine has no answers in progress, up to the drain's limit."""
        seq = self._document()["seq"]
        while self._drains and now() < self._drained_by:
            if self._known >= seq and self.counts["at_engine"] == 0:
                return
            if self._silent:
                return
            await asyncio.sleep(POLL_S)


def _client_names(plan: Plan | None, config: Config) -> list[str]:
    """Names that clients may use; empty until there is a plan if the plan chooses the name."""
    if plan is not None:
        return list(plan.served_names)
    return [config.model.served_name] if config.model.served_name else []
