"""Checks before an engine starts."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from caovand.adapters.files.directories import directories
from caovand.adapters.system.processes import Process
from caovand.core.config.key import ConfigError
from caovand.core.config.parser import parse
from caovand.core.facts import occupancy
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.healing import degraded, ladder
from caovand.core.healing.failure import Finding
from caovand.core.plan import Plan
from caovand.daemon.start import inspection
from caovand.daemon.start.degraded_plan import PlanMemory
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.planning.planner import make_plan
from caovand.preparation.plan_request import PlanRequest
from tests.core.machines import CUDA, KNOWN, cards, inventory, plan, turing
from tests.ports import free_port


@pytest.mark.parametrize("what", ["engine", "model"])
def test_what_lies_in_a_tmp_the_service_does_not_see_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    python, model = "/tmp/no-such/bin/python", "/tmp/no-such/model"
    if what == "model":
        monkeypatch.setattr(inspection.probe, "probe_engine", lambda *_, **__: CUDA)
    monkeypatch.setattr(inspection.private_tmp, "remedy", lambda path: f"move {path}")
    request = PlanRequest(parse({"engine": {"python": python}, "model": {"path": model}}), None, {})
    with pytest.raises(inspection.StartObstacle) as caught:
        inspection.inspect(request, directories({}, 1000))
    path = python if what == "engine" else model
    assert str(caught.value).startswith("cannot ")
    assert str(caught.value).endswith(f"; move {path}")


def test_a_plan_waits_for_its_own_cards_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in turing(3))
    machine = inventory(gpus=cards)
    two = plan(machine, engine={"gpus": [0, 2]})
    monkeypatch.setattr(inspection.nvml, "read_gpus", lambda: (cards[0], cards[2]))
    inspection.check_cards(two, machine)
    monkeypatch.setattr(inspection.nvml, "read_gpus", lambda: cards[:2])
    with pytest.raises(inspection.StartObstacle, match="GPU 2 does not answer") as problem:
        inspection.check_cards(two, machine)
    assert problem.value.hold


def test_memory_that_others_hold_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = ((4242, "python", 16000),)
    busy = inventory(gpus=tuple(replace(gpu, free_mib=6000, users=held) for gpu in turing(2)))
    monkeypatch.setattr(inspection.probe, "probe_engine", lambda *_, **__: busy.engine)
    monkeypatch.setattr(inspection.model_folder, "read_model", lambda *_, **__: busy.model)
    monkeypatch.setattr(inspection.nvml, "read_gpus", lambda: busy.gpus)
    config = parse({"model": {"path": busy.model.path}})
    request = PlanRequest(config, None, {})
    machine = inspection.inspect(request, directories({}, 1000))
    with pytest.raises(
        inspection.StartObstacle, match=r"pid 4242\) holds 16000 MiB of GPU 0"
    ) as problem:
        inspection.planned_for(request, machine)
    assert problem.value.hold
    assert problem.value.finding.failure == "vram-busy"


def test_a_context_that_was_short_next_to_others_is_whole_again_when_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart and for a new daemon; not for the engine that runs with it."""
    alone = inventory()
    config = parse({"model": {"path": alone.model.path, "max_model_len": 65536}})
    used = tuple(replace(card, free_mib=card.free_mib - 1500) for card in alone.gpus)
    busy = replace(alone, gpus=used)
    told = {"len": "65536", "fits": "15040"}
    finding = Finding("kv-cache-short", "too long", "kv", told, "oom.kv.tokens")
    rules = ladder.LadderRules(HEALING, others_mib=occupancy.used_by_card(busy.gpus))
    lower = ladder.decide(make_plan(config, busy), finding, 1, rules).plan
    assert lower is not None
    PlanMemory(tmp_path / "good", HEALING).served_stably(
        lower, degraded.fingerprint(config, busy), "auto"
    )
    monkeypatch.setattr(inspection.probe, "probe_engine", lambda *_, **__: alone.engine)
    monkeypatch.setattr(inspection.model_folder, "read_model", lambda *_, **__: alone.model)
    monkeypatch.setattr(inspection.host, "read_host", lambda _: alone.host)

    def context(gpus: tuple[Gpu, ...], before: Inventory | None = None) -> object:
        monkeypatch.setattr(inspection.nvml, "read_gpus", lambda: gpus)
        kept = PlanMemory(tmp_path / "good", HEALING).document(None, "", "auto")
        request = PlanRequest(config, None, {}, kept, before)
        machine = inspection.inspect(request, directories({}, 1000))
        return inspection.planned_for(request, machine).plan.value("max_model_len")

    assert context(busy.gpus) == 15040
    assert context(alone.gpus) == 65536
    assert context(alone.gpus, before=alone) == 15040


