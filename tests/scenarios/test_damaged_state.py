"""A daemon with damaged state files starts, serves, and reports what it moved aside."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.engines.vllm.healing.cures import HEALING
from caovand.preparation import memories
from tests.daemon.test_memories import DAMAGE
from tests.daemon_process import Daemon
from tests.scenarios.test_supervision import configuration, model  # noqa: F401  (a fixture)


@pytest.fixture
def one(model: Path) -> Iterator[Daemon]:  # noqa: F811
    """A daemon that was not started yet."""
    folder = Path(tempfile.mkdtemp(prefix="caovan-"))
    daemon = Daemon(folder, configuration(model))
    yield daemon
    if daemon.process is not None:
        daemon.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("deep", "half", "link") else pytest.param(kind, marks=pytest.mark.long)
        for kind in DAMAGE
    ],
)
def test_a_daemon_serves_whatever_its_state_files_are(one: Daemon, kind: str) -> None:
    state, files = memories.folder(one.folder / "state"), memories.checks(HEALING)
    (state / "incidents/0001-hang").mkdir(parents=True)
    damaged = [*files, "incidents/0001-hang/incident.json"]
    for name in damaged:
        DAMAGE[kind](state / name)
    one.start()
    one.until_state("SERVING")
    said = one.events()
    for name in files:
        (text,) = (text for text in said if text.startswith(f"cannot use {state / name}: "))
        assert f"{name}.unreadable" in text
    assert one.ctl("incidents").stdout == "no incidents\n"
    assert one.ctl("mode", "fast", "--defer").returncode == 0
    assert (state / memories.MODE).is_file()
