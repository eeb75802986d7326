"""How a child's watcher interprets its log."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caovand.adapters.child import Child
from caovand.adapters.engine.pump import Ring
from caovand.adapters.network import completions
from caovand.adapters.network.http import Endpoint, HttpResponse, Stranger
from caovand.adapters.system import oom_kills
from caovand.core.config.schema import WatchSection
from caovand.core.figures.counters import Reading
from caovand.core.healing.failure import Failure, Finding
from caovand.core.health import detector
from caovand.core.health.signs import Broken, Probe
from caovand.core.lifecycle.events import Exited, Failed, LifecycleEvent, Proven
from caovand.core.plan import Plan
from caovand.daemon.engine import proof
from caovand.daemon.engine.canary import Canary
from caovand.daemon.engine.watched_run import WatchedRun
from caovand.daemon.engine.watching import Watching
from caovand.engines.registry import engine_of
from caovand.engines.vllm.log.cause import find_cause
from caovand.engines.vllm.log.json_lines import unpack
from caovand.engines.vllm.metrics import parse_metrics
from tests.patience import turns

WORKER = "(Worker_TP1 pid=4) ERROR 11-20 09:20:00 [multiproc_executor.py:962] "
CORE = "(EngineCore pid=31) ERROR 11-20 09:20:00 [core.py:1142] "
OOM = f"{WORKER}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has"
ILLEGAL = f"{CORE}torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
XID = "NVRM: Xid (PCI:0000:01:00): {}, pid=31, name=VLLM::EngineCor, channel 0x0000000a"
LOST = "(APIServer pid=1) ERROR 11-20 09:20:00 [async_llm.py:704] AsyncLLM output_handler failed."
ASSERTED = f"{CORE}torch.AcceleratorError: CUDA error: device-side assert triggered"
LOADING = "(Worker_TP1 pid=4) INFO 11-20 09:13:07 [gpu_model_runner.py:1] Starting to load model m"
READY = "(APIServer pid=1) INFO:     Application startup complete."


def watched(
    act: Callable[[Watching, Callable[[Sequence[str]], None]], Iterator[None] | None],
    stall_s: float | None = None,
    notice: Callable[[str, str], None] = lambda *_: None,
    canary: Canary | None = None,
) -> list[LifecycleEvent]:
    """Events of a watcher that `act` is done to; it may print lines, and yield to what is begun."""
    events: list[LifecycleEvent] = []

    async def run() -> None:
        ring = Ring(2000)
        ring.extend(["of another child"] * 7)
        watching = Watching(WatchedRun(
            engine_of(), 1, Plan("m", {}, {}), Endpoint("127.0.0.1", 1),
            WatchSection(stall_s=stall_s), ring,
            events.append, notice, canary=canary,
        ))  # fmt: skip

        def say(lines: Sequence[str]) -> None:
            ring.extend(lines)
            watching.on_lines(lines)

        for _ in act(watching, say) or ():
            await all_of(watching)
        await all_of(watching)

    asyncio.run(run())
    return events


async def all_of(watching: Watching) -> None:
    """Let all that the watcher has begun come to its end."""
    await turns()
    while watching._tasks._tasks:
        await asyncio.wait(watching._tasks._tasks)


@pytest.mark.parametrize(
    ("failure", "phase", "wrapper", "named"),
    [
        ("start-stall", "load", "WorkerProc failed to start.", "device-oom-load"),
        ("hang", "serving", "WorkerProc hit an exception.", "device-oom-run"),
    ],
)
def test_an_engine_that_stopped_is_blamed_on_the_process_that_failed(
    failure: Failure, phase: str, wrapper: str, named: str
) -> None:
    stopped = Broken(0.0, Finding(failure, "nothing moves", phase))

    def act(watching: Watching, say: Callable[[Sequence[str]], None]) -> Iterator[None]:
        say([OOM])  # not said by a process that fails
        watching._act(stopped)
        yield
        say([f"{WORKER}{wrapper}", OOM])
        watching._act(stopped)

    first, second = (e for e in watched(act) if isinstance(e, Failed))
    assert first.finding == stopped.finding
    assert (second.finding.failure, second.finding.phase) == (named, phase)
    assert "nothing moves" in second.finding.text


@pytest.mark.parametrize(("given", "patience_s"), [(None, 300.0), (100.0, 50.0)])
def test_a_start_is_given_up_before_the_machine_does_where_a_process_failed(
    monkeypatch: pytest.MonkeyPatch, given: float | None, patience_s: float
) -> None:
    now = 0.0
    monkeypatch.setattr("caovand.daemon.engine.watching.now", lambda: now)

    def act(watching: Watching, say: Callable[[Sequence[str]], None]) -> None:
        nonlocal now
        child: Any = SimpleNamespace(status=None)
        say([LOADING])
        now = patience_s + 10
        watching._give_up(child)  # nobody failed, as far as is known
        say([f"{WORKER}WorkerProc failed to start.", OOM])
        now = 2 * patience_s
        watching._give_up(child)
        assert not watching._gave_up
        now = 2 * patience_s + 11
        watching._give_up(child)
        watching._give_up(child)

    events = watched(act, given)
    failed = [e.finding.failure for e in events if isinstance(e, Failed)]
    assert failed == ["device-oom-load"]


@pytest.mark.parametrize("after", [0, 10, 390, 1900, 2100, 9000])
def test_a_cause_is_found_however_many_tracebacks_of_requests_follow(after: int) -> None:
    log = [READY, f"{CORE}EngineCore encountered a fatal error.", ILLEGAL]
    log += [f"(APIServer pid=1) ERROR 11-20 09:20:01 [serving.py:1] {n}" for n in range(after)]

    def act(watching: Watching, say: Callable[[Sequence[str]], None]) -> None:
        for start in range(0, len(log), 3):
            say(log[start : start + 3])
        finding = find_cause(watching.causes.lines(), "serving")
        assert finding is not None
        assert finding.failure == "illegal-access"
        assert watching.causes.lines()[finding.line - 1] == ILLEGAL
        assert watching.causes.lines()[-1] == log[-1]
        assert len(set(watching.causes.lines())) == len(watching.causes.lines())

    watched(act)


def test_what_a_process_failed_of_before_it_served_is_forgotten() -> None:
    def act(watching: Watching, say: Callable[[Sequence[str]], None]) -> None:
        say([f"{WORKER}WorkerProc failed to start.", OOM, READY])
        say(["(APIServer pid=1) INFO 11-20 09:20:01 [x.py:1] idle"] * 3000)
        assert find_cause(watching.causes.lines(), "serving") is None

    watched(act)


def test_the_records_of_a_json_formatter_are_read_like_lines() -> None:
    def record(level: str, text: str) -> str:
        return json.dumps({"levelname": level, "name": "vllm.core", "message": text})

    def act(watching: Watching, say: Callable[[Sequence[str]], None]) -> None:
        say([record("INFO", "Starting to load model m"), record("INFO", "more")])
        assert watching._phase == "load"
        say([record("ERROR", "WorkerProc failed to start.\ntorch.OutOfMemoryError: CUDA out of")])
        say([record("INFO", "later")] * 3000)
        lines = [text for line in watching.causes.lines() for text in unpack(line)]
        finding = find_cause(lines, "resolve", alive=True)
        assert finding is not None
        assert finding.failure == "device-oom-load"
        assert "OutOfMemoryError" in lines[finding.line - 1]

    watched(act)


def polled(
    monkeypatch: pytest.MonkeyPatch, answers: Sequence[object]
) -> tuple[list[LifecycleEvent], list[str], list[int]]:
    """What a serving engine's watcher makes of polls whose /health ends as in `answers`."""
    events: list[LifecycleEvent] = []
    notices: list[str] = []
    threads: list[int] = []

    async def run() -> None:
        def parse(text: str, load: int | None, at: float) -> Reading:
            threads.append(threading.get_ident())
            return parse_metrics(text, load, at)

        engine = engine_of()
        engine = replace(engine, api=replace(engine.api, read_metrics=parse))
        watching = Watching(WatchedRun(
            engine, 1, Plan("m", {}, {}), Endpoint("127.0.0.1", 1),
            WatchSection(), Ring(10),
            events.append, lambda _, text: notices.append(text),
        ))  # fmt: skip
        watching._watch = detector.proven(watching._watch, time.monotonic())
        rest = iter(answers)

        def call(endpoint: Endpoint, path: str, timeout_s: float, **_: object) -> HttpResponse:
            if path != "/health":
                return HttpResponse(200, "vllm:generation_tokens_total 7\n")
            answer = next(rest)
            if isinstance(answer, Exception):
                raise answer
            return HttpResponse(200, "")

        monkeypatch.setattr("caovand.adapters.network.http.call", call)
        child: Any = SimpleNamespace(status=None, members=())
        for _ in answers:
            await watching.poll(child, ())
        await turns()

    asyncio.run(run())
    return events, notices, threads


