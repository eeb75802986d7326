"""Engine output is parsed in a separate process, and unreadable output is not kept."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.incidents import Incidents
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import Decision
from caovand.core.lifecycle.events import Failed
from caovand.core.plan import Plan
from caovand.core.reporting.incident import FailureContext
from caovand.core.reporting.incident_text import REPORT
from caovand.daemon.engine import causes, reading, watching
from caovand.daemon.records.chronicle import Recorder
from caovand.engines.vllm.log.cause import find_cause
from caovand.engines.vllm.log.reader import LOG
from tests.daemon.test_watching import OOM, WORKER, Broken, watched
from tests.patience import soon, turns

KEY = "sesame-4711"
LINES = (f"{WORKER}WorkerProc failed to start.", OOM, json.dumps({"api_key": "hunter2"}))
CASE = FailureContext(
    Finding("hang", f"nothing moves {KEY}", "serving", {"key": KEY}, "x", 2), LINES,
    {"state": KEY}, Plan(KEY, {}, {}), Decision("again", rung="r", text=KEY), argv=(KEY,),
    kernel=(KEY,), metrics=KEY, secrets=(KEY,),
)  # fmt: skip


def test_it_finds_what_find_cause_finds() -> None:
    assert reading.find_cause(LOG, LINES, "load", alive=True) == (
        find_cause(LINES, "load", alive=True), "",
    )  # fmt: skip
    assert reading.find_cause(LOG, ["nothing"], "load") == (None, "")


def test_a_log_that_is_not_read_in_time_tells_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "STARVED_S", 0.0)
    stopped = Finding("hang", "nothing moves")
    notices: list[str] = []

    def act(watching: watching.Watching, say: Any) -> None:
        say(LINES)
        watching._act(Broken(0.0, stopped))

    events = watched(act, notice=lambda kind, text: notices.append(text))
    failed = [event for event in events if isinstance(event, Failed)]
    assert [event.finding for event in failed] == [stopped]
    assert notices == [
        "cannot find the cause of the failure in the engine's log: the parser took too long"
    ]


def test_the_loop_goes_on_while_a_log_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    def slow(*_: Any, **__: Any) -> tuple[None, str]:
        assert free.wait(120)
        return None, ""

    monkeypatch.setattr(causes, "find_cause", slow)
    ticks: list[int] = []

    async def tick() -> None:
        for number in range(10):
            await turns()
            ticks.append(number)
        free.set()

    def act(watching: watching.Watching, say: Any) -> None:
        watching._act(Broken(0.0, Finding("hang", "nothing moves")))
        watching._tasks.begin(tick())

    assert len(watched(act)) == 1
    assert len(ticks) == 10


def record(tmp_path: Path) -> tuple[list[tuple[str, str]], str]:
    """What is heard of the incident of CASE, and all that is kept of it."""
    told: list[tuple[str, str]] = []

    async def scenario() -> None:
        keeper = Recorder(
            Incidents(tmp_path), lambda name, problem: told.append((name, problem)), LOG
        )
        keeper.take(CASE, (), "")
        await soon(lambda: told)

    asyncio.run(scenario())
    return told, "".join(file.read_text() for file in (tmp_path / told[0][0]).iterdir())


def test_an_incident_is_kept_without_secrets(tmp_path: Path) -> None:
    told, kept = record(tmp_path)
    assert told == [("0001-hang", "")]
    assert "OutOfMemoryError" in kept
    assert KEY not in kept
    assert "hunter2" not in kept
    assert {file.name for file in (tmp_path / "0001-hang").iterdir()} == {
        REPORT, "log.txt", "kernel.txt", "stacks.txt", "metrics.txt",
    }  # fmt: skip


def test_what_could_not_be_cleaned_in_time_is_not_kept_and_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "INCIDENT_S", 0.0)
    told, kept = record(tmp_path)
    why = "could not remove all secrets: the parser took too long"
    assert told == [("0001-hang", why)]
    assert [file.name for file in (tmp_path / "0001-hang").iterdir()] == [REPORT]
    assert KEY not in kept
    assert "OutOfMemoryError" not in kept
    (row,) = Incidents(tmp_path).listed()
    assert (row["failure"], row["text"]) == ("hang", f"({why})")


def test_the_report_is_kept_where_only_a_file_was_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reading.parser_process.ask
    monkeypatch.setattr(
        reading.parser_process, "ask", lambda *a, **b: (whole(*a, **b)[0][:2], "it took too long")
    )
    told, kept = record(tmp_path)
    assert told[0][1].endswith("it took too long")
    assert {file.name for file in (tmp_path / "0001-hang").iterdir()} == {REPORT, "kernel.txt"}
    assert json.loads((tmp_path / "0001-hang" / REPORT).read_text())["cause"]["line"] == OOM
    assert KEY not in kept


def test_the_incident_has_the_lines_in_which_the_cause_was_found() -> None:
    """More is printed while it is looked for, and the ring forgets."""

    def act(watching: watching.Watching, say: Any) -> Any:
        say(LINES)
        watching._act(Broken(0.0, Finding("hang", "nothing moves")))
        say([f"later {n}" for n in range(3000)])
        yield
        assert watching.causes.evidence()[1] == OOM

    (failed,) = (event for event in watched(act) if isinstance(event, Failed))
    assert failed.finding.line == 2
