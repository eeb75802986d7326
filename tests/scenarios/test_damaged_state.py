"""A daemon that finds its state files damaged starts, serves, and says what it set aside."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand import memories
from tests.daemon import Daemon
from tests.scenarios.test_supervision import configuration, model  # noqa: F401  (a fixture)
from tests.test_memories import DAMAGE


@pytest.fixture
def one(model: Path) -> Iterator[Daemon]:  # noqa: F811
    """A daemon that was not started yet."""
    folder = Path(tempfile.mkdtemp(prefix="caovan-"))
    daemon = Daemon(folder, configuration(model))
    yield daemon
    if daemon.process is not None:
        daemon.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_daemon_serves_whatever_its_state_files_are(one: Daemon, kind: str) -> None:
    state = one.folder / "state"
    (state / "incidents/0001-hang").mkdir(parents=True)
    damaged = [*memories.CHECKS, "incidents/0001-hang/incident.json"]
    for name in damaged:
        DAMAGE[kind](state / name)
    one.start()
    one.until_state("SERVING")
    said = one.events()
    for name in memories.CHECKS:
        (text,) = (text for text in said if text.startswith(f"cannot use {state / name}: "))
        assert f"{name}.unreadable" in text
    assert one.ctl("incidents").stdout == "no incidents\n"
    assert one.ctl("mode", "fast", "--defer").returncode == 0
    assert (state / memories.MODE).is_file()