STRANGER = Stranger("cannot share port 1 with x (pid 7)")


def test_a_stranger_on_the_port_is_believed_at_the_second_look_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events, notices, _ = polled(monkeypatch, [STRANGER, None, STRANGER])
    assert [event for event in events if isinstance(event, Failed)] == []
    assert notices == [f"skipped an engine check: {STRANGER}"] * 2
    events, _, _ = polled(monkeypatch, [STRANGER, STRANGER])
    (failed,) = (event for event in events if isinstance(event, Failed))
    assert (failed.finding.failure, failed.finding.text) == ("port-busy", str(STRANGER))


def test_megabytes_of_metrics_are_not_read_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, threads = polled(monkeypatch, [None])
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("killed", "failure"), [("engine-main", "host-oom"), ("engine-other", "engine-died")]
)
def test_a_kill_at_the_memory_limit_is_the_cause_of_its_own_engine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str, failure: Failure
) -> None:
    monkeypatch.setattr(oom_kills, "_own_group", lambda root: tmp_path)
    groups = {name: tmp_path / name / "memory.events" for name in ("engine-main", "engine-other")}
    for events_file in groups.values():
        events_file.parent.mkdir()
        events_file.write_text("oom_kill 2\n")
    events: list[LifecycleEvent] = []

    async def run() -> None:
        watching = Watching(WatchedRun(
            engine_of(), 1, Plan("m", {}, {}), Endpoint("127.0.0.1", 1), WatchSection(), Ring(10),
            events.append, lambda *_: None, Path("/unit.service/engine-main"),
        ))  # fmt: skip

        watching.on_lines([READY, LOST])  # its core, for vLLM 0.21

        async def ended() -> int:
            groups[killed].write_text("oom_kill 3\n")
            return -9

        await watching.until_exit(cast(Child, SimpleNamespace(ended=ended, drain=lambda _: None)))

    asyncio.run(run())
    (exited,) = (event for event in events if isinstance(event, Exited))
    assert exited.finding.failure == failure


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize(
    ("xid", "words", "failure"),
    [
        (43, [f"{CORE}EngineCore encountered a fatal error.", ASSERTED], "launch-failure"),
        (43, [LOST], "launch-failure"),
        (31, [LOST], "illegal-access"),
        (79, [ASSERTED], "gpu-lost"),
    ],
)
def test_what_a_fault_on_a_card_was_is_said_by_the_engine_and_else_by_the_kernel(
    monkeypatch: pytest.MonkeyPatch, ends: bool, xid: int, words: list[str], failure: Failure
) -> None:
    """As on an H200: the kernel was faster than the log, and each of its Xids means many faults."""
    monkeypatch.setattr("caovand.daemon.engine.watching.LAST_WORDS_S", 60.0 if ends else 0.0)

    def act(watching: Watching, say: Callable[[Sequence[str]], None]) -> Iterator[None]:
        end = asyncio.Event()

        async def ended() -> int:
            await end.wait()
            child.status = 0
            return 0

        core: Any = SimpleNamespace(pid=31)
        child: Any = SimpleNamespace(status=None, members=[core], ended=ended, drain=lambda _: None)
        say([READY])
        watching.on_kernel_lines(child, [XID.format(xid)])
        watching.on_kernel_lines(child, [XID.format(xid)])  # by NVML and by the kernel's log
        say(words)
        if ends:
            end.set()
            watching._tasks.begin(watching.until_exit(child))
        yield

    first = next(event for event in watched(act) if isinstance(event, (Failed, Exited)))
    assert first.finding.failure == failure


