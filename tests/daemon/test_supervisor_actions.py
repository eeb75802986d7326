"""The supervisor performs what the machine asks for: inspect, spawn, end, quit.

Its world is made up: inspections and proofs are the test's, an engine is a shell script.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from caovand.adapters.child import Child
from caovand.adapters.files import state_file
from caovand.adapters.files.directories import Directories
from caovand.adapters.log import Echo
from caovand.adapters.system.processes import Process
from caovand.core.config.schema import (
    Config,
    ModelSection,
    PolicySection,
    ServerSection,
    WatchSection,
)
from caovand.core.facts.inventory import Inventory
from caovand.core.lifecycle.events import Restart, Start, Stop
from caovand.core.lifecycle.state import Snapshot, State
from caovand.daemon.cards import CardUsage
from caovand.daemon.cluster.part import Part
from caovand.daemon.engine import proof
from caovand.daemon.memory_freed import MemoryFreed
from caovand.daemon.start import inspection
from caovand.daemon.start.inspection import PreparedStart, StartObstacle
from caovand.daemon.start.inspector import MAX_REPLANS
from caovand.daemon.supervisor import Supervisor
from caovand.daemon.tuning import Serving
from caovand.preparation import memories
from caovand.preparation.plan_request import PlanRequest
from tests.core.machines import CUDA, inventory, plan
from tests.daemon_process import lives
from tests.patience import soon

FOR_EVER = "exec sleep 600"
STUBBORN = "trap '' TERM; while :; do sleep 0.05; done"
FULL_LENGTH = 262144
TOO_LONG = (
    f"ValueError: max seq len ({FULL_LENGTH}) is larger than the maximum number of tokens that can "
    "be stored in KV cache (15040)"
)
REFUSES_4096 = """
case "$*" in *"--max-model-len 4096"*) echo 'vllm: error: no 4096 on Thursdays'; exit 2;; esac
exec sleep 600"""
FAILS_AT_FULL_LENGTH = f"""
case "$*" in *"--max-model-len {FULL_LENGTH}"*) echo '{TOO_LONG}'; exit 1;; esac
exec sleep 600"""


@dataclass
class World:
    """What inspections find, and how engines do."""

    folder: Path
    obstacles: list[StartObstacle] = field(default_factory=list)
    inspections: int = 0
    may_answer: threading.Event = field(default_factory=threading.Event)
    engine_works: bool = True

    def __post_init__(self) -> None:
        self.may_answer.set()
        self.script(FOR_EVER)

    def script(self, text: str) -> None:
        """What an engine does from now on."""
        engine = self.folder / "engine"
        engine.write_text(f"#!/bin/sh\n{text}\n")
        engine.chmod(0o755)

    def look(self, *_: object) -> Inventory:
        self.inspections += 1
        self.may_answer.wait()
        if self.obstacles:
            raise self.obstacles.pop(0)
        return inventory(engine=replace(CUDA, python=str(self.folder / "engine")))

    def planned_for(self, request: PlanRequest, machine: Inventory) -> PreparedStart:
        length = request.config.model.max_model_len or FULL_LENGTH
        port = {"port": request.config.server.port}
        wanted = plan(machine, model={"max_model_len": length}, server=port)
        return PreparedStart(wanted, machine, "fingerprint", request.chosen_mode)

    async def check_all_reduce(self, *_: object) -> None:
        """The cards that are planned for are not there."""

    async def prove(self, *_: object) -> None:
        await soon(lambda: self.engine_works)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    one = World(tmp_path)
    monkeypatch.setattr(inspection, "inspect", one.look)
    monkeypatch.setattr(inspection, "planned_for", one.planned_for)
    monkeypatch.setattr(inspection, "check_cards", lambda *_: None)
    monkeypatch.setattr(inspection, "check_port", lambda _: None)
    monkeypatch.setattr("caovand.daemon.engine.run.check_all_reduce", one.check_all_reduce)
    monkeypatch.setattr(proof, "prove", one.prove)
    monkeypatch.setattr("caovand.daemon.supervisor.MAX_TICK_S", 0.05)
    monkeypatch.setattr("caovand.daemon.cards.BACK_S", 0.0)
    return one


class Running:
    """A supervisor in this event loop."""

    def __init__(self, world: World, **watch: Any) -> None:
        config = Config(watch=WatchSection(**watch))
        places = Directories(*[world.folder] * 4)
        echo = Echo("console", io.StringIO())
        file = world.folder / "caovan.toml"
        self.whole = Supervisor(file, config, places, {}, structlog.get_logger(), echo)
        (self.one,) = self.whole.slots.values()
        self.task = asyncio.ensure_future(self.whole.run())

    @property
    def s(self) -> Snapshot:
        return self.one.snapshot

    async def until(self, state: State, met: Callable[[], object] = lambda: True) -> Snapshot:
        def reached() -> bool:
            assert not self.task.done(), self.task.exception()
            return self.s.state is state and bool(met())

        await soon(reached)
        return self.s

    def start(self) -> None:
        self.one.apply_operator_event(Start(at=time.monotonic()))

    def stop(self, *, quit: bool = False) -> None:
        self.one.apply_operator_event(Stop(at=time.monotonic(), quit=quit))

    @property
    def pid(self) -> int:
        """That of the engine."""
        pid = self.one.describe()["engine_pid"]
        assert isinstance(pid, int)
        return pid

    def texts(self, kind: str) -> list[str]:
        return [notice.text for notice in self.whole.notices if notice.kind == kind]


def play(world: World, story: Callable[[Running], Coroutine[Any, Any, None]], **watch: Any) -> None:
    """Run a story to its end, and then the daemon to its own."""

    async def whole() -> None:
        running = Running(world, **watch)
        try:
            await story(running)
        finally:
            world.may_answer.set()
            if not running.task.done():
                running.stop(quit=True)
            await running.task

    asyncio.run(whole())


def test_a_start_is_an_inspection_then_an_engine_then_its_proof(world: World) -> None:
    async def story(daemon: Running) -> None:
        world.may_answer.clear()
        world.engine_works = False
        daemon.start()
        await soon(lambda: world.inspections)
        assert (daemon.s.state, daemon.s.phase) == (State.STARTING, "plan")
        assert daemon.one.describe()["engine_pid"] is None
        world.may_answer.set()
        await daemon.until(State.STARTING, lambda: daemon.s.spawned)
        assert lives(daemon.pid)
        world.engine_works = True
        assert (await daemon.until(State.SERVING)).spawns == 1
        assert daemon.texts("spawn") == [f"engine started, pid {daemon.pid}"]

    play(world, story)


def test_a_start_that_serves_says_where_its_seconds_went_and_those_of_the_one_before(
    world: World,
) -> None:
    async def story(daemon: Running) -> None:
        assert daemon.one.describe()["start"] is None
        daemon.start()
        await daemon.until(State.SERVING)
        (first,) = daemon.texts("start")
        assert first.startswith("the start took ")
        shown = daemon.one.describe()["start"]
        assert shown["before"] is None
        assert shown["seconds"] == pytest.approx(sum(shown["phases"].values()), abs=1)
        daemon.one.apply_operator_event(Restart(at=time.monotonic()))
        await daemon.until(State.RECYCLING)
        assert daemon.one.describe()["start"] is None
        await daemon.until(State.SERVING)
        assert "; the previous one took " in daemon.texts("start")[1]
        again = daemon.one.describe()["start"]
        assert again["before"] == {
            **{name: shown[name] for name in ("seconds", "at", "phases", "reported")},
            "same_plan": True,
        }
        kept = json.loads((world.folder / "slots/main/starts.json").read_text())
        assert len(kept["starts"]) == 2

    play(world, story)
    play(world, compared)


async def compared(daemon: Running) -> None:
    """The next daemon's first start is compared with the last one's."""
    daemon.start()
    await daemon.until(State.SERVING)
    assert "; the previous one took " in daemon.texts("start")[0]


def test_a_start_serves_though_the_earlier_ones_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, free = state_file.read_or_none, []

    def no_descriptor_left(path: Path) -> Any:
        if path.name == memories.STARTS and not free:
            raise OSError(errno.EMFILE, "Too many open files")
        return read(path)

    async def story(daemon: Running) -> None:
        daemon.start()
        await daemon.until(State.SERVING)
        assert not daemon.texts("start")
        free.append(True)
        daemon.one.apply_operator_event(Restart(at=time.monotonic()))
        await daemon.until(State.RECYCLING)
        await daemon.until(State.SERVING)
        assert len(daemon.texts("start")) == 1

    monkeypatch.setattr(state_file, "read_or_none", no_descriptor_left)
    play(world, story)


def test_a_stop_ends_the_engine_and_not_the_daemon(world: World) -> None:
    async def story(daemon: Running) -> None:
        daemon.start()
        await daemon.until(State.SERVING)
        first = daemon.pid
        daemon.stop()
        await daemon.until(State.STOPPED)
        assert not lives(first)
        daemon.start()
        await daemon.until(State.SERVING)
        assert daemon.pid != first

    play(world, story)


def test_the_daemon_quits_once_its_engine_is_gone(world: World) -> None:
    async def story(daemon: Running) -> None:
        world.script(STUBBORN)
        daemon.start()
        await daemon.until(State.SERVING)
        engine = daemon.pid
        daemon.stop(quit=True)
        assert daemon.s.quitting
        await daemon.task
        assert daemon.s.state is State.STOPPED
        assert not lives(engine)

    play(world, story, shutdown_timeout_s=0.1)


def test_a_second_stop_gives_no_more_grace(world: World) -> None:
    async def story(daemon: Running) -> None:
        world.script(STUBBORN)
        daemon.start()
        await daemon.until(State.SERVING)
        engine = daemon.pid
        daemon.stop()
        await daemon.until(State.STOPPING)
        daemon.stop()
        await daemon.until(State.STOPPED)
        assert not lives(engine)

    play(world, story, shutdown_timeout_s=3600.0)


def test_what_is_waited_for_is_checked_again_and_again(world: World) -> None:
    async def story(daemon: Running) -> None:
        world.obstacles = [StartObstacle("vram-busy", text, hold=True) for text in ("a", "b", "b")]
        daemon.start()
        await daemon.until(State.SERVING)
        assert (world.inspections, daemon.s.spawns) == (4, 1)
        assert daemon.texts("failure") == ["STARTING -> HOLD: a", "still HOLD: b"]

    play(world, story, recheck_s=0.05)


def test_what_the_operator_must_change_is_not_checked_again(world: World) -> None:
    async def story(daemon: Running) -> None:
        world.obstacles = [StartObstacle("model-missing", "no such model", hold=False)]
        daemon.start()
        await daemon.until(State.FAILED)
        assert daemon.s.deadline is None
        assert world.inspections == 1
        daemon.start()
        await daemon.until(State.SERVING)

    play(world, story, recheck_s=0.05)


def test_an_inspection_that_a_restart_overtook_starts_nothing(world: World) -> None:
    async def story(daemon: Running) -> None:
        world.may_answer.clear()
        daemon.start()
        await soon(lambda: world.inspections == 1)
        daemon.one.apply_operator_event(Restart(at=time.monotonic()))
        await soon(lambda: world.inspections == 2)
        world.may_answer.set()
        await daemon.until(State.SERVING)
        assert (daemon.s.generation, daemon.s.spawns) == (2, 1)
        assert len(daemon.texts("spawn")) == 1

    play(world, story)


def test_a_change_that_fails_at_its_start_leaves_what_served_and_its_own_configuration(
    world: World,
) -> None:
    before = Config()
    changed = replace(
        before, model=ModelSection(max_model_len=4096), policy=PolicySection(mode="fast")
    )

    async def story(daemon: Running) -> None:
        def serves_as_before() -> bool:
            return daemon.s.state is State.SERVING and not daemon.s.replanning

        daemon.start()
        await daemon.until(State.SERVING)
        world.script(REFUSES_4096)
        world.engine_works = False
        daemon.one.reconfigure(replace(changed, watch=daemon.one.config.watch))
        await soon(lambda: daemon.s.refusal)
        world.engine_works = True
        await daemon.until(State.SERVING, lambda: daemon.s.spawns == 3)
        refused = daemon.one.describe()["refusal"]
        assert "the changed plan failed: " in refused["text"]
        assert "no 4096 on Thursdays" in refused["text"]
        assert f"--max-model-len {FULL_LENGTH}" in " ".join(daemon.one.run.argv)
        assert daemon.one.describe()["engine_mode"] == "auto"

        # The same file again, and a crash: neither leads to what is known to fail.
        daemon.one.reconfigure(daemon.one.config)
        await soon(serves_as_before)
        assert daemon.s.refusal is not None
        os.kill(daemon.pid, signal.SIGKILL)
        await daemon.until(State.SERVING, lambda: daemon.s.spawns == 4)
        assert daemon.one.run.mode == "auto"
        assert f"--max-model-len {FULL_LENGTH}" in " ".join(daemon.one.run.argv)

        world.script(FOR_EVER)
        daemon.start()  # as `caovanctl retry` does
        await daemon.until(State.SERVING, lambda: daemon.s.spawns == 5)
        assert "--max-model-len 4096" in " ".join(daemon.one.run.argv)
        assert daemon.s.refusal is None
        assert daemon.one.run.mode == "fast", "started as what it was planned for"

    play(world, story, shutdown_timeout_s=0.1)


def test_what_was_abandoned_is_started_as_it_is_planned_where_nothing_serves(world: World) -> None:
    changed = replace(
        Config(), model=ModelSection(max_model_len=4096), policy=PolicySection(mode="fast")
    )

    async def story(daemon: Running) -> None:
        daemon.start()
        await daemon.until(State.SERVING)
        world.script(REFUSES_4096)
        world.engine_works = False
        daemon.one.reconfigure(replace(changed, watch=daemon.one.config.watch))
        await soon(lambda: daemon.s.abandoned)
        world.engine_works = True
        await daemon.until(State.SERVING)
        os.kill(daemon.pid, signal.SIGKILL)
        await daemon.until(State.BACKOFF)
        world.script(FOR_EVER)
        daemon.start()
        await daemon.until(State.SERVING)
        assert "--max-model-len 4096" in " ".join(daemon.one.run.argv)
        assert daemon.one.run.mode == "fast"

    play(world, story, shutdown_timeout_s=0.1)


def test_an_engine_that_serves_is_not_moved_to_a_port_that_is_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(port: int, *_: object) -> None:
        if port == 8001:
            raise StartObstacle("port-busy", "cannot use port 8001", hold=True)

    async def story(daemon: Running) -> None:
        daemon.start()
        await daemon.until(State.SERVING)
        daemon.one.reconfigure(replace(daemon.one.config, server=ServerSection(port=8001)))
        await soon(lambda: daemon.s.refusal)
        assert (daemon.s.state, daemon.s.spawns) == (State.SERVING, 1)

    monkeypatch.setattr(inspection, "check_port", taken)
    play(world, story)


def test_once_others_have_freed_memory_the_full_plan_is_tried_and_not_again_if_it_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()

    def look(_: MemoryFreed, serving: Serving | None, *rest: object) -> bool:
        plan = serving.plan if serving and free.is_set() else None
        return plan is not None and plan.others_mib.get(0, 0) > 10_000

    async def story(daemon: Running) -> None:
        world.script(FAILS_AT_FULL_LENGTH)
        monkeypatch.setattr(CardUsage, "others", lambda _: {} if free.is_set() else {0: 12_000})
        world.engine_works = False
        daemon.start()
        await daemon.until(State.BACKOFF)
        world.engine_works = True
        served = (await daemon.until(State.SERVING)).plan
        assert served is not None
        assert served.others_mib[0] == 12_000
        world.engine_works = False
        free.set()
        await daemon.until(State.BACKOFF)
        world.engine_works = True
        again = (await daemon.until(State.SERVING)).plan
        assert again is not None
        assert (again.identity, again.others_mib[0]) == (served.identity, 300)
        (text,) = (text for text in daemon.texts("state") if "have freed GPU memory" in text)
        assert text.startswith("SERVING -> RECYCLING: ")
        assert daemon.one.figures.restarts["plan"] == 1

    monkeypatch.setattr(MemoryFreed, "poll", look)
    monkeypatch.setattr("caovand.daemon.supervisor.POLL_S", 0.05)
    play(world, story)


class Changing(Part):
    """Others that change while the first so many plans are made."""

    def __init__(self, times: int) -> None:
        self._times = times

    def outdated(self) -> str:
        self._times -= 1
        return "node n2: its link was lost" if self._times >= 0 else ""


@pytest.mark.parametrize("times", [1, MAX_REPLANS - 1])
def test_what_has_changed_while_it_was_planned_is_planned_anew(world: World, times: int) -> None:
    async def story(daemon: Running) -> None:
        daemon.one.part = Changing(times)
        daemon.start()
        await daemon.until(State.SERVING)
        assert (world.inspections, daemon.s.spawns) == (times + 1, 1)

    play(world, story)


def test_what_changes_each_time_is_waited_for(world: World) -> None:
    async def story(daemon: Running) -> None:
        daemon.one.part = Changing(MAX_REPLANS)
        daemon.start()
        held = await daemon.until(State.HOLD)
        assert held.reason == "cannot start: node n2: its link was lost"
        assert world.inspections == MAX_REPLANS
        await daemon.until(State.SERVING)

    play(world, story, recheck_s=0.05)


def test_an_engine_that_exits_is_started_again_by_the_same_plan(world: World) -> None:
    async def story(daemon: Running) -> None:
        world.script(f"[ -e {world.folder}/ran ] && {FOR_EVER}; : > {world.folder}/ran; exit 3")
        world.engine_works = False
        daemon.start()
        backing_off = await daemon.until(State.BACKOFF)
        assert backing_off.finding is not None
        assert "exit status 3" in backing_off.finding.text
        world.engine_works = True
        await daemon.until(State.SERVING)
        assert (daemon.s.spawns, daemon.s.failures) == (2, 1)
        assert daemon.s.plan == backing_off.plan
        assert world.inspections == 1, "the second start only checks that the cards are free"

    play(world, story)


def test_no_engine_is_started_beside_one_that_could_not_be_ended(world: World) -> None:
    async def outlives(child: Child, *_: object) -> Sequence[Process]:
        return child.refresh()

    told = []

    class Told(Part):
        async def ended(self, *, left: bool) -> None:
            told.append(left)

    async def story(daemon: Running) -> None:
        daemon.one.part = Told()
        daemon.start()
        await daemon.until(State.SERVING)
        first = daemon.pid
        with pytest.MonkeyPatch.context() as kernel:
            kernel.setattr(Child, "end", outlives)
            daemon.one.apply_operator_event(Restart(at=time.monotonic()))
            held = await daemon.until(State.HOLD)
        assert f"(pid {first}) survived SIGKILL; check the kernel log" in held.reason
        assert told == [True]
        assert lives(first)
        await daemon.until(State.SERVING)
        assert not lives(first)
        assert [text for text in daemon.texts("noticed") if "killed orphans of an earlier" in text]

    play(world, story, recheck_s=0.05)


def test_a_full_plan_that_fails_again_goes_back_to_the_plan_that_served(world: World) -> None:
    async def story(daemon: Running) -> None:
        world.script(FAILS_AT_FULL_LENGTH)
        world.engine_works = False
        daemon.start()
        await daemon.until(State.BACKOFF)
        world.engine_works = True
        served = (await daemon.until(State.SERVING)).plan
        assert served is not None
        assert served.rungs
        world.engine_works = False
        daemon.one.retry_full()
        failed = await daemon.until(State.BACKOFF)
        assert failed.plan is not None
        assert not failed.plan.rungs
        assert failed.remedy is not None
        assert failed.remedy.text == "back to the plan that served"
        world.engine_works = True
        again = await daemon.until(State.SERVING)
        assert again.plan == served
        # There is one way back: what fails next is the ladder's to judge.
        assert daemon.one._memory.plans.take_fallback() is None

    play(world, story)
