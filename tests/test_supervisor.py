"""The supervisor where its own code is at fault."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
import structlog

from caovand.adapters.directories import Directories
from caovand.adapters.log import Echo
from caovand.core import machine
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
        asyncio.get_running_loop().call_soon(one.apply, machine.Tick(0.0, 0.5))
        await running

    with pytest.raises(ZeroDivisionError, match="ours"):
        asyncio.run(story())
