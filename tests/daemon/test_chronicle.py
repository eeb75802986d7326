"""Incidents are written outside the loop: nothing waits for a disk, and little for a hung
engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.incidents import Incidents
from caovand.core.healing.failure import Finding
from caovand.core.reporting.incident import FailureContext
from caovand.daemon.records import chronicle
from caovand.daemon.records.chronicle import GatheredEvidence, Recorder
from caovand.engines.vllm.log.reader import LOG
from tests.patience import soon

CASE = FailureContext(Finding("hang", "nothing moves"), ("a line",), {"state": "RECYCLING"})


class HangingDisk(Incidents):
    """Takes its time until a test lets it go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.free = threading.Event()

    def write(self, failure: str, report: Mapping[str, Any], files: Mapping[str, str]) -> str:
        self.free.wait(60)
        return super().write(failure, report, files)


def test_what_must_be_seen_before_the_kill_is_waited_for_and_the_disk_is_not(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        told: list[tuple[str, str]] = []
        disk = HangingDisk(tmp_path)
        keeper = Recorder(disk, lambda name, problem: told.append((name, problem)), LOG)
        keeper.take(CASE, (), "")
        await keeper.before_kill()
        assert told == []
        keeper.take(CASE, (), "")
        assert told == [("", "the previous incident is still being written")]
        disk.free.set()
        await soon(lambda: told[1:])
        assert told[1] == ("0001-hang", "")
        assert disk.files(1).keys() == {"incident.json", "log.txt", "stacks.txt"}

    asyncio.run(scenario())


def test_evidence_for_another_node_is_gathered_without_secrets_and_keeps_no_incident_waiting(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        told: list[tuple[str, str]] = []
        found: list[GatheredEvidence] = []
        disk = HangingDisk(tmp_path)
        keeper = Recorder(disk, lambda name, problem: told.append((name, problem)), LOG)
        secret = replace(CASE, lines=("key sesame-4711",), secrets=("sesame-4711",))
        keeper.gather(secret, (), "", found.append)
        keeper.take(CASE, (), "", found.append)
        await soon(lambda: found)
        assert found[0].files["log.txt"] == "key [secret]\n"
        assert (found[0].name, found[0].problem, told) == ("", "", [])
        disk.free.set()
        await soon(lambda: told)
        assert told == [("0001-hang", "")]
        assert [one.name for one in found] == ["", "0001-hang"]
        assert len(disk.listed()) == 1
        await keeper.before_kill()

    asyncio.run(scenario())


def test_what_cannot_be_gathered_is_said_to_who_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(members: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(chronicle.evidence, "process_tree", fault)

    async def scenario() -> None:
        found: list[GatheredEvidence] = []
        keeper = Recorder(Incidents(tmp_path), lambda name, problem: None, LOG)
        keeper.gather(CASE, (), "", found.append)
        await soon(lambda: found)
        assert found == [GatheredEvidence(problem="too many open files")]

    asyncio.run(scenario())


def test_a_look_at_the_engine_that_never_ends_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = threading.Event()
    monkeypatch.setattr(chronicle, "STACKS_S", -0.99)
    monkeypatch.setattr(chronicle.evidence, "process_tree", lambda members: stuck.wait(60) or [])

    async def scenario() -> None:
        keeper = Recorder(Incidents(tmp_path), lambda name, problem: None, LOG)
        keeper.take(CASE, (), "")
        await asyncio.wait_for(keeper.before_kill(), 30)
        stuck.set()
        await asyncio.to_thread(keeper.flush, 30.0)

    asyncio.run(scenario())


def test_a_disk_that_is_full_is_told_and_nothing_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        told: list[tuple[str, str]] = []
        (tmp_path / "file").write_text("")
        store = Incidents(tmp_path / "file" / "incidents")
        keeper = Recorder(store, lambda name, problem: told.append((name, problem)), LOG)
        keeper.take(CASE, (), "")
        await soon(lambda: told)
        assert told[0][0] == ""
        assert "Not a directory" in told[0][1]

    asyncio.run(scenario())
