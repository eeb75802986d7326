"""Output that engine.log loses: noticed once, and counted in the status document."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
import structlog

from caovand.adapters.engine.pump import RotatedFile
from caovand.adapters.files.directories import Directories
from caovand.adapters.log import Echo
from caovand.core.config.schema import Config
from caovand.daemon.records.unwritten import Unwritten
from caovand.daemon.supervisor import Supervisor


def test_lost_output_is_noticed_once(tmp_path: Path) -> None:
    """A disk that is only too slow fails no write: nothing else would tell."""
    heard: list[str] = []

    async def story() -> None:
        places = Directories(*[tmp_path] * 4)
        unwritten = Unwritten(places, lambda _kind, text: heard.append(text))
        file = RotatedFile(tmp_path / "engine.log")
        await unwritten.check([file])
        assert heard == []
        for lost in (5, 5, 9):
            file.lost_bytes = lost
            await unwritten.check([file])

    asyncio.run(story())
    (text,) = heard
    assert text.startswith(f"cannot write all of the engine's output to {tmp_path}/engine.log: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_the_status_document_counts_what_a_full_disk_lost(tmp_path: Path) -> None:
    async def story() -> int:
        places = Directories(*[tmp_path] * 4)
        echo = Echo("console", io.StringIO())
        one = Supervisor(tmp_path / "c", Config(), places, {}, structlog.get_logger(), echo)
        assert one.describe()["log_bytes_lost"] == 0
        log = one.worst.run.file
        log.path = Path("/dev/full")
        log.write(b"four")
        assert await asyncio.to_thread(log.flush, 30)
        return int(one.describe()["log_bytes_lost"])

    assert asyncio.run(story()) == 4
