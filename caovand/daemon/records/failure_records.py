"""Records of a slot's failures: incidents here, and evidence for other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from caovand.adapters.files.state_file import Unusable
from caovand.adapters.incidents import Incidents
from caovand.adapters.system.kernel_log import without_other_cards
from caovand.core.healing.answer import FailureAnswer
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import rules_of
from caovand.core.lifecycle.state import Snapshot
from caovand.core.plan import Plan
from caovand.core.reporting import incident
from caovand.core.reporting.incident import FailureContext
from caovand.daemon.cluster.part import MachineWithPart
from caovand.daemon.engine.run import EngineRun
from caovand.daemon.engine.watching import Watching
from caovand.daemon.records.chronicle import Recorder, Then
from caovand.daemon.shared import Shared
from caovand.daemon.start.planning import SlotPlanner
from caovand.engines.explaining.answer import answer_of


class FailureRecords:
    """Records the failures of one machine in `store`; `mark` adds them to the history."""

    def __init__(
        self,
        machine: MachineWithPart,
        planner: SlotPlanner,
        run: EngineRun,
        store: Incidents,
        mark: Callable[[str, str], None],
        shared: Shared,
    ) -> None:
        self._machine, self._planner, self._run = machine, planner, run
        self._mark, self._shared = mark, shared
        self.store = store
        self.recorder = Recorder(store, self._on_recorded, machine.engine.log)
        self._last_mark = ""
        self._latest = ""
        """The last failure's incident; "" while it is being written."""
        self._blamed: list[str] = []

    def record(self, snapshot: Snapshot, describe: Callable[[], dict[str, Any]]) -> None:
        """Start an incident for the failure in `snapshot`; `describe` makes the status document."""
        run, plan = self._run, snapshot.plan
        assert snapshot.finding is not None
        last, self._last_mark = self._last_mark, incident.dedup_mark(snapshot)
        if snapshot.failures > 1 and last and last == self._last_mark:
            again = f"the same failure, {snapshot.failures} in a row now"
            self._machine.notice("incident", f"{again}: only the first is kept as an incident")
            return
        self._latest, self._blamed = "", []
        child, watching = run.child, run.watching if run.child else None
        nodes, then = self._machine.part.recorded(snapshot.finding) if child else ({}, None)
        case = replace(
            self._case(snapshot.finding, watching),
            status=describe(),
            plan=plan,
            decision=snapshot.remedy if child else None,
            answer=self._answer(snapshot.finding, plan),
            inventory=self._planner.inventory,
            argv=run.argv if child else (),
            extra_args=self._machine.engine.arguments.redact(plan.extra_args) if plan else (),
            metrics=watching.metrics if watching else "",
            nodes=nodes,
        )
        self.recorder.take(case, run.members(), self._engine_python, then)

    def blame(self, requests: Sequence[str]) -> None:
        """Add to the last failure's incident the requests that the gateway now refuses because of
        it."""
        self._blamed += requests
        if self._blamed and self._latest:
            self._shared.tasks.begin(self._amend(self._latest, [*self._blamed]))

    async def _amend(self, name: str, requests: list[str]) -> None:
        try:
            await asyncio.to_thread(self.store.amend, name, {"requests": requests})
        except (OSError, Unusable) as problem:
            text = f"cannot name the request in incident {name}: {problem}"
            self._machine.notice("incident", text)

    def _answer(self, finding: Finding, plan: Plan | None) -> FailureAnswer:
        """The failure's meaning, and what helps."""
        engine, policy = self._machine.engine, self._machine.config.policy
        rules = rules_of(engine.healing, policy, self._planner.conflicts)
        return answer_of(engine, finding, plan, rules)

    def gather(self, finding: Finding | None, stacks: bool, then: Then) -> None:
        """Gather the local traces of a failure on another node, or the evidence of `finding`."""
        cause = finding or Finding("unknown", "", self._machine.snapshot.phase)
        case = replace(self._case(cause, self._run.watching), live=stacks)
        self.recorder.gather(case, self._run.members(), self._engine_python, then)

    def _case(self, finding: Finding, watching: Watching | None) -> FailureContext:
        """The known facts about a failure on any node, and the secrets to remove from them."""
        self._shared.kernel.read()
        env = {**self._shared.environ, **dict(self._machine.config.engine.env)}
        return FailureContext(
            finding,
            watching.causes.evidence() if watching else (),
            {},
            samples=tuple(self._shared.cards.history),
            kernel=tuple(
                without_other_cards(self._shared.kernel.kept, watching.buses if watching else ())
            ),
            secrets=self._run.secrets(env, self._machine.snapshot.plan),
        )

    @property
    def _engine_python(self) -> str:
        return self._planner.inventory.engine.python if self._planner.inventory else ""

    def _on_recorded(self, name: str, problem: str) -> None:
        if not name:
            self._machine.notice("incident", f"cannot write an incident: {problem}")
            return
        self._mark("incident", name)
        self._latest = name
        self.blame(())
        number = int(name.partition("-")[0])
        lacks = f"; {problem}" if problem else ""
        self._machine.notice(
            "incident", f"incident {name}: caovanctl incidents show {number}{lacks}"
        )
