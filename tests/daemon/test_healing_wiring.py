"""Facts about the cards that the supervisor passes to the ladder and the watcher."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from caovand.adapters.engine.pump import Pump
from caovand.adapters.files.directories import Directories
from caovand.adapters.log import Echo
from caovand.adapters.system.kernel_log import KernelLog
from caovand.core.config.schema import Config, EngineSection
from caovand.core.facts.inventory import Inventory
from caovand.core.lifecycle.events import Start, Stop
from caovand.core.lifecycle.state import Snapshot
from caovand.daemon.cards import CardUsage
from caovand.daemon.engine import proof
from caovand.daemon.engine import run as engine_run
from caovand.daemon.start import inspection
from caovand.daemon.start.inspection import PreparedStart
from caovand.daemon.supervisor import Supervisor
from tests.core.machines import CUDA, inventory, plan, turing
from tests.patience import PATIENCE_S

TOO_LONG = (
    "ValueError: max seq len (65536) is larger than the maximum number of tokens that can be "
    "stored in KV cache (15040)"
)
TOO_BIG = "out of resource: shared memory, Required: 81920, Hardware limit: 65536"


def fail_once(
    machine: Inventory,
    script: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: tuple[int, ...] | None = None,
) -> Snapshot:
    """The machine's snapshot after the first failure of an engine that is a shell `script`."""
    engine = folder / "engine"
    engine.write_text(f"#!/bin/sh\n{script}\n")
    engine.chmod(0o755)
    machine = replace(machine, engine=replace(machine.engine, python=str(engine)))
    ready = PreparedStart(plan(machine), machine, "fingerprint", "auto")

    async def for_ever(*_: object) -> None:
        await asyncio.Event().wait()

    async def nothing_wrong(*_: object) -> None:
        """All-reduce is right."""

    monkeypatch.setattr(inspection, "inspect", lambda *_: machine)
    monkeypatch.setattr(inspection, "planned_for", lambda *_: ready)
    monkeypatch.setattr(inspection, "check_port", lambda _: None)
    monkeypatch.setattr(proof, "prove", for_ever)
    # It would run the script over several cards, and wait for an answer from it.
    monkeypatch.setattr(engine_run, "check_all_reduce", nothing_wrong)
    for name in ("POLL_S", "MAX_TICK_S"):
        monkeypatch.setattr(f"caovand.daemon.supervisor.{name}", 0.05)

    async def story() -> Snapshot:
        config = Config(engine=EngineSection(gpus=gpus))
        echo = Echo("console", io.StringIO())
        places = Directories(*[folder] * 4)
        one = Supervisor(folder / "c", config, places, {}, structlog.get_logger(), echo)
        (slot,) = one.slots.values()
        running = asyncio.ensure_future(one.run())
        one.apply_operator_event(Start(at=time.monotonic()))
        await asyncio.wait_for(_until(one, lambda: slot.snapshot.finding is not None), PATIENCE_S)
        failed = slot.snapshot
        one.apply_operator_event(Stop(at=time.monotonic(), quit=True))
        await asyncio.wait_for(running, PATIENCE_S)
        return failed

    return asyncio.run(story())


async def _until(one: Supervisor, met: Callable[[], bool]) -> None:
    while not met():
        await one.changed.wait()


def test_the_ladder_is_told_what_cannot_run_on_these_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # FlashInfer would be next, and that engine's runs on no card of this kind.
    later = inventory(engine=replace(CUDA, version="0.33.0", flashinfer="0.7.2"))
    says = f"echo 'triton.runtime.errors.OutOfResources: {TOO_BIG}'; exit 1"
    failed = fail_once(later, says, tmp_path, monkeypatch)
    assert failed.finding is not None
    assert failed.finding.failure == "shared-memory-limit"
    assert failed.remedy is not None
    assert failed.remedy.text == "GDN prefill -> triton"


def test_last_lines_that_are_read_late_have_the_cause_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the pump may not run until the engine has long ended."""
    waited, take = threading.Event(), Pump._take
    join, catch_up = Pump.join, Pump.catch_up

    def late_take(one: Pump, text: str) -> None:
        assert waited.wait(PATIENCE_S)
        take(one, text)

    def waited_for(one: Pump, limit_s: float) -> bool:
        waited.set()
        return catch_up(one, limit_s)

    monkeypatch.setattr(Pump, "_take", late_take)
    monkeypatch.setattr(Pump, "join", lambda one, _: join(one, 0))
    monkeypatch.setattr(Pump, "catch_up", waited_for)
    failed = fail_once(inventory(), f"echo '{TOO_LONG}'; exit 1", tmp_path, monkeypatch)
    assert failed.finding is not None
    assert failed.finding.failure == "kv-cache-short"


def test_a_fault_of_a_card_the_engine_does_not_use_is_not_the_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buses = ("00000000:01:00.0", "00000000:02:00.0")
    two = tuple(replace(gpu, bus=bus) for gpu, bus in zip(turing(2), buses, strict=True))
    lost = "NVRM: Xid (PCI:0000:{}:00): 79, GPU has fallen off the bus."
    words = [lost.format("01"), lost.format("02")]
    monkeypatch.setattr(KernelLog, "read", lambda _: words)
    failed = fail_once(inventory(gpus=two), "exec sleep 600", tmp_path, monkeypatch, gpus=(1,))
    assert failed.finding is not None
    assert (failed.finding.failure, failed.finding.captures["bus"]) == ("gpu-lost", "0000:02:00")


def test_the_ladder_is_told_what_others_have_of_the_engines_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both when the plan was made and since; what is in use of other cards is nothing to it."""
    other, busy, ours = turing(3)
    machine = inventory(gpus=(replace(other, free_mib=0), replace(busy, free_mib=21_000), ours))
    monkeypatch.setattr(CardUsage, "others", lambda _: {2: 5_000})
    says = f"echo '{TOO_LONG}'; exit 1"
    failed = fail_once(machine, says, tmp_path, monkeypatch, gpus=(1, 2))
    assert failed.finding is not None
    assert failed.finding.failure == "kv-cache-short"
    assert failed.remedy is not None
    assert failed.remedy.plan is not None
    assert failed.remedy.plan.others_mib == {1: busy.total_mib - 21_000, 2: 5_000}


def test_the_cause_of_a_lack_of_memory_names_who_took_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def taken(_: CardUsage, before: object) -> str:
        assert before == inventory().gpus
        return "python (pid 9) has allocated 4000 MiB of GPU 0"

    monkeypatch.setattr(CardUsage, "taken_since", taken)
    says = "echo 'torch.OutOfMemoryError: CUDA out of memory.'; exit 1"
    failed = fail_once(inventory(), says, tmp_path, monkeypatch)
    assert failed.finding is not None
    assert failed.finding.text.startswith(
        "torch.OutOfMemoryError: CUDA out of memory.; python (pid 9) has allocated 4000 MiB "
        "of GPU 0 ("
    )


def test_an_engine_finds_what_those_of_other_plans_found_out_of_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = 'cd "$VLLM_CACHE_ROOT/modelinfos" && touch one.json; exit 1'
    fail_once(inventory(), writes, tmp_path, monkeypatch)
    assert [file.name for file in tmp_path.glob("modelinfos/*/*")] == ["one.json"]
