"""Poll daemon and kernel for possible leaks, and for events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.adapters.system import usage
from caovand.cli.common.client import DaemonClient
from caovand.lab.core.soak.seen import Mishap, SoakSample
from caovand.lab.core.soak.verdict import DAEMON_EVENT, NAMED
from caovand.lab.soak.ledger import SoakLedger


class SoakWatch:
    """Call `sample` repeatedly; results are in `samples` and `events`."""

    def __init__(self, client: DaemonClient, ledger: SoakLedger) -> None:
        self._client, self._ledger = client, ledger
        self.status: Mapping[str, Any] = client.ask("status")
        self._rungs = list(self.status["rungs"])
        self._since = 0
        self.samples: list[SoakSample] = []
        self.events: list[Mishap] = []

    def reset(self) -> None:
        """Discard earlier events."""
        self._new_events()
        self.events.clear()

    @property
    def rungs(self) -> tuple[str, ...]:
        """The rungs taken since `begin`."""
        return tuple(rung for rung in self.status["rungs"] if rung not in self._rungs)

    def sample(self) -> Mapping[str, Any]:
        """Take a sample; return the daemon's status."""
        status = self._client.ask("status")
        if status["daemon"]["pid"] != self.status["daemon"]["pid"]:
            self._since = 0
            self.note(DAEMON_EVENT, "caovand was restarted")
        self.status = status
        self._new_events()
        if status["served"]:  # resources used while an engine starts do not matter to a soak
            self.samples.append(self._sample(status))
        return status

    def note(self, kind: str, text: str) -> None:
        """Record an event."""
        self.events.append(Mishap(round(self._ledger.now(), 3), kind, text))

    def _new_events(self) -> None:
        while entries := self._client.ask("events", since=self._since)["events"]:
            for entry in entries:
                self._since = entry["seq"]
                if entry["kind"] in NAMED:
                    self.note(entry["kind"], entry["text"])

    def _sample(self, status: Mapping[str, Any]) -> SoakSample:
        totals = status["figures"]["totals"]
        cards = status["figures"]["memory"]
        used = {card["gpu"] for card in cards}
        engine = usage.total_usage(usage.living_tree(status["engine_pid"]))
        daemon = usage.total_usage([status["daemon"]["pid"]])
        parts = [
            card["used_mib"] if card["engine_mib"] is None else card["engine_mib"] for card in cards
        ]
        slowed = (gpu["throttled"] for gpu in status["gpus"] if gpu["index"] in used)
        return SoakSample(
            at_s=round(self._ledger.now(), 3),
            generation=status["generation"],
            engine_mib=engine.memory_mib,
            engine_files=engine.files,
            gpu_mib=sum(parts) if parts else None,
            daemon_mib=daemon.memory_mib,
            daemon_files=daemon.files,
            shared_mib=usage.shared_memory_mib(),
            throttled=next(filter(None, slowed), ""),
            drafts=totals["drafts"],
            accepted=sum(totals["accepted"]),
        )
