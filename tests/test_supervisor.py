"""The supervisor where its own code is at fault."""

from __future__ import annotations

import asyncio
import io
import subprocess
import time
from pathlib import Path

import pytest
import structlog

from caovand.adapters import child, processes
from caovand.adapters.directories import Directories
from caovand.adapters.log import Echo
from caovand.core import events, machine
from caovand.core.config import Config
from caovand.supervisor import Supervisor


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
        await asyncio.sleep(0)
        monkeypatch.setattr(machine, "step", broken)
        asyncio.get_running_loop().call_soon(one.apply, events.Tick(0.0, 0.5))
        await running

    with pytest.raises(ZeroDivisionError, match="ours"):
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
        child.record(tmp_path / "engine-processes.json", left.pid, seen.start, [seen])
        running = asyncio.ensure_future(one.run())
        await asyncio.sleep(0)
        one.command(events.Start(time.monotonic()))
        one.command(events.Stop(time.monotonic(), quit=True))
        await running
        return one.snapshot.state.value, left.poll() is not None

    assert asyncio.run(story()) == ("STOPPED", True)
