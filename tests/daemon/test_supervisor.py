"""The supervisor when its own code fails."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import structlog

from caovand.adapters import child
from caovand.adapters.files.directories import Directories
from caovand.adapters.log import Echo
from caovand.adapters.system import processes
from caovand.core.config.schema import Config, WatchSection
from caovand.core.config.services import GatewaySection
from caovand.core.facts.ledger import Marks
from caovand.core.healing.failure import Finding
from caovand.core.lifecycle import events, transitions
from caovand.core.lifecycle.state import LifecycleRules
from caovand.core.slot import MAIN_SLOT
from caovand.daemon.supervisor import Supervisor
from tests.patience import turns


def test_a_fault_in_a_step_ends_the_daemon_for_systemd_to_start_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A callback's exception would only be logged, and the work half done."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    async def story() -> None:
        places = Directories(*[tmp_path] * 4)
        echo = Echo("console", io.StringIO())
        one = Supervisor(tmp_path / "c", Config(), places, {}, structlog.get_logger(), echo)
        running = asyncio.ensure_future(one.run())
        await turns()
        monkeypatch.setattr(transitions, "step", broken)
        asyncio.get_running_loop().call_soon(one.slots[MAIN_SLOT].apply, events.TimePassed(at=0.0))
        await running

    with pytest.raises(ZeroDivisionError, match="ours"):
        asyncio.run(story())


def test_an_incident_has_the_kernels_lines_of_the_engines_own_cards(tmp_path: Path) -> None:
    ours, other, disk = (
        "NVRM: Xid (PCI:0000:01:00): 31, pid=9, name=VLLM::EngineCore",
        "NVRM: Xid (PCI:0000:02:00): 31, pid=8, name=VLLM::EngineCore",
        "EXT4-fs error (device sda1)",
    )

    async def kernel() -> tuple[str, ...]:
        places, echo = Directories(*[tmp_path] * 4), Echo("console", io.StringIO())
        one = Supervisor(tmp_path / "c", Config(), places, {}, structlog.get_logger(), echo)
        one._shared.kernel._log = SimpleNamespace(read=lambda: (ours, other, disk))  # type: ignore[assignment]
        one._shared.kernel.read()
        watching: Any = SimpleNamespace(
            causes=SimpleNamespace(evidence=tuple), buses={"00000000:01:00.0"}
        )
        return one.slots[MAIN_SLOT].failures._case(Finding("illegal-access", "x"), watching).kernel

    found = asyncio.run(kernel())
    assert [line for line in (ours, other, disk) if line in found] == [ours, disk]


def test_what_is_noticed_reaches_the_daemons_log(tmp_path: Path) -> None:
    logged: list[tuple[str, str]] = []

    class Log:
        def __getattr__(self, level: str) -> Callable[[str], None]:
            return lambda text: logged.append((level, text))

    async def story() -> None:
        places, echo = Directories(*[tmp_path] * 4), Echo("console", io.StringIO())
        one = Supervisor(tmp_path / "c", Config(), places, {}, Log(), echo)
        logged.clear()
        one.notice("failure", "it died")
        one.notice("spawn", "engine started")

    asyncio.run(story())
    assert logged == [("error", "it died"), ("info", "engine started")]


def test_the_machine_decides_by_the_operators_thresholds(tmp_path: Path) -> None:
    async def rules(watch: WatchSection, gateway: GatewaySection) -> LifecycleRules:
        places = Directories(*[tmp_path] * 4)
        echo = Echo("console", io.StringIO())
        config = Config(watch=watch, gateway=gateway)
        one = Supervisor(tmp_path / "c", config, places, {}, structlog.get_logger(), echo)
        return one.slots[MAIN_SLOT]._rules()

    async def look_s(watch: WatchSection) -> float:
        places, echo = Directories(*[tmp_path] * 4), Echo("console", io.StringIO())
        config = Config(watch=watch)
        return Supervisor(
            tmp_path / "c", config, places, {}, structlog.get_logger(), echo
        )._poll_s()

    # Counters are read at least twice before a third of hang_s has passed.
    assert asyncio.run(look_s(WatchSection(hang_s=6.0))) == 1.0
    assert asyncio.run(look_s(WatchSection())) == 5.0
    watch, listen = WatchSection(failures=7, stall_s=11.0), "127.0.0.1:8080"
    used = asyncio.run(rules(watch, GatewaySection(listen=listen, drain_s=15.0)))
    assert (used.watch, used.gateway_drain_s) == (watch, 15.0)
    assert asyncio.run(rules(watch, GatewaySection(drain_s=15.0))).gateway_drain_s == 0.0


def test_page_and_gateway_have_one_socket_each_and_engines_none(tmp_path: Path) -> None:
    echo, places = Echo("console", io.StringIO()), Directories(*[tmp_path] * 4)

    async def story() -> None:
        one = Supervisor(tmp_path / "c", Config(), places, {}, structlog.get_logger(), echo)
        started = subprocess.Popen(["sleep", "600"])
        try:
            assert not any(one.admits(name, started.pid) for name in ("control", "page", "gateway"))
            pages = {"pid": started.pid}
            with patch.object(one.page, "describe", lambda: pages):
                allowed = [one.admits(name, started.pid) for name in ("control", "page", "gateway")]
            assert allowed == [False, True, False]
            assert one.admits("control", os.getpid())
            assert one.admits("control", os.getppid())
        finally:
            started.kill()
            started.wait()

    asyncio.run(story())


def test_a_stop_that_cuts_an_inspection_short_ends_what_an_earlier_engine_left(
    tmp_path: Path,
) -> None:
    """A killed daemon left it, and the inspection that would have ended it was cancelled."""

    async def story() -> tuple[str, bool]:
        places = Directories(*[tmp_path] * 4)
        echo = Echo("console", io.StringIO())
        one = Supervisor(tmp_path / "c", Config(), places, {}, structlog.get_logger(), echo)
        left = subprocess.Popen(["sleep", "600"], start_new_session=True)
        seen = processes.read(left.pid)
        assert seen is not None
        marks = Marks("pipe:[1]", "a mark")
        child.record(tmp_path / "engine-processes.json", left.pid, seen.start, [seen], marks)
        running = asyncio.ensure_future(one.run())
        await turns()
        one.apply_operator_event(events.Start(at=time.monotonic()))
        one.apply_operator_event(events.Stop(at=time.monotonic(), quit=True))
        await running
        return one.slots[MAIN_SLOT].snapshot.state.value, left.poll() is not None

    assert asyncio.run(story()) == ("STOPPED", True)
