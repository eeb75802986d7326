"""Two slots in one daemon, over the stand-in engine: neither affects the other."""

from __future__ import annotations

import asyncio
import ctypes
import io
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from caovand.adapters.files import config_file
from caovand.adapters.files.directories import Directories
from caovand.adapters.log import Echo
from caovand.adapters.network.http import Endpoint, call
from caovand.adapters.system import processes
from caovand.adapters.system.threads import Threads
from caovand.core.config.schema import Config
from caovand.core.healing.failure import Finding
from caovand.core.lifecycle.events import Start, Stop
from caovand.core.lifecycle.state import State
from caovand.core.plan import Plan, Setting
from caovand.core.reporting.wire import Request
from caovand.daemon.requests import verbs
from caovand.daemon.slot import Slot
from caovand.daemon.supervisor import Supervisor
from caovand.preparation import memories
from tests.patience import soon
from tests.scenarios.test_supervision import configuration, model

__all__ = ["model"]  # a fixture
ESCAPEE = f"escaped-{os.getpid()}"[:15]


@pytest.fixture(autouse=True)
def _as_the_daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Adopt orphans, and look at everything often."""
    for name in ("POLL_S", "MAX_TICK_S"):
        monkeypatch.setattr(f"caovand.daemon.supervisor.{name}", 0.1)
    monkeypatch.setenv("STANDIN_BUILD", "cpu")
    processes.become_subreaper()
    yield
    ctypes.CDLL(None).prctl(processes.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class Two:
    """A daemon with the slots `a` and `b`, each with an engine process that left its session."""

    def __init__(self, folder: Path, model: Path) -> None:
        asyncio.get_running_loop().set_default_executor(Threads())
        places = Directories(*(folder / name for name in ("run", "state", "cache", "log")))
        places.make()
        configs = {name: self._config(folder / f"{name}.toml", model) for name in "ab"}
        self.out = io.StringIO()
        self.one = Supervisor(
            folder / "caovan.toml",
            Config(),
            places,
            dict(os.environ),
            structlog.get_logger(),
            Echo("console", self.out),
            configs,
        )
        self.a, self.b = self.one.slots.values()
        self.state = places.state
        self.running = asyncio.ensure_future(self.one.run())

    @staticmethod
    def _config(path: Path, model: Path) -> Config:
        path.write_text(configuration(model, {"escape": ESCAPEE}))
        config = config_file.load(path)
        return replace(config, watch=replace(config.watch, shutdown_timeout_s=0.2))

    async def until(self, met: Callable[[], object]) -> None:
        def reached() -> bool:
            assert not self.running.done(), self.running.exception()
            return bool(met())

        await soon(reached)

    async def serving(self) -> None:
        """Start both, and let both serve."""
        self.one.apply_operator_event(Start(at=time.monotonic()))
        for slot in self.a, self.b:
            await self.until(lambda slot=slot: serves(slot) and len(living(slot)) == 3)


def serves(slot: Slot) -> bool:
    return slot.snapshot.state is State.SERVING


def living(slot: Slot) -> set[int]:
    """The processes of a slot's engine."""
    return set(slot.run.child.pids()) if slot.run.child else set()


def answers(slot: Slot) -> bool:
    endpoint = slot.run.endpoint
    assert isinstance(endpoint, Endpoint)
    return call(endpoint, "/health", 30.0).status == 200


def untouched(slot: Slot) -> tuple[Any, ...]:
    """What changes where an engine was restarted, or met with a failure."""
    assert slot.run.child is not None
    seen = slot.snapshot
    return slot.run.child.pid, living(slot), seen.state, seen.generation, seen.failures, seen.since


