"""The supervisor: one loop that owns the snapshot, applies events to it and performs actions.

Everything here runs on the main thread's event loop; what blocks (probes, HTTP) runs in threads
and comes back as an event. Decisions are made in `core`, the world is touched in `adapters`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
import traceback
from collections import Counter, deque
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from caovand import __version__, inspection, lowered, memories
from caovand.adapters.child import CannotSpawn, Child, end_leftovers, named
from caovand.adapters.config_file import ModeMemory
from caovand.adapters.directories import Directories
from caovand.adapters.http import Endpoint
from caovand.adapters.incidents import Incidents
from caovand.adapters.kernel_log import KernelLog
from caovand.adapters.log import Echo
from caovand.adapters.notify import Notifier
from caovand.adapters.processes import Process, engine_cgroup, inherited
from caovand.adapters.pump import Ring, RotatedFile
from caovand.cards import Cards
from caovand.core import (
    events,
    flags,
    incident,
    ladder,
    limits,
    machine,
    neighbours,
    secrets,
    status,
)
from caovand.core.announcement import announcement
from caovand.core.config import Config, ConfigError, Mode
from caovand.core.events import (
    Action,
    End,
    Event,
    Exited,
    Gone,
    Inspect,
    Planned,
    Quit,
    Refused,
    Spawn,
    Tick,
    Unkillable,
)
from caovand.core.failure import Finding
from caovand.core.forecast import forecast
from caovand.core.incident import Case
from caovand.core.ladder import Decision
from caovand.core.machine import Rules, Snapshot, State
from caovand.core.memory import MemoryEstimate
from caovand.core.observation import GpuSample
from caovand.core.plan import Plan
from caovand.core.wire import Notice
from caovand.engines.vllm.command import build, shown
from caovand.leavings import Leavings
from caovand.lowered import Lowered
from caovand.planning import Planning
from caovand.recorder import Recorder
from caovand.shortage import Shortage
from caovand.unwritten import Unwritten
from caovand.watching import Watching

LONGEST_TICK_S = 5.0
POLL_S = 5.0
RETRY_S = 1.0
NOTICES = 1000
KERNEL_LINES = 200
RECORD_S = 5.0
DAEMONS_OWN = ("control", "metrics", "log")  # sections that are read once


class Supervisor:
    """Runs one engine; `apply` is the only way its snapshot changes."""

    def __init__(
        self,
        config_path: Path,
        config: Config,
        directories: Directories,
        environ: Mapping[str, str],
        log: Any,
        echo: Echo,
    ) -> None:
        self.config_path, self.config, self.directories = config_path, config, directories
        self.environ, self._log, self._echo = environ, log, echo
        set_aside = list(memories.set_aside(directories.state))
        self.modes = ModeMemory(directories.state / memories.MODE)
        self.ring = Ring(config.watch.log_lines)
        self.notices: deque[Notice] = deque(maxlen=NOTICES)
        self.snapshot = Snapshot(since=self._now())
        self.changed = asyncio.Event()
        self.notifier = Notifier(environ)
        self.publish: list[Any] = []
        self._shortage = Shortage(self.notice)
        self._file = RotatedFile(directories.logs / "engine.log")
        self._unwritten = Unwritten(directories, self.notice)
        self._ledger = directories.state / memories.PROCESSES
        self._lowered = Lowered(directories.state / lowered.FILE)
        self._leavings = Leavings(directories, self.notice)
        self._planning = Planning(directories, environ, self._lowered, config_path)
        self._plan_mode: Mode = "auto"
        self._forecast: MemoryEstimate | None = None
        self._failed: Counter[str] = Counter()
        self._cgroup = engine_cgroup(os.environ)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._child: Child | None = None
        self._unrecorded = ""
        self._watching: Watching | None = None
        self._kernel = KernelLog()
        self._kernel_lines: deque[str] = deque(maxlen=KERNEL_LINES)
        self.incidents = Incidents(directories.state / "incidents")
        self._recorder = Recorder(self.incidents, self._recorded)
        self._last_mark = ""
        self._cards = Cards(
            config.watch.gpu_sample_s,
            self._on_gpu,
            self._on_kernel_line,
            lambda text: self.notice("noticed", text),
        )
        self._ending: asyncio.Task[None] | None = None
        self._inspecting: asyncio.Task[None] | None = None
        self._proving: asyncio.Task[None] | None = None
        self._endpoint: Endpoint | None = None
        self.argv: tuple[str, ...] = ()
        self._revision = 0
        self._quit = asyncio.Event()
        self._fault: BaseException | None = None
        for text in set_aside:
            self.notice("noticed", text)

    # -- the loop ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Tick, feed the watchdog and look after the child, until Quit was performed."""
        beat_s = min(LONGEST_TICK_S, (self.notifier.watchdog_s or LONGEST_TICK_S * 3) / 3)
        next_poll = self._now()
        while not self._quit.is_set():
            self.notifier.alive()
            now = self._now()
            self.apply(Tick(now, random.random()))
            if now >= next_poll:
                next_poll = now + POLL_S
                try:
                    self._look_after_child()
                except Exception as problem:
                    if not self._shortage.met("look after the engine", problem):
                        raise
                self._shortage.look()
            due = self.snapshot.deadline
            wait_s = beat_s if due is None else min(beat_s, max(due - now, 0.01))
            self._extend_stop()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.changed.wait(), wait_s)
        for task in list(self._tasks):
            task.cancel()
        self._cards.stop()
        try:
            await asyncio.to_thread(self._recorder.flush, RECORD_S)
        except RuntimeError as problem:
            if not limits.reached(problem):
                raise
        if self._fault is not None:
            raise self._fault

    def apply(self, event: Event) -> None:
        """Let the machine take one event, and perform what it asks for.

        An exception is a fault of ours that may leave work half done: the daemon ends with it.
        """
        try:
            before = self.snapshot
            self.snapshot, actions = machine.step(before, event, self._rules())
            if self.snapshot is not before:
                self._tell(before, self.snapshot)
            for action in actions:
                self._perform(action)
        except Exception as problem:
            self._give_up(problem)
            raise

    def _rules(self) -> Rules:
        watch = self.config.watch
        return Rules(
            failures=watch.failures,
            stall_s=watch.stall_s,
            stable_after_s=watch.stable_after_s,
            drain_s=watch.shutdown_timeout_s,
            judge=self._judge,
        )

    def _judge(self, plan: Plan, finding: Finding, repeats: int) -> Decision:
        """The ladder's decision; a failed `retry --full` goes back to what served."""
        good = self._lowered.take_way_back()
        if good is not None:
            return Decision("lower", good, text="back to the plan that served")
        used = self._planning.used(self.config.engine.gpus)
        others = neighbours.most(used, self._cards.others())
        rules = ladder.rules_of(self.config.policy, self._planning.conflicts, others)
        return ladder.decide(plan, finding, repeats, rules)

    def _perform(self, action: Action) -> None:
        if isinstance(action, Inspect):
            self._forgo(self._inspecting)
            self._inspecting = self._spawn_task(self._inspect(action))
        elif isinstance(action, Spawn):
            self._start_child(action)
        elif isinstance(action, End):
            self._end_child(action)
        elif isinstance(action, Quit):
            self._quit.set()
            self._wake()

    # -- what the operator does -------------------------------------------------------------

    def command(self, event: Event) -> None:
        """Apply an operator's event; replies can refer to the new `revision`."""
        self._revision += 1
        self.apply(event)

    def reconfigure(self, config: Config) -> None:
        """Use another configuration from now on."""
        before, self.config = self.config, config
        if self._watching is not None:
            self._watching.heed(config.watch)
        fixed = [f"[{n}]" for n in DAEMONS_OWN if getattr(config, n) != getattr(before, n)]
        for name in ("gpu_sample_s", "log_lines"):
            if getattr(config.watch, name) != getattr(before.watch, name):
                fixed.append(f"[watch] {name}")
        if fixed:
            names = ", ".join(fixed)
            self.notice("noticed", f"changes of {names} count from the daemon's next start on")
        self._lowered.no_way_back()
        self.command(events.Reconfigured(self._now(), changed=config != before))

    def choose_mode(self, mode: Mode | None, *, defer: bool) -> None:
        """Remember a mode (None: the file's); with `defer` the engine is left alone for now."""
        self.modes.choose(mode)
        self._lowered.no_way_back()
        self.notice("mode", f"mode {self.mode[0]}, {self.mode[1]}")
        if not defer:
            self.command(events.Reconfigured(self._now()))

    def forget(self) -> None:
        """Forget the lowered plan that served; a changed plan restarts the engine."""
        self._lowered.forget()
        self.command(events.Reconfigured(self._now()))

    def retry_full(self) -> None:
        """Try the plan without the ladder's steps once; the present one is the way back."""
        self._lowered.leave_out_once(self.snapshot.plan)
        self.command(events.Restart(self._now(), reason="the full plan is tried again"))

    @property
    def mode(self) -> tuple[Mode, str]:
        """The mode in force and where it comes from."""
        if self.modes.mode is not None:
            return self.modes.mode, "caovanctl mode"
        return self.config.policy.mode, str(self.config_path)

    def describe(self) -> dict[str, Any]:
        """The status document."""
        # What an engine that is gone reported is of no interest any more.
        watching = self._watching if self._child else None
        progress = watching.progress if watching else None
        facts = status.Facts(
            version=__version__,
            pid=os.getpid(),
            mode=self.mode[0],
            mode_origin=self.mode[1],
            engine_mode=self._plan_mode if self._child else "",
            config_path=str(self.config_path),
            engine_pid=self._child.pid if self._child else None,
            figures=watching.figures if watching else {},
            progress=vars(progress) if progress else {},
            revision=self._revision,
            gpus=tuple(self._cards.latest.values()),
            forecast=self._forecast,
            lowered_at=self._lowered.since,
            failed=dict(self._failed),
            warnings=self._warnings(),
        )
        return status.describe(self.snapshot, facts, self._now())

    def _warnings(self) -> tuple[str, ...]:
        """What keeps this daemon from doing all of its work."""
        unrecorded = self._child.unrecorded if self._child else ""
        return tuple(
            filter(None, (self._shortage.text, *self._unwritten.texts.values(), unrecorded))
        )

    def notice(self, kind: str, text: str, **data: Any) -> None:
        """Publish an event and log it."""
        seq = self.notices[-1].seq + 1 if self.notices else 1
        entry = Notice(seq, time.time(), kind, text, data)
        self.notices.append(entry)
        for listener in self.publish:
            listener(entry)
        (self._log.error if kind == "failure" else self._log.info)(text)

    # -- actions ----------------------------------------------------------------------------

    async def _inspect(self, action: Inspect) -> None:
        living = self.snapshot.plan if self._child else None
        try:
            if self._ending is not None:
                # The machine gave up waiting for that; a second child beside it must not be.
                text = "cannot start: the engine before is still being ended"
                raise inspection.Obstacle("vram-busy", text, hold=True, phase="ending")
            if self._child is None:
                await self._clear_the_way()
            plan, endpoint = await self._planning.plan(
                self.config, self.modes.mode, action.plan, living, self._plan_mode
            )
            if self._child is None:
                await asyncio.to_thread(inspection.check_port, endpoint.port)
        except inspection.Obstacle as obstacle:
            hold = obstacle.hold or bool(limits.reached(obstacle))
            event: Event = Refused(
                self._now(), random.random(), action.number, obstacle.finding, hold
            )
        except ConfigError as problem:
            # The key's file, read anew for each engine: it may be on its way.
            finding = Finding("bad-arguments", str(problem), "plan")
            event = Refused(self._now(), random.random(), action.number, finding, True)
        except Exception as problem:
            limit = limits.reached(problem)
            if limit:
                text = f"cannot find out whether the engine can start: {limit}"
            else:
                # A fault of ours on this model or machine: it must not cost an engine that serves.
                traceback.print_exc()
                fault = f"{type(problem).__name__} in caovand: {problem}"
                text = f"cannot plan: {fault}; please report it"
            finding = Finding("unknown", text, "plan")
            event = Refused(self._now(), random.random(), action.number, finding, bool(limit))
        else:
            if self._child is None:
                self._endpoint = endpoint
            event = Planned(self._now(), random.random(), action.number, plan)
        self.apply(event)

    async def _clear_the_way(self) -> None:
        ended = await inspection.end_leftovers(self._ledger, self._leavings.take_over)
        if ended:
            self.notice("noticed", f"ended what an earlier engine left: {named(ended)}")
        await self._leavings.begin()

    def _start_child(self, action: Spawn) -> None:
        assert self._child is None
        prepared = self._planning.prepared
        assert prepared is not None
        assert self._endpoint is not None
        command = build(action.plan, prepared.inventory.engine, self.directories.cache)
        env = inherited(self.environ, prepared.inventory.engine.python)
        if self._leavings.folder is not None:
            env["TMPDIR"] = str(self._leavings.folder)
        env.update(command.env)
        if self._endpoint.key:
            env["VLLM_API_KEY"] = self._endpoint.key
        self.argv, self._plan_mode = shown(command), prepared.mode
        self._forecast = forecast(action.plan, prepared.inventory)
        generation = action.generation
        watching = Watching(
            generation,
            action.plan,
            self._endpoint,
            self.config.watch,
            self.ring,
            self.apply,
            self.notice,
        )

        def on_lines(lines: Sequence[str]) -> None:
            self._echo.add(lines)
            watching.on_lines(lines)

        try:
            child = Child(
                command.argv,
                env,
                ledger=self._ledger,
                ring=self.ring,
                file=self._file,
                cgroup=self._cgroup,
                on_lines=on_lines,
                secrets=self._secrets(env, action.plan),
                unlimited_stack=command.unlimited_stack,
            )
        except CannotSpawn as problem:
            limit = limits.reached(problem)
            text = f"{problem}: {limit}" if limit else str(problem)
            captures = {ladder.LIMIT: limit} if limit else {}
            finding = Finding("engine-died", text, "launch", captures)
            self._loop.call_soon(
                self.apply, Exited(self._now(), random.random(), generation, finding)
            )
            return
        self._child, self._watching = child, watching
        used = self._planning.cards(self.config.engine.gpus)
        gpus = prepared.inventory.gpus
        watching.buses = frozenset(gpu.bus for gpu in gpus if gpu.index in used)
        self._cards.engine(used, child.seen)
        self.notice("spawn", f"engine started, pid {child.pid}", argv=list(self.argv))
        self._spawn_task(watching.until_exit(child))
        self._spawn_task(self._look("see the files of the engine", self._leavings.look(child)))
        self._proving = self._spawn_task(watching.prove(child))

    def _end_child(self, action: End) -> None:
        if self._ending is not None and self._child is not None:
            if action.grace_s == 0:
                self._child.hurry()
            return
        # Both would go on beside the next child: the one would prove it under the old name, the
        # other would end what it finds in the ledger.
        self._forgo(self._proving)
        self._forgo(self._inspecting)
        self._ending = self._spawn_task(self._end(action))

    async def _end(self, action: End) -> None:
        while True:
            try:
                left = await self._ended(action)
                break
            except Exception as problem:
                if not self._shortage.met("end the engine", problem):
                    raise
            await asyncio.sleep(RETRY_S)
            if self._child is not None:
                self._child.hurry()  # it has had its grace
        self._child, self._ending = None, None
        generation = action.generation
        if left:
            text = f"cannot end the engine: {named(left)} outlived KILL; look in the kernel log"
            finding = Finding("unknown", text, "ending")
            self.apply(Unkillable(self._now(), random.random(), generation, finding))
        else:
            self.apply(Gone(self._now(), random.random(), generation))

    async def _ended(self, action: End) -> tuple[Process, ...]:
        """End the engine; what outlived that."""
        child = self._child
        await self._recorder.before_kill()
        await self._leavings.look(child)
        if child is None:
            # The inspection that would have ended an earlier engine's may have been cut short.
            _, left = await end_leftovers(self._ledger, self._leavings.take_over)
        else:
            left = await child.end(action.grace_s, partial(self._leavings.look, child))
            if not left:
                await self._leavings.remove()
                await self._until_memory_is_back(child)
        return left

    async def _until_memory_is_back(self, child: Child) -> None:
        inventory = self._planning.inventory
        before = inventory.gpus if inventory else ()
        # A daemon that ends has no next engine to wait for.
        missing = await self._cards.memory_back(before, child.seen, lambda: self.snapshot.quitting)
        if missing:
            self.notice("noticed", f"the engine ended, and its memory is not free: {missing}")

    def _look_after_child(self) -> None:
        kernel = self._kernel.read()
        self._kernel_lines.extend(kernel)
        written = self._unwritten.look(self._file)
        self._spawn_task(self._look("see whether the disks can be written", written))
        child = self._child
        if child is None or self._watching is None or self._ending is not None:
            return
        if child.unrecorded != self._unrecorded:
            self._unrecorded = child.unrecorded
            if child.unrecorded:
                text = "; if this daemon is killed, the next one may not find the engine"
                self.notice("noticed", child.unrecorded + text)
        self._spawn_task(self._look("see the files of the engine", self._leavings.look(child)))
        self._cards.engine(self._planning.cards(self.config.engine.gpus), child.seen)
        self._spawn_task(self._look("ask the engine", self._watching.poll(child, kernel)))

    async def _look(self, doing: str, work: Awaitable[None]) -> None:
        """What is done again and again: without the means for it, the next time is soon enough."""
        try:
            await work
        except Exception as problem:
            if not self._shortage.met(doing, problem):
                raise

    def _on_gpu(self, sample: GpuSample) -> None:
        if self._watching is not None and self._child is not None:
            self._watching.observe(sample)

    def _on_kernel_line(self, line: str) -> None:
        self._kernel_lines.append(line)
        if self._watching is not None and self._child is not None and self._ending is None:
            self._watching.heard_kernel(self._child, [line])

    # -- telling ----------------------------------------------------------------------------

    def _tell(self, before: Snapshot, after: Snapshot) -> None:
        if after.state is State.SERVING and before.deadline and after.deadline is None:
            self._remember(after)
        if after.plan is not before.plan:
            self._lowered.date(after.plan)
        told = announcement(before, after)
        if told is not None:
            self.notice(told.kind, told.text, **told.data)
        if told is not None and told.failed:
            assert after.finding is not None
            self._failed[after.finding.failure] += 1
            self._record(after)
        if status.one_line(after) != status.one_line(before):
            self.notifier.status(status.one_line(after))
        self._wake()

    def _record(self, snapshot: Snapshot) -> None:
        """Begin an incident for the failure in `snapshot`."""
        child, watching = self._child, self._watching
        assert snapshot.finding is not None
        last, self._last_mark = self._last_mark, incident.mark(snapshot)
        if snapshot.failures > 1 and last and last == self._last_mark:
            again = f"the same failure, {snapshot.failures} in a row now"
            self.notice("incident", f"{again}: the incident of the first is kept, no other written")
            return
        self._kernel_lines.extend(self._kernel.read())
        env = {**self.environ, **dict(self.config.engine.env)}
        inventory = self._planning.inventory
        case = Case(
            snapshot.finding,
            watching.evidence() if child and watching else (),
            self.describe(),
            plan=snapshot.plan,
            decision=snapshot.remedy if child else None,
            inventory=inventory,
            argv=self.argv if child else (),
            samples=tuple(self._cards.history),
            kernel=tuple(self._kernel_lines),
            metrics=watching.metrics if child and watching else "",
            secrets=self._secrets(env, snapshot.plan),
        )
        python = inventory.engine.python if inventory else ""
        # Those that are gone already, and those that came since.
        members = {p.pid: p for p in child.members} if child else {}
        try:
            members.update({p.pid: p for p in child.look()} if child else {})
        except OSError as problem:
            if not self._shortage.met("see the engine's processes", problem):
                raise
        self._recorder.take(case, tuple(members.values()), python)

    def _secrets(self, env: Mapping[str, str], plan: Plan | None) -> tuple[str, ...]:
        """What must be in no log and no incident."""
        key = self._endpoint.key if self._endpoint else ""
        return (
            key,
            *secrets.secrets_of(env),
            *flags.secret_values(plan.extra_args if plan else ()),
        )

    def _recorded(self, name: str, problem: str) -> None:
        if not name:
            self.notice("incident", f"cannot keep what happened: {problem}")
            return
        number = int(name.partition("-")[0])
        lacks = f"; {problem}" if problem else ""
        self.notice("incident", f"incident {name}: caovanctl incidents show {number}{lacks}")

    def _remember(self, snapshot: Snapshot) -> None:
        """The plan has served stably: keep it for the next start if the ladder had to lower it."""
        prepared = self._planning.prepared
        if snapshot.plan is None or prepared is None:
            return
        try:
            self._lowered.served_stably(snapshot.plan, prepared.fingerprint, self._plan_mode)
        except OSError as problem:
            self._log.warning(f"cannot remember the plan that served: {problem}")

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def _extend_stop(self) -> None:
        if self.snapshot.state is not State.STOPPING or self.snapshot.deadline is None:
            return
        within_s = self.snapshot.deadline - self._now() + LONGEST_TICK_S
        if self.snapshot.quitting:
            self.notifier.stopping(within_s)
        else:
            self.notifier.extend(within_s)

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    @staticmethod
    def _forgo(task: asyncio.Task[None] | None) -> None:
        """Cancel what is of no use any more; who asks may be that task, at its end."""
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._give_up(task.exception())

    def _give_up(self, fault: BaseException | None) -> None:
        """End over a fault of ours: systemd starts a fresh daemon, which ends what we leave."""
        self._fault = fault
        self._quit.set()
        self._wake()

    @staticmethod
    def _now() -> float:
        return time.monotonic()
