"""State files that are damaged, huge, no files, or from a newer version: reported, then ignored."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters import child
from caovand.adapters.files import state_file
from caovand.adapters.files.config_file import ModeMemory
from caovand.adapters.files.stale_files import StaleFiles
from caovand.adapters.incidents import Incidents, NoIncident
from caovand.adapters.system import processes
from caovand.core.config.parser import parse
from caovand.core.facts.ledger import Marks
from caovand.core.healing import degraded
from caovand.core.health.canary import GreedyAnswer, to_document
from caovand.core.plan import Plan, Setting, Taken, Unplannable
from caovand.core.reporting import starts
from caovand.core.reporting.starts import CompletedStart
from caovand.core.tuning import record
from caovand.core.tuning.evidence import Measurements
from caovand.daemon.engine.canary import FirstAnswers
from caovand.daemon.start import inspection
from caovand.daemon.start.degraded_plan import PlanMemory
from caovand.daemon.start.starts import Starts
from caovand.daemon.tuning import DraftTuner
from caovand.engines.registry import engine_of
from caovand.engines.vllm.healing.cures import HEALING
from caovand.preparation import memories, plan_request
from caovand.preparation.plan_request import PlanRequest
from tests.core.machines import inventory, turing

HERE = inventory(gpus=turing(2))
CONFIG = parse({"model": {"path": HERE.model.path}})
MARK = degraded.fingerprint(CONFIG, HERE)
STEPS = {
    "max_model_len": 4096, "gpu_memory_utilization": 0.8, "max_num_seqs": 2,
    "max_num_batched_tokens": 2048, "kv_cache_dtype": "fp8", "enforce_eager": True,
    "speculative_config": {"method": "mtp", "num_speculative_tokens": 1},
    "compilation_config": {"cudagraph_mode": "PIECEWISE"}, "cpu_offload_gb": 2,
}  # fmt: skip
LOWERED = Plan(
    HERE.model.path,
    {name: Setting(value, "ladder", "why") for name, value in STEPS.items()},
    {"VLLM_PLUGINS": Setting("", "ladder", "why")},
    taken=(
        Taken("context", "4096"),
        Taken("mtp", "1"),
        Taken("eager"),
    ),
)
TUNED = replace(record.begin("a", 3), moves=(7.5,)).with_steps(3, 0, Measurements(9.0, 0.5, (8.0,)))
GOOD: dict[str, Any] = {
    memories.MODE: {"mode": "fast"},
    memories.DEGRADED_PLAN: {**degraded.to_document(LOWERED, MARK, "auto"), "since": 7.5},
    memories.PROCESSES: {
        "boot_id": processes.boot_id(), "session": 1 << 22, "start": 5, "uid": 0,
        "members": [{"pid": 1 << 22, "start": 5, "name": "x"}],
    },
    memories.FILES: {"before": ["a"], "ours": ["b"]},
    memories.STARTS: starts.to_document([
        CompletedStart("a", 7.5, 96.0, {"load": 96.0}, {"load_s": 2.5})
    ]),
    memories.TUNING: record.to_document([TUNED], 7.5),
    memories.ANSWERS: to_document({"a": GreedyAnswer(("x", "y"), (0.5, 7.5))}),
}  # fmt: skip
WRONG: tuple[Any, ...] = (
    None, True, False, -1, 0.5, float("inf"), float("nan"), 10**30, "", "x\0", "x", [], {}, [[]],
    {"a": {}}, [None], [1, 2, 3],
)  # fmt: skip


def damaged(document: Any) -> Iterator[Any]:
    """The document with each of its parts, and itself, replaced by what does not belong there."""
    yield from WRONG
    parts = document.items() if isinstance(document, dict) else ()
    parts = enumerate(document) if isinstance(document, list) else parts
    for key, part in list(parts):
        for wrong in damaged(part):
            copy = type(document)(document)
            copy[key] = wrong
            yield copy
    if isinstance(document, dict):
        for key in document:
            yield {name: part for name, part in document.items() if name != key}
        yield {**document, "x\x1b[/x]": 1}


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("x")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_text(json.dumps(GOOD.get(path.name, {"a": [1]}))[:-3]),
    "deep": lambda path: path.write_text("[" * 200_000),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 50),
    "a list": lambda path: path.write_text("[1, 2]"),
    "a number": lambda path: path.write_text("1e999"),
    "digits": lambda path: path.write_text("9" * 100_000),
    "sparse": sparse,
    "folder": folder,
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "dangling": lambda path: path.symlink_to("/nowhere"),
    "newer": lambda path: path.write_text(json.dumps({"version": 9, "data": {"mode": ["fast"]}})),
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("kind", DAMAGE)
def test_what_cannot_be_used_is_set_aside_once_and_said(
    tmp_path: Path, name: str, kind: str
) -> None:
    path, aside = tmp_path / name, tmp_path / f"{name}.unreadable"
    for _ in range(2):  # what was set aside before gives way
        DAMAGE[kind](path)
        (text,) = memories.set_aside(tmp_path, HEALING)
        assert text.startswith(f"cannot use {path}: ")
        assert text.isprintable()
        assert f"{name}.unreadable" in text
        assert not os.path.lexists(path)
        assert os.path.lexists(aside)
    assert list(memories.set_aside(tmp_path, HEALING)) == []
    assert os.listdir(tmp_path) == [aside.name]


def test_a_degraded_plan_of_another_format_is_set_aside_and_named(tmp_path: Path) -> None:
    former = {**GOOD[memories.DEGRADED_PLAN], "format": degraded.FORMAT + 1}
    state_file.write(tmp_path / memories.DEGRADED_PLAN, former)
    (text,) = memories.set_aside(tmp_path, HEALING)
    assert text.endswith(
        "good-plan.json: this version cannot read its format; moved to "
        "good-plan.json.unreadable, starting with a new file"
    )
    assert (
        PlanMemory(tmp_path / memories.DEGRADED_PLAN, HEALING).document(None, MARK, "auto") is None
    )


def test_what_is_right_stays(tmp_path: Path) -> None:
    for name, document in GOOD.items():
        state_file.write(tmp_path / name, document)
    state_file.write(tmp_path / "x.json", [])
    assert list(memories.set_aside(tmp_path, HEALING)) == []
    assert ModeMemory(tmp_path / memories.MODE).mode == "fast"
    assert sorted(os.listdir(tmp_path)) == sorted([*GOOD, "x.json"])


def test_what_the_daemon_writes_is_right(tmp_path: Path) -> None:
    ModeMemory(tmp_path / memories.MODE).choose("stable")
    mine = processes.read(os.getpid())
    assert mine is not None
    marks = Marks("pipe:[1]", "a mark")
    child.record(tmp_path / memories.PROCESSES, mine.pid, mine.start, [mine], marks)
    StaleFiles((), tmp_path / memories.FILES, tmp_path).look([])
    kept = PlanMemory(tmp_path / memories.DEGRADED_PLAN, HEALING)
    kept.date(LOWERED)
    kept.served_stably(LOWERED, MARK, "auto")
    timed = Starts(tmp_path / memories.STARTS, frozenset())
    timed.remember()
    ignore: Any = lambda *_: None  # noqa: E731
    policy = parse({"policy": {"tune": "apply"}}).policy
    DraftTuner(tmp_path / memories.TUNING, policy, ignore, ignore, ignore).failed()
    FirstAnswers(tmp_path / memories.ANSWERS, ignore).keep(
        "a", GreedyAnswer(("x", "y"), (0.5, 7.5))
    )
    assert sorted(os.listdir(tmp_path)) == sorted(memories.checks(HEALING))
    assert list(memories.set_aside(tmp_path, HEALING)) == []
    ModeMemory(tmp_path / memories.MODE).choose(None)
    assert list(memories.set_aside(tmp_path, HEALING)) == []


def test_a_folder_that_cannot_be_written_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / memories.MODE).write_text("{")

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", fail)
    (text,) = memories.set_aside(tmp_path, HEALING)
    assert "renaming it failed: Permission denied; delete it" in text
    assert ModeMemory(tmp_path / memories.MODE).mode is None


@pytest.mark.long
def test_a_degraded_plan_with_anything_wrong_in_it_never_keeps_a_plan_from_being_made() -> None:
    used = 0
    for document in damaged(GOOD[memories.DEGRADED_PLAN]):
        usable = degraded.well_formed(document, HEALING)
        used += usable
        request = PlanRequest(CONFIG, None, {}, document)
        try:
            plan = inspection._plan_as_last_time(request, HERE, MARK, None)
        except Unplannable:
            continue
        json.dumps([plan.identity, plan.rungs], allow_nan=False)
        assert usable or not plan.rungs
    assert used > 10


def test_a_plan_that_looks_usable_and_is_not_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of()

    def make(*arguments: Any, remembered: Plan | None, **more: Any) -> Plan:
        if remembered is not None:
            raise TypeError("no number")
        return engine.planning.make(*arguments, remembered=None, **more)

    odd = replace(engine, planning=replace(engine.planning, make=make))
    monkeypatch.setattr(plan_request, "chosen_engine", lambda _: odd)
    plan = inspection._plan_as_last_time(
        PlanRequest(CONFIG, None, {}, GOOD[memories.DEGRADED_PLAN]), HERE, MARK, None
    )
    assert plan.rungs == ()
    assert "cannot use the degraded plan that served: TypeError: no number" in plan.warnings


@pytest.mark.parametrize("name", GOOD)
def test_readers_take_any_document(tmp_path: Path, name: str) -> None:
    """One may be changed while the daemon runs."""
    path = tmp_path / name
    for document in damaged(GOOD[name]):
        path.write_text(json.dumps(document))
        ModeMemory(path)
        assert child.orphans(path) == ()
        StaleFiles((), path, tmp_path / "none").take_over([])
        kept = PlanMemory(path, HEALING)
        kept.date(LOWERED)
        assert kept.since is not None
        degraded.from_document(kept.document(None, "", "auto"), MARK, "auto", {}, HEALING)


REPORT: dict[str, Any] = {
    "failure": "hang", "at": "2026", "finding": {"phase": "load", "text": "t"},
    "decision": {"text": "again"},
}  # fmt: skip


def test_incidents_are_listed_whatever_lies_between_them(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path)
    incidents.write("hang", REPORT, {})
    for number, damage in enumerate(DAMAGE.values(), 2):
        place = tmp_path / f"{number:04}-hang"
        place.mkdir()
        damage(place / "incident.json")
    (tmp_path / "0100-hang").write_text("no folder")
    assert [row["number"] for row in incidents.listed()] == [1]
    for number in range(2, 2 + len(DAMAGE)):
        for name in incidents.files(number):
            assert incidents.read(number, name, 10**30, 100) == b""
    with pytest.raises(NoIncident):
        incidents.read(2 + list(DAMAGE).index("pipe"), "incident.json", 0, 1)


def test_an_incident_with_anything_wrong_in_it_is_listed_or_left_out(tmp_path: Path) -> None:
    incidents = Incidents(tmp_path)
    name = incidents.write("hang", REPORT, {})
    for document in damaged(REPORT):
        (tmp_path / name / "incident.json").write_text(json.dumps(document))
        json.dumps(incidents.listed())


def test_a_file_that_grows_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(" " * 2000 + "{}")
    with pytest.raises(state_file.Unusable, match="larger than 1 KiB"):
        state_file.read(tmp_path / "a", 1024)


@pytest.mark.parametrize("session", [0, 1, True, False])
def test_the_system_s_own_session_is_never_taken_for_the_engine_s(
    tmp_path: Path, session: int
) -> None:
    document = {**GOOD[memories.PROCESSES], "session": session, "start": 0, "uid": os.getuid()}
    state_file.write(tmp_path / "l", document)
    assert child.orphans(tmp_path / "l") == ()