def play(folder: Path, model: Path, story: Callable[[Two], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        two = Two(folder, model)
        try:
            await story(two)
        finally:
            if not two.running.done():
                two.one.apply_operator_event(Stop(at=time.monotonic(), quit=True))
            await two.running
        assert not escapees(), "nothing is left behind"

    asyncio.run(whole())


def escapees() -> set[int]:
    return {p.pid for p in processes.all_processes() if p.name == ESCAPEE and not p.zombie}


def test_the_death_of_one_engine_is_healed_and_the_other_never_notices(
    tmp_path: Path, model: Path
) -> None:
    async def story(two: Two) -> None:
        await two.serving()
        dead, before = living(two.a), untouched(two.b)
        assert not dead & living(two.b)
        assert len(escapees()) == 2
        first = two.a.run.child
        assert first is not None
        (core,) = {process.pid for process in first.members if process.name == "VLLM::EngineCor"}
        for pid in (core, first.pid):  # one is left, an orphan in a session of its own
            os.kill(pid, signal.SIGKILL)
        await two.until(lambda: two.a.snapshot.spawns == 2 and serves(two.a))
        assert two.a.snapshot.failures == 1
        await two.until(lambda: len(living(two.a)) == 3)
        assert not dead & {p.pid for p in processes.all_processes() if not p.zombie}
        assert untouched(two.b) == before
        assert await asyncio.to_thread(answers, two.b)
        of = [notice.data.get("slot") for notice in two.one.notices if notice.kind == "failure"]
        assert of == ["a"]
        assert [row["failure"] for row in two.a.incidents.listed()]
        assert two.b.incidents.listed() == []

    play(tmp_path, model, story)


def test_an_incident_is_written_without_what_the_log_lacks(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without secrets that are in no configuration, as a cluster's token."""
    token = Setting("4f" * 32, "policy", "of the cluster's key")

    def own(plan: Plan) -> Plan:
        return replace(plan, env={**plan.env, "RAY_AUTH_TOKEN": token})

    async def story(two: Two) -> None:
        monkeypatch.setattr(two.a.part, "own", own)
        await two.serving()
        finding = Finding("unknown", "", "serving")
        assert token.value in two.a.failures._case(finding, two.a.run.watching).secrets
        assert token.value not in two.b.failures._case(finding, two.b.run.watching).secrets

    play(tmp_path, model, story)


def test_one_is_stopped_and_the_other_serves_on(tmp_path: Path, model: Path) -> None:
    async def story(two: Two) -> None:
        await two.serving()
        ended, before = living(two.a), untouched(two.b)
        unnamed = await verbs.answer(two.one, Request("stop"))
        assert (unnamed.code, unnamed.hint) == ("which-model", "name one of: a, b")
        assert (await verbs.answer(two.one, Request("stop", model="a"))).ok
        await two.until(lambda: two.a.snapshot.state is State.STOPPED)
        assert not ended & {p.pid for p in processes.all_processes() if not p.zombie}
        assert len(escapees()) == 1
        assert untouched(two.b) == before
        assert await asyncio.to_thread(answers, two.b)
        assert (await verbs.answer(two.one, Request("start", model="a"))).ok
        await two.until(lambda: serves(two.a))
        assert untouched(two.b) == before

    play(tmp_path, model, story)


@pytest.mark.long
def test_each_has_its_own_state_and_both_are_shown(tmp_path: Path, model: Path) -> None:
    async def story(two: Two) -> None:
        await two.serving()
        reply = await verbs.answer(two.one, Request("mode", {"mode": "fast"}, model="b"))
        assert reply.ok
        await two.until(lambda: serves(two.b) and two.b.snapshot.spawns == 2)
        assert (two.a.mode[0], two.b.mode[0]) == ("auto", "fast")
        assert (memories.folder(two.state, "b") / memories.MODE).is_file()
        assert not (memories.folder(two.state, "a") / memories.MODE).exists()
        for name, slot in (("a", two.a), ("b", two.b)):
            assert (memories.folder(two.state, name) / memories.PROCESSES).is_file()
            assert slot.run.file.path.name == f"engine-{name}.log"
            status = (await verbs.answer(two.one, Request("status", model=name))).result
            assert status is not None
            assert status["engine_pid"] == slot.describe()["engine_pid"]
            assert [entry["name"] for entry in status["slots"]] == [name]
        two.a.apply_operator_event(Stop(at=time.monotonic()))
        await two.until(lambda: two.a.snapshot.state is State.STOPPED)
        assert [entry["name"] for entry in two.one.describe()["slots"]] == ["a", "b"]
        assert two.one.one_line.startswith("a: STOPPED: stopped; b: SERVING ")
        texts = [notice.text for notice in two.one.notices if notice.kind == "spawn"]
        assert sorted(text.partition(":")[0] for text in texts) == ["a", "b", "b"]

    play(tmp_path, model, story)
