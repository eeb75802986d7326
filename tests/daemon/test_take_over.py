"""State of a version without slots is migrated to the only slot without losses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.files import state_file
from caovand.adapters.incidents import Incidents
from caovand.core.reporting.incident_text import REPORT as INCIDENT
from caovand.engines.vllm.healing.cures import HEALING
from caovand.preparation import memories
from tests.daemon.test_memories import DAMAGE, GOOD, REPORT

MAIN = Path("slots/main")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A folder as the version before left it."""
    for name, document in GOOD.items():
        state_file.write(tmp_path / name, document)
    write_incident(tmp_path / "incidents", "hang")
    (tmp_path / "lock").write_text("1")
    return tmp_path


def write_incident(folder: Path, failure: str) -> None:
    Incidents(folder).write(failure, {**REPORT, "failure": failure}, {"kernel.txt": failure})


def contents(state: Path) -> dict[str, Any]:
    """What of each file is to be had, wherever it is."""
    found = {name: state_file.read_or_none(memories.find(state, name)) for name in GOOD}
    incidents = Incidents(memories.find(state, memories.INCIDENTS)).listed()
    return {**found, "incidents": [(row["number"], row["failure"]) for row in incidents]}


EVERYTHING = {**GOOD, "incidents": [(1, "hang")]}


def test_everything_of_the_slot_is_moved_and_the_daemons_own_stays(state: Path) -> None:
    (text,) = memories.take_over(state)
    assert text.startswith("moved mode.json, ")
    assert str(state / MAIN) in text
    assert sorted(os.listdir(state)) == ["lock", "slots"]
    assert sorted(os.listdir(state / MAIN)) == sorted(memories.ALL)
    assert contents(state) == EVERYTHING
    assert list(memories.take_over(state)) == []
    assert list(memories.set_aside(state / MAIN, HEALING)) == []


def test_whoever_reads_without_the_daemon_finds_it_before_and_after(state: Path) -> None:
    assert contents(state) == EVERYTHING
    list(memories.take_over(state))
    assert contents(state) == EVERYTHING


def test_nothing_is_moved_where_nothing_is(tmp_path: Path) -> None:
    assert list(memories.take_over(tmp_path)) == []
    assert os.listdir(tmp_path) == []


class Killed(BaseException):
    """The daemon, between two moves."""


@pytest.mark.parametrize("moves", range(len(memories.ALL)))
def test_a_daemon_killed_between_two_moves_loses_nothing(
    state: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    real, left = state_file.move, iter(range(moves))

    def move(path: Path, target: Path) -> None:
        if next(left, None) is None:
            raise Killed
        real(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(state_file, "move", move)
        with pytest.raises(Killed):
            list(memories.take_over(state))
    assert len(os.listdir(state / MAIN)) == moves
    assert contents(state) == EVERYTHING
    list(memories.take_over(state))
    assert contents(state) == EVERYTHING
    assert sorted(os.listdir(state)) == ["lock", "slots"]


@pytest.mark.parametrize("name", memories.ALL)
def test_what_cannot_be_moved_is_named_and_used_where_it_is(
    state: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = state_file.move

    def move(path: Path, target: Path) -> None:
        if path.name == name:
            raise OSError(30, "Read-only file system")
        real(path, target)

    monkeypatch.setattr(state_file, "move", move)
    refused, moved = memories.take_over(state)
    assert refused.startswith(f"cannot move {state / name} to {state / MAIN}: Read-only")
    assert name not in moved
    assert contents(state) == EVERYTHING
    assert memories.find(state, name) == state / name


def test_a_folder_that_cannot_be_made_costs_nothing(state: Path) -> None:
    (state / "slots").write_text("in the way")
    assert len(list(memories.take_over(state))) == len(memories.ALL)
    assert contents(state) == EVERYTHING


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_damaged_is_moved_as_it_is_and_then_set_aside(
    tmp_path: Path, name: str, kind: str
) -> None:
    DAMAGE[kind](tmp_path / name)
    list(memories.take_over(tmp_path))
    assert not os.path.lexists(tmp_path / name)
    (text,) = memories.set_aside(tmp_path / MAIN, HEALING)
    assert text.startswith(f"cannot use {tmp_path / MAIN / name}: ")


# -- back to the version before, and forth again ---


def again(state: Path, make: Callable[[Path], object]) -> None:
    """A version without slots runs after one with slots."""
    list(memories.take_over(state))
    make(state)


def test_what_the_older_version_wrote_last_counts(state: Path) -> None:
    again(state, lambda old: state_file.write(old / memories.MODE, {"mode": "stable"}))
    assert contents(state)[memories.MODE] == {"mode": "stable"}
    list(memories.take_over(state))
    assert contents(state) == {**EVERYTHING, memories.MODE: {"mode": "stable"}}


def test_the_processes_of_both_are_known(state: Path) -> None:
    """A daemon of each version may have been killed."""
    again(state, lambda old: state_file.write(old / memories.PROCESSES, {"boot_id": "b"}))
    list(memories.take_over(state))
    own, former = memories.ledgers(state, "main")
    assert state_file.read_or_none(own) == GOOD[memories.PROCESSES]
    assert state_file.read_or_none(former) == {"boot_id": "b"}
    assert memories.ledgers(state, "other") == (state / "slots/other" / memories.PROCESSES,)


def numbers(state: Path) -> Iterator[tuple[int, str]]:
    for row in Incidents(state / MAIN / "incidents").listed():
        path = state / MAIN / f"incidents/{row['number']:04}-{row['failure']}"
        report = json.loads((path / INCIDENT).read_text())
        assert report["number"] == row["number"]
        assert (path / "kernel.txt").read_text() == row["failure"]
        yield row["number"], row["failure"]


def test_incidents_of_both_are_kept_and_numbered_on(state: Path) -> None:
    again(state, lambda old: write_incident(old / "incidents", "xid"))
    write_incident(state / "incidents", "oom")
    list(memories.take_over(state))
    assert list(numbers(state)) == [(1, "hang"), (2, "xid"), (3, "oom")]
    assert not (state / "incidents").exists()


def test_a_daemon_killed_between_two_incidents_loses_none(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(state, lambda old: write_incident(old / "incidents", "xid"))
    write_incident(state / "incidents", "oom")
    real, left = Path.rename, iter([True])

    def rename(path: Path, target: Path) -> Path:
        if path.parent.name == "incidents" and next(left, None) is None:
            raise Killed
        return real(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            list(memories.take_over(state))
    list(memories.take_over(state))
    assert list(numbers(state)) == [(1, "hang"), (2, "xid"), (3, "oom")]


def test_another_slot_has_a_folder_of_its_own_and_takes_nothing_over(state: Path) -> None:
    assert memories.find(state, memories.MODE, "b") == state / "slots/b" / memories.MODE
    assert memories.mark(state, "b") != memories.mark(state, "main")
