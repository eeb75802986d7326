"""The run of one engine: spawned, proven, watched, and stopped with all its processes.

A slot runs at most one engine at a time. Observations become events of its machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from caovand.adapters.child import CannotSpawn, Child, Launch, for_people
from caovand.adapters.engine.pump import LogSinks, Ring, RotatedFile
from caovand.adapters.files import safe_files
from caovand.adapters.network.http import Endpoint
from caovand.adapters.privileges.engine_user import as_engine
from caovand.adapters.system.processes import inherited_environ
from caovand.core import limits, secrets
from caovand.core.config.schema import Config, Mode
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import EngineInfo, Gpu, Inventory
from caovand.core.facts.ownership import Process
from caovand.core.healing import ladder
from caovand.core.healing.failure import Finding
from caovand.core.health.observation import GpuSample
from caovand.core.lifecycle.events import EndChild, Exited, Gone, Spawn, Unkillable
from caovand.core.plan import Plan
from caovand.core.reporting.status import EngineFacts
from caovand.core.slot import MAIN_SLOT
from caovand.daemon.cards import CardUsage, wait_for_freed_memory
from caovand.daemon.cluster.part import Part
from caovand.daemon.engine.canary import Canary, FirstAnswers
from caovand.daemon.engine.earlier import EarlierEngine
from caovand.daemon.engine.environ import engine_environ
from caovand.daemon.engine.figures import SlotFigures
from caovand.daemon.engine.watched_run import WatchedRun
from caovand.daemon.engine.watching import Watching
from caovand.daemon.machine import Machine, SlotHooks
from caovand.daemon.shared import Shared, now
from caovand.daemon.start.all_reduce import check_all_reduce
from caovand.daemon.start.inspection import PreparedStart
from caovand.daemon.tasks import Task, cancel
from caovand.preparation.confinement import confinement

RETRY_S = 1.0


class EngineRun:
    """The engine of the slot `name`, whose state machine is `machine`: `figures` accumulates
    counters, `answers` holds each plan's first answer.

    `endpoint` is the address of this engine or the next; `argv`, `mode` and `forecast` are those of
    the last start. `ring` and `file` keep its output.
    """

    def __init__(
        self,
        machine: Machine,
        name: str,
        shared: Shared,
        figures: SlotFigures,
        answers: FirstAnswers,
        hooks: SlotHooks,
    ) -> None:
        engine, notice = machine.engine, machine.notice
        self.child: Child | None = None
        self.watching: Watching | None = None
        self.endpoint: Endpoint | None = None
        self.argv: tuple[str, ...] = ()
        self.mode: Mode = "auto"
        self.forecast: MemoryEstimate | None = None
        places, self._cache = shared.directories, str(shared.directories.cache)
        log = "engine.log" if name == MAIN_SLOT else f"engine-{name}.log"
        self.ring = Ring(machine.config.watch.log_lines, hides=engine.api.polled)
        self.file = RotatedFile(places.logs / log)
        self._name, self._shared, self._engine = name, shared, engine
        self._earlier = EarlierEngine(name, shared, notice)
        self._stale = self._earlier.files
        self._apply, self._notice = machine.apply, notice
        self._figures, self._answers = figures, answers
        self._hooks = hooks
        self._all_reduce_failure: Finding | None = None
        self._unrecorded = ""
        self._kernel_lines: list[str] = []
        self._env: Mapping[str, str] = {}  # of the last start
        self._gpus: Sequence[Gpu] = ()  # before the engine took its share of their memory
        self._ending: Task | None = None
        self._proving: Task | None = None
        cards = CardUsage(self._on_gpu, self._on_kernel_line, partial(notice, "noticed"))
        self.cards = shared.cards.share(cards)
        shared.kernel.listeners.append(self._kernel_lines.extend)

    @property
    def busy(self) -> bool:
        """Whether the engine is processing requests from the gateway."""
        return self._hooks.at_engine() > 0

    @property
    def ending(self) -> bool:
        """Whether an engine is being stopped."""
        return self._ending is not None

    def secrets(self, env: Mapping[str, str], plan: Plan | None) -> tuple[str, ...]:
        """Secrets that no log or incident may contain: those in `env`, and those in the last
        start's own environment, such as a cluster's token."""
        key = self.endpoint.key if self.endpoint else ""
        typed = self._engine.arguments.secrets(plan.extra_args if plan else ())
        return (key, *secrets.secrets_of(env), *secrets.secrets_of(self._env), *typed)

    # -- start ------------------------------------------------------------------------------

    async def end_earlier_engine(self) -> None:
        """Stop the engine that an earlier daemon left; raises inspection.StartObstacle if it
        survives SIGKILL.
        """
        await self._earlier.clear()

    async def share_caches(self, plan: Plan, engine: EngineInfo) -> None:
        """Share the engines' caches with other plans; if that fails, this engine starts cold."""
        command = self._engine.planning.command(plan, engine, self._cache)
        for place, folder in command.links:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(as_engine, safe_files.link_to, place, folder)

    async def check_all_reduce(self, plan: Plan, inventory: Inventory) -> None:
        """Check all-reduce over the cards; a wrong result makes the next start fail."""
        command = self._engine.planning.command(plan, inventory.engine, self._cache)
        env = self._environment(inventory.engine.python, command.env)
        cache, turn = Path(self._cache), self._shared.all_reduce
        self._all_reduce_failure = await check_all_reduce(
            self._engine, plan, inventory, env, cache, self._notice, turn
        )

    def start(
        self,
        action: Spawn,
        config: Config,
        prepared: PreparedStart,
        used: frozenset[int],
        part: Part,
    ) -> None:
        """Spawn a plan's engine on the cards `used`, as this `part` of a cluster; apply Exited if
        that fails."""
        assert self.child is None
        assert self.endpoint is not None
        planning, plan = self._engine.planning, part.own(action.plan)
        places = self._shared.directories
        command = planning.command(plan, prepared.inventory.engine, self._cache)
        self._env = env = self._environment(prepared.inventory.engine.python, command.env)
        self.argv, self.mode = command.shown, prepared.mode
        self.forecast = planning.forecast(plan, prepared.inventory)
        self._kernel_lines.clear()
        if self._all_reduce_failure is not None:
            self._exit_unstarted(self._all_reduce_failure, action.generation)
            return
        watching = Watching(
            WatchedRun(
                engine=self._engine,
                generation=action.generation,
                plan=plan,
                endpoint=self.endpoint,
                section=config.watch,
                ring=self.ring,
                apply=self._apply,
                notice=self._notice,
                cgroup=self._earlier.cgroup,
                on_reading=self._figures.engine(),
                canary=Canary(self._engine, plan, prepared.inventory, self._answers, self._notice),
                occupied=partial(self.cards.taken_since, prepared.inventory.gpus),
                answers=part.answers,
                at_engine=self._hooks.at_engine,
            )
        )
        label = self._shared.label(self._name)

        def on_lines(lines: Sequence[str]) -> None:
            shown = [label + line for line in lines] if label else lines
            self._shared.echo.add(self._engine.name, shown)
            watching.on_lines(lines)

        try:
            launch = Launch(
                argv=command.argv,
                env=env,
                cgroup=self._earlier.cgroup,
                confinement=confinement(
                    self._engine, config, places, command.argv[0], env, plan.model
                ),
                unlimited_stack=command.unlimited_stack,
            )
            sinks = LogSinks(self.ring, self.file, on_lines, self.secrets(env, plan))
            child = Child(launch, sinks, self._earlier.ledger, self._shared.engines)
        except CannotSpawn as problem:
            self._not_spawned(problem, action.generation)
            return
        self.child, self.watching = child, watching
        self._gpus = prepared.inventory.gpus
        watching.buses = frozenset(gpu.bus for gpu in self._gpus if gpu.index in used)
        self.cards.engine(used, child.seen)
        self._notice("spawn", f"engine started, pid {child.pid}", argv=list(self.argv))
        self._shared.tasks.begin(watching.until_exit(child))
        self._shared.attempt("read the engine's files", self._stale.scan(child))
        part.started(action.plan, action.generation)
        if part.answers:
            self._proving = self._shared.tasks.begin(watching.prove(child))

    def _environment(self, python: str, planned: Mapping[str, str]) -> dict[str, str]:
        arguments, key = self._engine.arguments, self.endpoint.key if self.endpoint else ""
        shared = inherited_environ(self._shared.environ, python)
        env = engine_environ(shared, self._cache, self._stale.folder, planned)
        return {**env, arguments.api_key_variable: key} if key else env

    def _not_spawned(self, problem: CannotSpawn, generation: int) -> None:
        limit = limits.limit_reached(problem)
        text = f"{problem}: {limit}" if limit else str(problem)
        captures = {ladder.MACHINE_LIMIT: limit} if limit else {}
        finding = Finding("engine-died", text, "launch", captures)
        self._exit_unstarted(finding, generation)

    def _exit_unstarted(self, finding: Finding, generation: int) -> None:
        """Report the end of an engine that never had a process."""
        exited = Exited(at=now(), chance=random.random(), generation=generation, finding=finding)
        asyncio.get_running_loop().call_soon(self._apply, exited)

    # -- end --------------------------------------------------------------------------------

    def end(self, action: EndChild) -> None:
        """Stop the engine, then apply Gone or Unkillable; a second call cuts the grace period."""
        if self._ending is not None and self.child is not None:
            if action.grace_s == 0:
                self.child.hurry()
            return
        # Otherwise it would continue while the next child starts, and prove that one under the old
        # name.
        cancel(self._proving)
        self._ending = self._shared.tasks.begin(self._end(action))

    async def _end(self, action: EndChild) -> None:
        while True:
            try:
                await self._hooks.before_kill()
                left = await self._end_engine(action.grace_s)
                await self._hooks.after_end(bool(left))
                break
            except Exception as problem:
                if not self._shared.shortage.covers("stop the engine", problem):
                    raise
            await asyncio.sleep(RETRY_S)
            if self.child is not None:
                self.child.hurry()  # its grace period is over
        if self.child is not None:
            self.child.give_up()
        self.child, self._ending = None, None
        self._figures.gone()
        at, chance, generation = now(), random.random(), action.generation
        if left:
            text = (
                f"cannot stop the engine: {for_people(left)} survived SIGKILL; check the kernel log"
            )
            finding = Finding("unknown", text, "ending")
            self._apply(Unkillable(at=at, chance=chance, generation=generation, finding=finding))
        else:
            self._apply(Gone(at=at, chance=chance, generation=generation))

    async def _end_engine(self, grace_s: float) -> tuple[Process, ...]:
        """Stop the engine, and return the processes that survived SIGKILL."""
        child = self.child
        await self._stale.scan(child)
        if child is None:
            # The inspection that would have stopped an earlier engine may have been interrupted.
            return await self._earlier.end()
        left = await child.end(grace_s, partial(self._stale.scan, child))
        if child.unknown:
            other = "another running engine may have started it, and takes it down when it stops"
            text = f"cannot tell which engine left {for_people(child.unknown)}: {other}"
            self._notice("noticed", text)
        if not left:
            await self._stale.remove()
            missing = await wait_for_freed_memory(self._gpus, child.seen, self._hooks.hurry)
            if missing:
                self._notice("noticed", f"the engine exited, but its memory is not free: {missing}")
        return left

    # -- watch ------------------------------------------------------------------------------

    def poll(self, used: frozenset[int]) -> None:
        """Poll a living engine on the cards `used`."""
        kernel = self._kernel_lines[:]
        self._kernel_lines.clear()
        child, watching = self.child, self.watching
        if child is None or watching is None or self.ending:
            return
        if child.unrecorded != self._unrecorded:
            self._unrecorded = child.unrecorded
            if child.unrecorded:
                text = "; if this daemon is killed, the next one may not find the engine"
                self._notice("noticed", child.unrecorded + text)
        self._shared.attempt("read the engine's files", self._stale.scan(child))
        self.cards.engine(used, child.seen)
        self._shared.attempt("query the engine", watching.poll(child, kernel))

    def members(self) -> tuple[Process, ...]:
        """All processes of the engine: those that have exited, and those started since."""
        if self.child is None:
            return ()
        members = {p.pid: p for p in self.child.members}
        try:
            members.update({p.pid: p for p in self.child.refresh()})
        except OSError as problem:
            if not self._shared.shortage.covers("list the engine's processes", problem):
                raise
        return tuple(members.values())

    def describe(self) -> EngineFacts:
        """Describe the engine for the status."""
        return EngineFacts(
            pid=self.child.pid if self.child else None,
            reported=self.reported,
            forecast=self.forecast,
            mode=self.mode if self.child else "",
            log_bytes_lost=self.file.lost_bytes,
            phases=self._engine.log.phases,
            unrecorded=self.child.unrecorded if self.child else "",
        )

    @property
    def reported(self) -> dict[str, Any]:
        """Figures in the living engine's log; empty once the engine has exited."""
        return self.watching.reported if self.child and self.watching else {}

    def samples(self) -> list[GpuSample]:
        """Latest samples of the cards that the engine uses."""
        latest = self._shared.cards.latest
        return [latest[index] for index in sorted(self.cards.used & latest.keys())]

    def _on_gpu(self, sample: GpuSample) -> None:
        if self.watching is not None and self.child is not None:
            self.watching.observe(sample)

    def _on_kernel_line(self, line: str) -> None:
        if self.watching is not None and self.child is not None and not self.ending:
            self.watching.on_kernel_lines(self.child, [line])
