"""When `caovanctl fieldtest` refuses to begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Ctl
from tests.cli.fake_daemon import FakeDaemon, status


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file without a cluster, and a state folder without results."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    path = tmp_path / "alone.toml"
    path.write_text('[model]\npath = "/srv/m"\n')
    return path


@pytest.mark.parametrize("role", ["head", "worker"])
def test_a_file_with_a_cluster_is_refused(ctl: Ctl, plain: Path, role: str) -> None:
    section = f'[cluster]\nrole = "{role}"\nhead = "10.0.0.1:7070"\n'
    plain.write_text(plain.read_text() + section)
    said = ctl("fieldtest", "--config", str(plain))
    assert said.code == 1
    assert f'{plain} has [cluster] role = "{role}"' in said.err
    assert "name a file without [cluster]" in said.err


@pytest.mark.parametrize(("role", "where"), [("head", "here"), ("worker", "on the head and here")])
def test_a_cluster_that_serves_is_not_stopped(
    daemon: FakeDaemon, ctl: Ctl, plain: Path, role: str, where: str
) -> None:
    daemon.answers["status"] = status(cluster={"role": role})
    said = ctl("fieldtest", "--config", str(plain))
    assert said.code == 1
    assert f"it is the {role} of a cluster" in said.err
    assert f"stop it with `caovanctl stop` {where}" in said.err
    assert {one.op for one in daemon.asked} == {"status"}


def test_a_node_whose_engine_was_stopped_by_hand_may_be_tested(
    daemon: FakeDaemon, ctl: Ctl, plain: Path
) -> None:
    daemon.answers["status"] = status(cluster={"role": "head"}, state="STOPPED")
    said = ctl("fieldtest", "--config", str(plain))
    assert said.code == 1
    assert "cluster" not in said.err, "what is missing is an engine or the model"
