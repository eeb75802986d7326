"""When `caovanctl fieldtest` refuses to start."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from caovand.lab.fieldtest import verb as fieldtest
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


@pytest.fixture
def serving(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """A service that serves, on a machine where everything but the measuring is real."""
    daemon.answers["status"] = status()
    daemon.answers.update(stop={"state": "STOPPING"}, start={"state": "STARTING"})
    daemon.answers["wait"] = status(state="STOPPED")

    class Anything:
        def with_model(self, _: object) -> Any:
            return self

    monkeypatch.setattr(fieldtest, "inspect", lambda *_, **__: Anything())
    monkeypatch.setattr(fieldtest, "check", lambda _: None)
    monkeypatch.setattr(fieldtest, "FieldtestResults", lambda *_, **__: Any)
    return daemon


def test_an_archive_that_cannot_be_written_stops_nothing(
    serving: FakeDaemon, ctl: Ctl, plain: Path
) -> None:
    said = ctl("fieldtest", "/nonexistent/x.tar.gz", "--yes", "--config", str(plain))
    assert said.code == 1
    assert "cannot write /nonexistent/x.tar.gz: No such file or directory" in said.err
    assert "name another file" in said.err
    assert {one.op for one in serving.asked} == {"status"}


def test_a_machine_that_cannot_be_measured_stops_nothing(
    daemon: FakeDaemon, ctl: Ctl, plain: Path
) -> None:
    daemon.answers["status"] = status()
    said = ctl("fieldtest", "--yes", str(plain.parent / "x.tar.gz"), "--config", str(plain))
    assert said.code == 1
    assert {one.op for one in daemon.asked} == {"status"}
    assert not (plain.parent / "x.tar.gz").exists(), "trying to write it leaves no file"


class Terminal(io.StringIO):
    """A terminal on which this is typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "words", "says"),
    [
        (io.StringIO("y\n"), (), "no terminal is there to ask on"),
        (Terminal("n\n"), (), "not confirmed"),
        (Terminal(""), (), "not confirmed"),
        (Terminal("y\n"), (), ""),
        (io.StringIO(), ("--yes",), ""),
    ],
    ids=["no-terminal", "no", "end", "yes", "--yes"],
)
def test_an_engine_that_serves_is_stopped_only_if_somebody_agrees(
    serving: FakeDaemon, ctl: Ctl, plain: Path, monkeypatch: pytest.MonkeyPatch,
    typed: io.StringIO, words: tuple[str, ...], says: str,
) -> None:  # fmt: skip
    class Measured(Exception):
        pass

    def take(*_: object) -> None:
        raise Measured

    monkeypatch.setattr(fieldtest, "Subject", lambda *_: type("S", (), {"describe": dict})())
    monkeypatch.setattr(fieldtest, "take", take)
    monkeypatch.setattr("sys.stdin", typed)
    call = ("fieldtest", str(plain.parent / "x.tar.gz"), *words, "--config", str(plain))
    if says:
        said = ctl(*call)
        assert said.code == 1
        assert says in said.err
        assert "pass --yes" in said.err
        assert {one.op for one in serving.asked} == {"status"}
    else:
        with pytest.raises(Measured):
            ctl(*call)
        assert [one.op for one in serving.asked] == ["status", "stop", "wait", "start"]
