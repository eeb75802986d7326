"""What is looked at before an engine is started."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from caovand import inspection
from caovand.adapters.directories import directories
from caovand.adapters.processes import Process
from caovand.core.config import parse
from tests.core.machines import inventory, plan, turing


def test_the_key_is_the_one_vllm_will_ask_for(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-file\n")
    bare = parse({})
    file = parse({"server": {"api_key_file": str(tmp_path / "key")}})
    typed = parse({"engine": {"env": {"VLLM_API_KEY": "typed"}}})
    ours = {"VLLM_API_KEY": "ours"}
    assert inspection.api_key(bare, (), {}) == ""
    assert inspection.api_key(bare, (), ours) == "ours"
    assert inspection.api_key(typed, (), ours) == "typed"
    assert inspection.api_key(file, (), ours) == "from-file"
    assert inspection.api_key(file, ("--api-key", "1e5"), ours) == "1e5"
    assert inspection.api_key(file, ("--api-key=word", "--seed", "1"), ours) == "word"


def test_a_plan_waits_for_its_own_cards_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in turing(3))
    machine = inventory(gpus=cards)
    two = plan(machine, engine={"gpus": [0, 2]})
    monkeypatch.setattr(inspection.nvml, "read_gpus", lambda: (cards[0], cards[2]))
    inspection.check_cards(two, machine)
    monkeypatch.setattr(inspection.nvml, "read_gpus", lambda: cards[:2])
    with pytest.raises(inspection.Obstacle, match="GPU 2 does not answer") as problem:
        inspection.check_cards(two, machine)
    assert problem.value.hold


def test_memory_that_others_hold_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = ((4242, "python", 16000),)
    busy = inventory(gpus=tuple(replace(gpu, free_mib=6000, users=held) for gpu in turing(2)))
    monkeypatch.setattr(inspection.probe, "probe_engine", lambda *_: busy.engine)
    monkeypatch.setattr(inspection.model_folder, "read_model", lambda *_, **__: busy.model)
    monkeypatch.setattr(inspection.nvml, "read_gpus", lambda: busy.gpus)
    config = parse({"model": {"path": busy.model.path}})
    places = directories({}, 1000)
    with pytest.raises(
        inspection.Obstacle, match=r"pid 4242\) holds 16000 MiB of GPU 0"
    ) as problem:
        inspection.prepare(inspection.Wishes(config, None, {}), places)
    assert problem.value.hold
    assert problem.value.finding.failure == "vram-busy"


def test_what_outlives_kill_is_told_as_an_engine_that_could_not_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end(*_: object) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
        return (), (Process(7, 100, 1, 7, 0, "VLLM::EngineCor"),)

    monkeypatch.setattr(inspection.child, "end_leftovers", end)
    with pytest.raises(inspection.Obstacle, match="cannot be killed") as problem:
        asyncio.run(inspection.end_leftovers(tmp_path / "ledger", AsyncMock()))
    assert (problem.value.hold, problem.value.finding.phase) == (True, "ending")


@pytest.mark.skipif(os.getuid() != 0, reason="only root has anything to lose here")
def test_root_starts_no_engine_that_another_s_file_describes(tmp_path: Path) -> None:
    source = tmp_path / "caovan.toml"
    source.write_text("")
    os.chown(source, 12345, 12345)
    wishes = inspection.Wishes(parse({}), None, {}, source=source)
    with pytest.raises(inspection.Obstacle, match=f"as root: {source} belongs to uid 12345; chown"):
        inspection.prepare(wishes, directories({}, 0))
