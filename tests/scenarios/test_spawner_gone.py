"""A daemon whose spawner no longer responds ends soon, and a new daemon ends what it left."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from caovand.adapters.privileges.link import ANSWER_S
from caovand.adapters.system import processes
from tests.daemon_process import ROOT, Daemon, daemon, lives
from tests.patience import PATIENCE_S, until
from tests.service_users import Users, enterable, service_users
from tests.standin_daemon import configuration, make_model

pytestmark = pytest.mark.long

SPAWNER = "caovan-spawner"
ESCAPE = {"escape": "escapee", "ignore_term": True}


@pytest.fixture
def users() -> Iterator[Users]:
    """Both users, who can reach this Python and the tree."""
    with service_users() as made, enterable(Path(sys.executable), ROOT):
        yield made


@pytest.fixture
def one(users: Users) -> Iterator[Daemon]:
    """A daemon whose engine of another user makes a process that no TERM ends."""
    with (
        tempfile.TemporaryDirectory(prefix="caovan-") as name,
        users.cache() as cache,
    ):
        Path(name).chmod(0o755)
        config = configuration(make_model(Path(name) / "m"), ESCAPE, watch="hang_s = 5")
        rights, owner = users.daemons_rights(), users.daemon.pw_uid
        with daemon(config, users.environ(cache), rights, owner=owner) as started:
            yield started


def spawner_of(one: Daemon) -> int:
    """The pid of its spawner."""
    assert one.process is not None
    ours = [
        p.pid
        for p in processes.all_processes()
        if p.parent == one.process.pid and p.name == SPAWNER
    ]
    return ours[0]


@pytest.mark.parametrize("asked", ["stop", "an engine that died", "nothing"])
def test_a_spawner_that_answers_no_more_costs_the_service_a_restart(
    one: Daemon, users: Users, asked: str
) -> None:
    one.until_state("SERVING")
    assert one.process is not None
    engine, members = one.status()["engine_pid"], {p.pid for p in one.tree()}
    assert {pid for pid in members if not users.runs(pid)} == set()
    os.kill(spawner_of(one), signal.SIGKILL if asked == "nothing" else signal.SIGSTOP)
    if asked == "stop":
        one.process.terminate()
    elif asked == "an engine that died":
        os.kill(engine, signal.SIGKILL)
    assert one.process.wait(PATIENCE_S) == 1
    why = "has exited" if asked == "nothing" else f"did not answer for {ANSWER_S:g} s"
    assert f"the engine spawner {why}; still left of engines: " in one.log()
    assert "a new daemon starts another" in one.log()
    assert "Traceback" not in one.log()
    assert {p.pid for p in one.tree()} != set(), "it lives: nobody could end it"
    one.start()
    one.until_state("SERVING")
    until(lambda: not any(map(lives, members)), "the end of the old engine")
    assert one.stop() == 0
    assert users.left() == []