class Judge:
    """Finds this in each answer to the fixed prompt, and remembers where it was asked."""

    def __init__(self, finding: Finding | None) -> None:
        self.finding, self.phases = finding, list[str]()

    async def check(self, endpoint: Endpoint, timeout_s: float, phase: str) -> Finding | None:
        self.phases.append(phase)
        return self.finding


@pytest.mark.parametrize(
    ("idle", "finding"),
    [(True, None), (True, Finding("answers-changed", "wrong")), (False, Finding("hang", "no"))],
)
def test_only_an_idle_engine_s_answers_are_compared(
    monkeypatch: pytest.MonkeyPatch, idle: bool, finding: Finding | None
) -> None:
    monkeypatch.setattr(completions, "complete", lambda *_: 5)
    judge = Judge(finding)

    def act(watching: Watching, _: object) -> Iterator[None]:
        watching._act(Probe(0.0, 1.0, "idle for 1 s", idle=idle))
        yield

    events = watched(act, canary=cast(Canary, judge))
    assert judge.phases == ["serving"] * idle
    found = [event.finding for event in events if isinstance(event, Failed)]
    assert found == ([finding] if finding and idle else [])


@pytest.mark.parametrize("finding", [None, Finding("answers-changed", "wrong", "proof")])
def test_an_engine_that_answers_wrongly_is_not_proven(
    monkeypatch: pytest.MonkeyPatch, finding: Finding | None
) -> None:
    async def worked(*_: object) -> None:
        """It did real work."""

    monkeypatch.setattr(proof, "prove", worked)
    judge = Judge(finding)

    def act(watching: Watching, _: object) -> Iterator[None]:
        watching._tasks.begin(watching.prove(cast(Child, SimpleNamespace(pids=lambda: ()))))
        yield

    events = watched(act, canary=cast(Canary, judge))
    assert judge.phases == ["proof"]
    assert [type(event) for event in events] == [Failed if finding else Proven]
