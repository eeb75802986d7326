"""A slot: one served model, with its machine, plans, engine and memories.

Blocking work (probes, HTTP) runs in threads and returns as an event. `core` makes the decisions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.files import config_file
from caovand.adapters.files.directories import Directories
from caovand.adapters.network.http import Endpoint
from caovand.core.config.schema import Config, Mode
from caovand.core.facts import occupancy
from caovand.core.figures.memory import by_card
from caovand.core.healing import ladder
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.lifecycle import events, transitions
from caovand.core.lifecycle.announcement import announcement
from caovand.core.lifecycle.events import Action, EndChild, Inspect, LifecycleEvent, Quit, Spawn
from caovand.core.lifecycle.state import LifecycleRules, Snapshot, State
from caovand.core.plan import Plan
from caovand.core.reporting import status
from caovand.daemon.clients import Clients
from caovand.daemon.cluster.roles import part_of
from caovand.daemon.engine.figures import SlotFigures
from caovand.daemon.engine.run import EngineRun
from caovand.daemon.machine import SlotHooks
from caovand.daemon.memory_freed import MemoryFreed
from caovand.daemon.records.failure_records import FailureRecords
from caovand.daemon.records.history import History
from caovand.daemon.records.slot_memory import SlotMemory
from caovand.daemon.shared import Shared, now
from caovand.daemon.start.inspector import Inspector
from caovand.daemon.start.planning import SlotPlanner
from caovand.daemon.tuning import DraftTuner, serving_of
from caovand.preparation import memories


class Slot:
    """Runs one engine; only `apply` changes its snapshot.

    `quit` says that the machine has performed its last action, so the daemon may exit.
    """

    def __init__(self, name: str, config: Config, shared: Shared) -> None:
        self.name, self.config = name, config
        self.engine = chosen_engine(config)
        self.snapshot = Snapshot(since=now())
        self.quit = False
        self._shared = shared
        self.notice = partial(shared.publish, name)
        self._mark = partial(shared.history.mark, name)
        self._memory = SlotMemory(name, self.engine, shared, self.notice)
        self.incidents = self._memory.incidents
        self._tuner = DraftTuner(
            self._memory.path(memories.TUNING),
            config.policy,
            self.notice,
            self._mark,
            shared.log.warning,
        )
        self.planner = SlotPlanner(
            self.engine,
            shared.directories,
            shared.environ,
            self._memory.plans,
            shared.config_path,
            self._tuner.depth_for,
        )
        self.figures = SlotFigures()
        self.run = EngineRun(
            self,
            name,
            shared,
            self.figures,
            self._memory.answers,
            SlotHooks(
                at_engine=self._at_engine,
                before_kill=self._before_kill,
                hurry=self._quits,
                after_end=self._after_end,
            ),
        )
        self.failures = FailureRecords(
            self, self.planner, self.run, self.incidents, self._mark, shared
        )
        self._inspector = Inspector(self, self.planner, self.run, self._memory.modes, shared.tasks)
        self.part = part_of(self)
        self.clients = Clients(self, self._memory.starts, shared.keys, shared.changes)
        self._memory_freed = MemoryFreed()
        self._revision = 0
        self._failed: Counter[str] = Counter()

    # -- the machine ------------------------------------------------------------------------

    def apply(self, event: LifecycleEvent) -> None:
        """Apply an event, and perform the resulting actions.

        An exception is a bug that may leave work half done, so the daemon exits. A slot that has
        quit is never started again, while other slots may still be stopping.
        """
        if self.quit:
            return
        try:
            before = self.snapshot
            self.snapshot, actions = transitions.step(before, event, self._rules())
            if self.snapshot is not before:
                if cause := self.figures.lived(before, event, self.snapshot):
                    self._mark("restart", cause)
                self._announce(before, self.snapshot)
                self._memory.follow_start(before, self.snapshot, event, self.run.watching)
            for action in actions:
                self._perform(action)
        except Exception as problem:
            self._shared.tasks.on_fault(problem)
            raise

    def _rules(self) -> LifecycleRules:
        gateway = self.config.gateway
        drain_s = gateway.drain_s if gateway.listen else 0.0
        return LifecycleRules(self.config.watch, drain_s, self._judge)

    def _judge(self, plan: Plan, finding: Finding, repeats: int) -> Decision:
        """The ladder's decision; a failed `retry --full` reverts to the plan that served."""
        elsewhere = self.part.judge(finding)
        if elsewhere is not None:
            return elsewhere
        used = self.planner.used_memory(self.config)
        others = occupancy.maxima(used, self.run.cards.others())
        good = self._memory.plans.take_fallback()
        if good is not None:
            # Unless more memory becomes free, the full plan would fail again.
            good = replace(good, others_mib=others if good.others_mib else {})
            return Decision("degrade", good, text="back to the plan that served")
        healing, conflicts = self.engine.healing, self.planner.conflicts
        rules = ladder.rules_of(healing, self.config.policy, conflicts, others)
        return self._tuner.after(plan, ladder.decide(plan, finding, repeats, rules))

    def _perform(self, action: Action) -> None:
        if isinstance(action, Inspect):
            self._inspector.begin(action)
        elif isinstance(action, Spawn):
            prepared = self.planner.prepared
            assert prepared is not None
            self.run.start(action, self.config, prepared, self._cards, self.part)
        elif isinstance(action, EndChild):
            # It would end the processes in the ledger, which may be the next child's.
            if not (self.run.ending and self.run.child):
                self._inspector.cancel()
            self.clients.ends(action, again=self.run.ending)
            self.run.end(action)
        elif isinstance(action, Quit):
            self.quit = True
            self._shared.changes.wake()

    @property
    def endpoint(self) -> Endpoint | None:
        """The address at which the engine listens; None if there is none."""
        return self.run.endpoint

    def keep_alive_s(self) -> float:
        """The time for which the engine keeps an idle connection open; 0 if each request needs its
        own."""
        env = dict(self.config.engine.env)
        return self.engine.api.keeps_alive_s(env, self._shared.environ)

    def client_key(self) -> str:
        """The key that clients must send, "" for none. Raises ConfigError if it is unknown."""
        arguments, extra_args = self.engine.arguments, self.config.engine.extra_args
        return config_file.api_key(self.config, extra_args, self._shared.environ, arguments)

    def reading_rate(self) -> float | None:
        """Tokens per second at which the engine reads long prompts; None without a measurement."""
        return self.figures.track.reading_rate

    def blame(self, requests: Sequence[str]) -> None:
        """Record the requests that have ended the last engine."""
        self.failures.blame(requests)

    def _at_engine(self) -> int:
        return self.clients.counts["at_engine"]

    def _quits(self) -> bool:
        """Whether the daemon quits: it starts no other engine, and waits for no free memory."""
        return self.snapshot.quitting

    async def _after_end(self, left: bool) -> None:
        await self.part.ended(left=left)

    async def _before_kill(self) -> None:
        await self.clients.drain()
        await self.failures.recorder.before_kill()

    @property
    def _cards(self) -> frozenset[int]:
        return self.planner.cards(self.config)

    # -- operator requests -------------------------------------------------------------------

    def apply_operator_event(self, event: LifecycleEvent) -> None:
        """Apply an operator's event; replies can refer to the new `revision`."""
        self._revision += 1
        self.apply(event)

    def reconfigure(self, config: Config) -> None:
        """Apply another configuration."""
        before, self.config = self.config, config
        if self.run.watching is not None:
            self.run.watching.reconfigure(config.watch)
        self._memory.plans.discard_fallback()
        self._tuner.policy = config.policy
        self.apply_operator_event(events.Reconfigured(at=now(), changed=config != before))

    def choose_mode(self, mode: Mode | None, *, defer: bool) -> None:
        """Store a mode (None: the file's); with `defer`, the engine keeps running for now."""
        self._memory.make_folder()
        self._memory.modes.choose(mode)
        self._memory.plans.discard_fallback()
        self.notice("mode", f"mode {self.mode[0]}, {self.mode[1]}")
        self._mark("mode", self.mode[0])
        if not defer:
            self.apply_operator_event(events.Reconfigured(at=now()))

    def forget(self) -> None:
        """Forget the degraded plan and the first answers; restart if the plan changes."""
        self._memory.plans.forget()
        self._memory.answers.forget()
        self.apply_operator_event(events.Reconfigured(at=now()))

    def retry_full(
        self,
        reason: str = "trying the full plan again",
        by: Literal["operator", "plan"] = "operator",
    ) -> None:
        """Try the plan once without the ladder's steps; the current plan is the fallback."""
        self._memory.plans.leave_out_once(self.snapshot.plan)
        self.apply_operator_event(events.Restart(at=now(), reason=reason, by=by))

    @property
    def mode(self) -> tuple[Mode, str]:
        """The mode in effect and its origin."""
        if self._memory.modes.mode is not None:
            return self._memory.modes.mode, "caovanctl mode"
        return self.config.policy.mode, str(self._shared.config_path)

    @property
    def changed(self) -> asyncio.Event:
        """Set when this slot, or another one, has changed."""
        return self._shared.changes.event

    @property
    def history(self) -> History:
        """Per-minute history of all slots."""
        return self._shared.history

    @property
    def directories(self) -> Directories:
        """The daemon's folders."""
        return self._shared.directories

    @property
    def environ(self) -> Mapping[str, str]:
        """The daemon's environment."""
        return self._shared.environ

    def recent(self) -> dict[str, Any]:
        """Recent readings of the engine and of all cards."""
        return {**self.figures.recent(), **self._shared.cards.recent(now())}

    def describe(self) -> dict[str, Any]:
        """The status document."""
        engine, shared = self.run.describe(), self._shared
        memory = by_card(self.run.samples(), self.run.cards.ours, engine.forecast, engine.reported)
        facts = status.SlotFacts(
            daemon=shared.describe(),
            engine=engine,
            mode=self.mode[0],
            mode_origin=self.mode[1],
            figures={
                **self.figures.describe(),
                "memory": memory if engine.pid is not None else [],
                "tuning": self._tuner.describe(),
            },
            revision=self._revision,
            gpus=tuple(shared.cards.latest.values()),
            degraded_since=self._memory.plans.since,
            failed=dict(self._failed),
            start=self._memory.starts.describe(),
            warnings=tuple(filter(None, shared.warnings())),
        )
        return status.describe(self.snapshot, facts, now())

    # -- every few seconds ------------------------------------------------------------------

    def poll(self) -> None:
        """Poll the engine; called every few seconds."""
        if not self._memory.made:
            self._shared.attempt("create its state folder", self._memory.try_folder())
        self.run.poll(self._cards)
        watching, track = self.run.watching, self.figures.track
        serving = serving_of(self.snapshot, watching.probed_at if watching else None)
        quiet_s = self.config.policy.tune_quiet_s
        if self._memory_freed.poll(serving, track, self.run.cards.others_mib, quiet_s):
            self.retry_full("other programs have freed GPU memory: trying the full plan", "plan")
        elif self._tuner.poll(serving, track):
            self.apply(events.Reconfigured(at=now()))

    # -- announcing -------------------------------------------------------------------------

    def _announce(self, before: Snapshot, after: Snapshot) -> None:
        if after.state is State.SERVING and before.deadline and after.deadline is None:
            self._memory.keep_plan(after, self.planner.prepared, self.run.mode)
        if after.state is State.SERVING and before.state is not State.SERVING:
            self.planner.record_served()
        if after.plan is not before.plan:
            self._memory.plans.date(after.plan)
        news = announcement(before, after)
        if news is not None:
            self.notice(news.kind, news.text, **news.data)
        rungs = after.plan.rungs if after.plan else ()
        if rungs != (before.plan.rungs if before.plan else ()):
            names = ", ".join(rungs)
            what = "degraded plan" if after.plan and after.plan.degraded else "rungs"
            self.notice("rung", f"{what}: {names}" if rungs else "the full plan again")
            self._mark("rung", names or "none")
        if news is not None and news.failed:
            assert after.finding is not None
            self._failed[after.finding.failure] += 1
            self._tuner.failed()
            self.failures.record(after, self.describe)
        self._shared.changes.wake()
