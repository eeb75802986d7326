"""A slot: one served model with its machine, its plans, its engine and what is remembered of them.

What blocks (probes, HTTP) runs in threads and comes back as an event. Decisions are made in `core`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import traceback
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from caovand import __version__
from caovand.adapters import config_file
from caovand.adapters.config_file import ModeMemory
from caovand.adapters.engine_choice import chosen_engine
from caovand.adapters.http import Endpoint
from caovand.adapters.incidents import Incidents
from caovand.adapters.kernel_log import without_other_cards
from caovand.adapters.pump import RING_BYTES
from caovand.core import limits
from caovand.core.config import Config, ConfigError, Mode
from caovand.core.facts import occupancy
from caovand.core.facts.inventory import Inventory
from caovand.core.figures.memory import by_card
from caovand.core.healing import ladder
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.health.observation import GpuSample
from caovand.core.lifecycle import events, transitions
from caovand.core.lifecycle.announcement import announcement
from caovand.core.lifecycle.events import (
    Action,
    End,
    Event,
    Inspect,
    Planned,
    Quit,
    Refused,
    Spawn,
)
from caovand.core.lifecycle.state import LifecycleRules, Snapshot, State
from caovand.core.plan import Plan
from caovand.core.reporting import incident, starts, status
from caovand.core.reporting.incident import Case
from caovand.core.slot import ONLY
from caovand.daemon import canary, clients, degraded_plan, inspection, memories, tuning
from caovand.daemon.canary import FirstAnswers
from caovand.daemon.chronicle import Recorder, Then
from caovand.daemon.cluster import part
from caovand.daemon.cluster.roles import part_of
from caovand.daemon.degraded_plan import PlanMemory
from caovand.daemon.engine_run import EngineRun
from caovand.daemon.figures import SlotFigures
from caovand.daemon.history import History
from caovand.daemon.inspection import Prepared
from caovand.daemon.planning import SlotPlanner
from caovand.daemon.room_again import RoomAgain
from caovand.daemon.shared import Shared, now
from caovand.daemon.starts import Starts
from caovand.daemon.tasks import Task, cancel
from caovand.daemon.tuning import DraftTuner, Serving
from caovand.daemon.watching import Watching

CHOICES = 3
"""How often an attempt plans anew because what it planned for has changed meanwhile."""


class Slot:
    """Runs one engine; `apply` is the only way its snapshot changes.

    `quit` says that the machine has performed its last action: the daemon may end.
    """

    def __init__(self, name: str, config: Config, shared: Shared) -> None:
        self.name, self.config = name, config
        self.engine = chosen_engine(config)
        self.snapshot = Snapshot(since=now())
        self.quit = False
        self._shared = shared
        self.notice = partial(shared.publish, name)
        self._mark = partial(shared.history.mark, name)
        self._made = False
        for text in self._restore():
            self.notice("noticed", text)
        find = partial(memories.find, shared.directories.state, name=name)
        self.modes = ModeMemory(find(memories.MODE))
        self.incidents = Incidents(find(memories.INCIDENTS))
        self._memory = PlanMemory(find(degraded_plan.FILE), self.engine.healing)
        self._starts = Starts(find(memories.STARTS), self.engine.log.launches)
        self._tuner = DraftTuner(
            find(tuning.FILE), config.policy, self.notice, self._mark, shared.log.warning
        )
        self._planner = SlotPlanner(
            self.engine,
            shared.directories,
            shared.environ,
            self._memory,
            shared.config_path,
            self._tuner.depth_for,
        )
        self.figures = SlotFigures()
        self._answers = FirstAnswers(find(canary.FILE), self.notice)
        self.run = EngineRun(
            name,
            shared,
            self.engine,
            config.watch,
            self.apply,
            self.notice,
            self.figures,
            self._answers,
        )
        self.recorder = Recorder(self.incidents, self._on_recorded, self.engine.log)
        self.part = part_of(self._hooks())
        self.run.part = self.part
        self.clients = clients.Clients(
            clients.Slot(
                snapshot=lambda: self.snapshot,
                config=lambda: self.config,
                endpoint=lambda: self.run.endpoint,
                key=self._key,
                planning=self.engine.planning,
                starts=self._starts,
                keys=shared.keys,
                changes=shared.changes,
                notice=self.notice,
            )
        )
        self._room_again = RoomAgain()
        self._inspecting: Task | None = None
        self._revision = 0
        self._failed: Counter[str] = Counter()
        self._last_mark = ""

    # -- what is remembered -----------------------------------------------------------------

    def _restore(self) -> list[str]:
        """Take over what an earlier version kept, and set aside what cannot be used, in words."""
        state = self._shared.directories.state
        texts, folders = list[str](), [memories.folder(state, self.name)]
        if self.name == ONLY:
            texts += memories.take_over(state)
            folders.append(state)
        with contextlib.suppress(OSError):
            self._make_folder()
        for folder in folders:
            texts += memories.set_aside(folder, self.engine.healing)
        return texts

    def _make_folder(self) -> None:
        """Make the folder of what is remembered; OSError, as of a disk that takes nothing."""
        if not self._made:
            memories.make(self._shared.directories.state, self.name)
            self._made = True

    async def _try_folder(self) -> None:
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._make_folder)

    # -- the machine ------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Let the machine take one event, and perform what it asks for.

        An exception is a fault of ours that may leave work half done: the daemon ends with it.
        Other slots may still be ending when this one has quit: nothing starts it again.
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
                self._time(before, event)
            for action in actions:
                self._perform(action)
        except Exception as problem:
            self._shared.tasks.on_fault(problem)
            raise

    def _hooks(self) -> part.Slot:
        """What a part in a cluster needs of this slot."""

        def adopt(plan: Plan, inventory: Inventory) -> tuple[Plan, Endpoint]:
            self._planner.adopt(plan, inventory, self.mode[0])
            return plan, Endpoint(str(plan.value("host")), int(plan.value("port")), "", False)

        def serves() -> None:
            if self.run.watching is not None:
                self.run.watching.serves()

        return part.Slot(
            config=lambda: self.config,
            engine=self.engine,
            cache=self._shared.directories.cache,
            runtime=self._shared.directories.runtime,
            apply=self.apply,
            command=self.apply_operator_event,
            notice=self.notice,
            snapshot=lambda: self.snapshot,
            look=lambda: self._planner.inspect_for(self.config, living=self.run.child is not None),
            adopt=adopt,
            serves=serves,
            pids=lambda: [p.pid for p in self.run.child.members] if self.run.child else [],
            lines=lambda: self.run.ring.since(0, RING_BYTES)[0],
            idle=lambda: self.figures.idle,
            samples=self._samples,
            forecast=lambda: self.run.forecast,
            reported=lambda: dict(self._reported),  # its log is read by a thread
            incidents=self.incidents,
            gather=self._gather,
        )

    def _rules(self) -> LifecycleRules:
        gateway = self.config.gateway
        drain_s = gateway.drain_s if gateway.listen else 0.0
        return LifecycleRules(self.config.watch, drain_s, self._judge)

    def _judge(self, plan: Plan, finding: Finding, repeats: int) -> Decision:
        """The ladder's decision; a failed `retry --full` goes back to what served."""
        elsewhere = self.part.judge(finding)
        if elsewhere is not None:
            return elsewhere
        used = self._planner.used(self.config)
        others = occupancy.most(used, self.run.cards.others())
        good = self._memory.take_fallback()
        if good is not None:
            # Unless more memory becomes free, the full plan would fail again.
            good = replace(good, others_mib=others if good.others_mib else {})
            return Decision("lower", good, text="back to the plan that served")
        healing, conflicts = self.engine.healing, self._planner.conflicts
        rules = ladder.rules_of(healing, self.config.policy, conflicts, others)
        return self._tuner.after(plan, ladder.decide(plan, finding, repeats, rules))

    def _perform(self, action: Action) -> None:
        if isinstance(action, Inspect):
            cancel(self._inspecting)
            self._inspecting = self._shared.tasks.begin(self._inspect(action))
        elif isinstance(action, Spawn):
            prepared = self._planner.prepared
            assert prepared is not None
            self.run.start(action, self.config, prepared, self._cards)
        elif isinstance(action, End):
            # It would end what it finds in the ledger, though that may be the next child's.
            if not (self.run.ending and self.run.child):
                cancel(self._inspecting)
            # A daemon that ends has no next engine to wait for.
            hurry = lambda: self.snapshot.quitting  # noqa: E731
            self.clients.ends(action, again=self.run.ending)
            self.run.end(action, self._before_kill, hurry)
        elif isinstance(action, Quit):
            self.quit = True
            self._shared.changes.wake()

    def _key(self) -> str:
        arguments, extra_args = self.engine.arguments, self.config.engine.extra_args
        return config_file.api_key(self.config, extra_args, self._shared.environ, arguments)

    async def _before_kill(self) -> None:
        await self.clients.drained()
        await self.recorder.before_kill()

    @property
    def _cards(self) -> frozenset[int]:
        return self._planner.cards(self.config)

    # -- what the operator does -------------------------------------------------------------

    def apply_operator_event(self, event: Event) -> None:
        """Apply an operator's event; replies can refer to the new `revision`."""
        self._revision += 1
        self.apply(event)

    def reconfigure(self, config: Config) -> None:
        """Use another configuration from now on."""
        before, self.config = self.config, config
        if self.run.watching is not None:
            self.run.watching.reconfigure(config.watch)
        self._memory.discard_fallback()
        self._tuner.policy = config.policy
        self.apply_operator_event(events.Reconfigured(at=now(), changed=config != before))

    def choose_mode(self, mode: Mode | None, *, defer: bool) -> None:
        """Remember a mode (None: the file's); with `defer` the engine is left alone for now."""
        self._make_folder()
        self.modes.choose(mode)
        self._memory.discard_fallback()
        self.notice("mode", f"mode {self.mode[0]}, {self.mode[1]}")
        self._mark("mode", self.mode[0])
        if not defer:
            self.apply_operator_event(events.Reconfigured(at=now()))

    def forget(self) -> None:
        """Forget the degraded plan that served, and the first answers; a changed plan restarts."""
        self._memory.forget()
        self._answers.forget()
        self.apply_operator_event(events.Reconfigured(at=now()))

    def retry_full(
        self,
        reason: str = "trying the full plan again",
        by: Literal["operator", "plan"] = "operator",
    ) -> None:
        """Try the plan without the ladder's steps once; the present one is the way back."""
        self._memory.leave_out_once(self.snapshot.plan)
        self.apply_operator_event(events.Restart(at=now(), reason=reason, by=by))

    @property
    def mode(self) -> tuple[Mode, str]:
        """The mode in force and where it comes from."""
        if self.modes.mode is not None:
            return self.modes.mode, "caovanctl mode"
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
    def environ(self) -> Any:
        """The daemon's environment."""
        return self._shared.environ

    def recent(self) -> dict[str, Any]:
        """The readings of the last minutes: of the engine, and of all cards."""
        return {**self.figures.recent(), **self._shared.cards.recent(now())}

    @property
    def _reported(self) -> dict[str, Any]:
        """What the log of the living engine says; nothing once the engine has exited."""
        return self.run.watching.reported if self.run.child and self.run.watching else {}

    def _samples(self) -> list[GpuSample]:
        """The latest samples of the cards that the engine uses."""
        latest = self._shared.cards.latest
        return [latest[index] for index in sorted(self.run.cards.used & latest.keys())]

    def describe(self) -> dict[str, Any]:
        """The status document."""
        child, reported = self.run.child, self._reported
        memory = by_card(self._samples(), self.run.cards.ours, self.run.forecast, reported)
        shortage, unwritten = self._shared.shortage.text, self._shared.unwritten.texts.values()
        history = self._shared.history.text
        lacks = (shortage, *unwritten, history, child.unrecorded if child else "")
        facts = status.SlotFacts(
            version=__version__,
            pid=os.getpid(),
            mode=self.mode[0],
            mode_origin=self.mode[1],
            engine_mode=self.run.mode if child else "",
            config_path=str(self._shared.config_path),
            cache_path=str(self._shared.directories.cache),
            engine_pid=child.pid if child else None,
            reported=reported,
            figures={
                **self.figures.describe(),
                "memory": memory if child else [],
                "tuning": self._tuner.describe(),
            },
            revision=self._revision,
            gpus=tuple(self._shared.cards.latest.values()),
            forecast=self.run.forecast,
            degraded_since=self._memory.since,
            failed=dict(self._failed),
            log_bytes_lost=self.run.file.lost_bytes,
            start=self._starts.describe(),
            warnings=tuple(filter(None, lacks)),
            phases=self.engine.log.phases,
        )
        return status.describe(self.snapshot, facts, now())

    # -- inspections ------------------------------------------------------------------------

    async def _inspect(self, action: Inspect) -> None:
        run, number = self.run, action.number
        living = self.snapshot.plan if run.child else None
        try:
            if run.ending:
                # The machine gave up waiting for that; a second child must not run as well.
                text = "cannot start: the engine before is still being ended"
                raise inspection.Obstacle("vram-busy", text, hold=True, phase="ending")
            if run.child is None:
                await run.clear_the_way()
            for _ in range(CHOICES):
                coming = self._planner.next(
                    self.config,
                    self.modes.mode,
                    action.plan,
                    living,
                    run.mode,
                    refused=self.snapshot.refusal is not None,
                )
                plan, endpoint = await self.part.plan(coming, living is not None)
                if run.child is not None:
                    await self._check_other_port(endpoint)
                    break
                await self._prepare(plan, endpoint, coming.made or self._planner.prepared)
                if not (outdated := self.part.outdated()):
                    break
            else:
                raise inspection.Obstacle("node-missing", f"cannot start: {outdated}", hold=True)
        except Exception as problem:
            refused = self._refusal(number, problem)
            self.part.refused(refused.finding)
            event: Event = refused
        else:
            if run.child is None:
                run.endpoint = endpoint
            # An engine that serves goes on instead of an abandoned plan; without one it is started.
            if run.child is None or plan.identity != self.snapshot.abandoned:
                self._planner.take(coming)
            event = Planned(at=now(), chance=random.random(), inspection=number, plan=plan)
        self.apply(event)

    async def _check_other_port(self, endpoint: Endpoint) -> None:
        """Raise inspection.Obstacle if a living engine is to move to a port that is taken."""
        now_at = self.run.endpoint
        if self.part.answers and now_at is not None and endpoint.port != now_at.port:
            await asyncio.to_thread(inspection.check_port, endpoint.port)

    async def _prepare(self, plan: Plan, endpoint: Endpoint, made: Prepared | None) -> None:
        """Look at what the engine of this plan needs besides memory; raises inspection.Obstacle."""
        if self.part.answers:
            await asyncio.to_thread(inspection.check_port, endpoint.port)
        if made is not None:
            await self.run.share_caches(plan, made.inventory.engine)
            await self.run.check_sums(plan, made.inventory)

    @staticmethod
    def _refusal(number: int, problem: Exception) -> Refused:
        """Why an inspection found that no engine can start."""
        limit = limits.reached(problem)
        if isinstance(problem, inspection.Obstacle):
            finding, hold = problem.finding, problem.hold or bool(limit)
        elif isinstance(problem, ConfigError):
            # The key's file, read anew for each engine: it may be on its way.
            finding, hold = Finding("bad-arguments", str(problem), "plan"), True
        elif limit:
            text = f"cannot find out whether the engine can start: {limit}"
            finding, hold = Finding("unknown", text, "plan"), True
        else:
            # A fault of ours on this model or machine: it must not cost an engine that serves.
            traceback.print_exception(problem)
            fault = f"{type(problem).__name__} in caovand: {problem}"
            text = f"cannot plan: {fault}; please report it"
            finding, hold = Finding("unknown", text, "plan"), False
        return Refused(
            at=now(), chance=random.random(), inspection=number, finding=finding, hold=hold
        )

    def poll(self) -> None:
        """Poll the engine; called every few seconds."""
        if not self._made:
            self._shared.attempt("make the folder of its state", self._try_folder())
        self.run.poll(self._cards)
        serving, track, quiet_s = (
            self._serving(),
            self.figures.track,
            self.config.policy.tune_quiet_s,
        )
        if self._room_again.poll(serving, track, self.run.cards.besides, quiet_s):
            self.retry_full("other programs have freed GPU memory: trying the full plan", "plan")
        elif self._tuner.poll(serving, track):
            self.apply(events.Reconfigured(at=now()))

    def _serving(self) -> Serving | None:
        """What the draft tuner has to know of the engine that serves, None without one."""
        snapshot, watching = self.snapshot, self.run.watching
        if snapshot.state is not State.SERVING or snapshot.plan is None or watching is None:
            return None
        if snapshot.refusal is not None:
            return None  # planning again would give what was refused
        return Serving(
            plan=snapshot.plan,
            generation=snapshot.generation,
            replanning=snapshot.replanning,
            stable=snapshot.deadline is None,
            probed_at=watching.probed_at,
        )

    # -- announcing --------------------------------------------------------------------------

    def _announce(self, before: Snapshot, after: Snapshot) -> None:
        if after.state is State.SERVING and before.deadline and after.deadline is None:
            self._remember(after)
        if after.state is State.SERVING and before.state is not State.SERVING:
            self._planner.served()
        if after.plan is not before.plan:
            self._memory.date(after.plan)
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
            self._record(after)
        self._shared.changes.wake()

    def _time(self, before: Snapshot, event: Event) -> None:
        """Follow the seconds of a start; once it serves, say where they went."""
        reported = self.run.watching.reported if self.run.watching else {}
        try:
            if not self._starts.follow(before, self.snapshot, event, reported):
                return
            assert self._starts.latest is not None
            sentence = starts.sentence(*self._starts.latest)
            self.notice("start", sentence, start=self._starts.describe())
            self._make_folder()
            self._starts.remember()
        except OSError as problem:
            self._shared.log.warning(f"cannot remember the seconds of this start: {problem}")

    def _remember(self, snapshot: Snapshot) -> None:
        """The plan has served stably: keep it for the next start if the ladder had to lower it."""
        prepared = self._planner.prepared
        if snapshot.plan is None or prepared is None:
            return
        try:
            self._memory.served_stably(snapshot.plan, prepared.fingerprint, self.run.mode)
        except OSError as problem:
            self._shared.log.warning(f"cannot remember the plan that served: {problem}")

    def _record(self, snapshot: Snapshot) -> None:
        """Begin an incident for the failure in `snapshot`."""
        run, plan = self.run, snapshot.plan
        assert snapshot.finding is not None
        last, self._last_mark = self._last_mark, incident.mark(snapshot)
        if snapshot.failures > 1 and last and last == self._last_mark:
            again = f"the same failure, {snapshot.failures} in a row now"
            self.notice("incident", f"{again}: the incident of the first is kept, no other written")
            return
        child, watching = run.child, run.watching if run.child else None
        nodes, then = self.part.recorded(snapshot.finding) if child else ({}, None)
        case = replace(
            self._case(snapshot.finding, watching),
            status=self.describe(),
            plan=plan,
            decision=snapshot.remedy if child else None,
            inventory=self._planner.inventory,
            argv=run.argv if child else (),
            extra_args=self.engine.arguments.shown(plan.extra_args) if plan else (),
            metrics=watching.metrics if watching else "",
            nodes=nodes,
        )
        self.recorder.take(case, run.members(), self._engine_python, then)

    def _gather(self, finding: Finding | None, stacks: bool, then: Then) -> None:
        """Gather what a failure on another node left here, or this one's own `finding`."""
        found = finding or Finding("unknown", "", self.snapshot.phase)
        case = replace(self._case(found, self.run.watching), live=stacks)
        self.recorder.gather(case, self.run.members(), self._engine_python, then)

    def _case(self, finding: Finding, watching: Watching | None) -> Case:
        """What is known of a failure wherever it is, and what must be removed from that."""
        self._shared.kernel.read()
        env = {**self._shared.environ, **dict(self.config.engine.env)}
        return Case(
            finding,
            watching.causes.evidence() if watching else (),
            {},
            samples=tuple(self._shared.cards.history),
            kernel=tuple(
                without_other_cards(self._shared.kernel.kept, watching.buses if watching else ())
            ),
            secrets=self.run.secrets(env, self.snapshot.plan),
        )

    @property
    def _engine_python(self) -> str:
        return self._planner.inventory.engine.python if self._planner.inventory else ""

    def _on_recorded(self, name: str, problem: str) -> None:
        if not name:
            self.notice("incident", f"cannot keep what happened: {problem}")
            return
        self._mark("incident", name)
        number = int(name.partition("-")[0])
        lacks = f"; {problem}" if problem else ""
        self.notice("incident", f"incident {name}: caovanctl incidents show {number}{lacks}")