def test_what_outlives_kill_is_told_as_an_engine_that_could_not_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end(*_: object) -> tuple[tuple[Process, ...], tuple[Process, ...]]:
        return (), (Process(7, 100, 1, 7, 0, "VLLM::EngineCor"),)

    monkeypatch.setattr(inspection.child, "end_orphans", end)
    with pytest.raises(inspection.StartObstacle, match="cannot be killed") as problem:
        asyncio.run(inspection.end_orphans(tmp_path / "ledger", AsyncMock()))
    assert (problem.value.hold, problem.value.finding.phase) == (True, "ending")


@pytest.mark.skipif(os.getuid() != 0, reason="only root has anything to lose here")
def test_root_starts_no_engine_that_another_s_file_describes(tmp_path: Path) -> None:
    source = tmp_path / "caovan.toml"
    source.write_text("")
    os.chown(source, 12345, 12345)
    request = PlanRequest(parse({}), None, {}, source=source)
    with pytest.raises(
        inspection.StartObstacle, match=f"as root: {source} belongs to uid 12345; chown"
    ):
        inspection.inspect(request, directories({}, 0))


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_the_tuners_depth_is_planned_as_the_policys_own(depth: int) -> None:
    machine = inventory(gpus=turing(2))
    config = parse({"model": {"path": machine.model.path}})
    asked = []

    def tuned(own: Plan) -> int:
        asked.append(own.mtp)
        return depth

    request = PlanRequest(config, None, {}, tuned=tuned)
    found = inspection._plan_as_last_time(request, machine, "", None)
    assert (found.mtp, asked) == (depth, [3])
    assert found.policy_drafts
    reason = found.settings["speculative_config"].reason
    assert reason == f"[policy] tune chose depth {depth} instead of 3"


def test_a_depth_that_would_cost_context_is_not_planned() -> None:
    machine = inventory(gpus=cards(2, *KNOWN["RTX 3090"]))
    config = parse({"model": {"path": machine.model.path}})
    own = inspection._plan_as_last_time(PlanRequest(config, None, {}), machine, "", None)
    deepest = PlanRequest(config, None, {}, tuned=lambda _: 8)
    assert plan(machine, policy={"mtp": 8}).value("max_model_len") < own.value("max_model_len")
    assert inspection._plan_as_last_time(deepest, machine, "", None) == own
    longer = replace(own.settings["max_model_len"], value=own.value("max_model_len") + 1)
    other = replace(own, settings={**own.settings, "max_model_len": longer})
    assert other.tuned(own) is not None
    assert own.tuned(other) is None
    assert replace(own, device="sm90").tuned(own) is None
    word = replace(own, settings={**own.settings, "max_model_len": replace(longer, value="auto")})
    assert word.tuned(word) is not None
    assert word.tuned(own) is None


def request_of(**sections: dict[str, object]) -> PlanRequest:
    """The request of a file whose engine is here, and is asked in vain."""
    engine = {"python": sys.executable, **sections.pop("engine", {})}
    return PlanRequest(parse({"engine": engine, **sections}), None, {})


@pytest.mark.parametrize("path", ["", "/srv/none"])
def test_the_model_is_read_before_an_engine_that_may_take_a_minute(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(inspection.probe, "probe_engine", lambda *words: asked.append(words))
    with pytest.raises(inspection.StartObstacle) as caught:
        inspection.inspect(request_of(model={"path": path}), directories({}, 1000))
    assert (caught.value.finding.failure, caught.value.hold) == ("model-missing", False)
    assert asked == []


def test_a_port_in_use_and_a_missing_key_are_found_before_the_engine_is_asked() -> None:
    with socket.socket() as server:
        port = free_port()
        server.bind(("127.0.0.1", port))
        server.listen()
        request = request_of(server={"port": port})
        with pytest.raises(inspection.StartObstacle, match=f"cannot use port {port}") as busy:
            inspection.check_cheap(request)
        assert busy.value.hold
        inspection.check_cheap(replace(request, before=inventory()))  # its own engine has it
        inspection.check_cheap(
            request_of(server={"port": port}, engine={"extra_args": ["--port=9"]})
        )
    with pytest.raises(ConfigError, match="api_key_file /etc/nokey: No such file"):
        inspection.check_cheap(request_of(server={"api_key_file": "/etc/nokey", "port": port}))


def test_a_missing_engine_is_waited_for_and_named_as_such(tmp_path: Path) -> None:
    request = request_of(engine={"python": str(tmp_path / "none")})
    with pytest.raises(inspection.StartObstacle, match=r"engine install") as caught:
        inspection.inspect(request, directories({}, 1000))
    assert (caught.value.finding.failure, caught.value.hold) == ("engine-unusable", True)


def test_an_engine_that_another_user_could_change_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its owner can be corrected while caovan runs."""

    def distrusted(*_: object) -> None:
        raise inspection.trust.Distrusted("use it", "it belongs to uid 7", "chown it")

    monkeypatch.setattr(inspection.trust, "require", distrusted)
    request = request_of(engine={"python": str(tmp_path / "none")})
    with pytest.raises(inspection.StartObstacle, match="it belongs to uid 7") as caught:
        inspection.inspect(request, directories({}, 1000))
    assert (caught.value.finding.failure, caught.value.hold) == ("engine-unusable", True)
