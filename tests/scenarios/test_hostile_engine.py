"""An engine whose code attacks its daemon: what it could do, and what must keep working."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.confinement import launch
from caovand.adapters.confinement.popen import popen_arguments
from caovand.adapters.files.directories import Directories
from caovand.core.config.schema import Config
from caovand.preparation.confinement import server_confinement
from tests import hostile_engine
from tests.daemon_process import ROOT, Daemon
from tests.hostile_engine import BY_A_THREAD, BY_SOCKETS, DENIED, DID, NEEDED
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.secret_files import secret_file
from tests.standin_daemon import ENGINE, configuration, make_model

SERVERS = ("page", "gateway")
SCHEDULED = {f"schedule the {name}": DID for name in SERVERS}
"""Threads cannot be told from processes there, and an engine schedules its own threads."""


@pytest.fixture
def hostile(tmp_path: Path) -> Daemon:
    """A daemon in a folder with keys; its engine's first process tries everything, then serves."""
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "keys").mkdir()
    key = secret_file(folder / "api.key", "k" * 20)
    cluster = secret_file(folder / "keys/cluster.key", "c" * 20)
    wrapper = tmp_path / "engine/bin/python"
    wrapper.parent.mkdir(parents=True)
    attack = shlex.join([sys.executable, hostile_engine.__file__, str(folder)])
    out = folder / "cache"
    wrapper.write_text(
        f'#!/bin/sh\ncase " $* " in *" serve "*) name=serving;; *) name=asked;; esac\n'
        f"[ -e {out}/$name ] || {attack} daemon=$PPID {shlex.join(SERVERS)} >{out}/$name\n"
        f'exec {ENGINE} "$@"\n'
    )
    wrapper.chmod(0o755)
    text = configuration(make_model(tmp_path / "hybrid")).replace(str(ENGINE), str(wrapper))
    text = text.replace("[server]\n", f'[server]\napi_key_file = "{key}"\n')
    servers = "\n".join(f'[{name}]\nlisten = "127.0.0.1:{free_port()}"' for name in SERVERS)
    return Daemon(folder, f'{text}\n[cluster]\nkey_file = "{cluster}"\n{servers}\n')


@pytest.fixture
def serving(hostile: Daemon) -> Iterator[Daemon]:
    """The same, once its engine has tried everything and serves."""
    hostile.start()
    try:
        hostile.until_state("SERVING")
        yield hostile
    finally:
        hostile.stop()


def found(one: Daemon, name: str) -> dict[str, Any]:
    """What its environment's programs found when they were `asked`, or the engine, `serving`."""
    return dict(json.loads((one.folder / "cache" / name).read_text()))


def more_than_denied(tried: dict[str, str]) -> dict[str, str]:
    """What came of the attempts that were not refused for want of rights."""
    return {name: end for name, end in tried.items() if end != DENIED}


def test_an_engine_cannot_touch_its_daemon_and_can_do_its_work(serving: Daemon) -> None:
    asked, engine = (found(serving, name) for name in ("asked", "serving"))
    # A stranger to the daemon of its user can do all of it: the attempts are good ones.
    status = serving.status()
    assert serving.process is not None
    targets = {"daemon": serving.process.pid, **{name: status[name]["pid"] for name in SERVERS}}
    assert {*hostile_engine.tried(targets, serving.folder).values()} == {DID}
    abi = launch.landlock_abi()
    if abi < launch.MIN_ABI:
        pytest.skip(f"this kernel's Landlock has version {abi}")
    assert more_than_denied(asked["tried"]) == SCHEDULED
    assert more_than_denied(engine["tried"]) == SCHEDULED
    assert {name for name in NEEDED if not engine["works"][name]} == set()


def folders(place: Path) -> None:
    """The daemon's folders with what it keeps there, but no socket."""
    for name in ("run", "state", "cache", "log", "keys"):
        (place / name).mkdir()
    for name in ("run/status", "log/engine.log"):
        (place / name).touch()
    secret_file(place / "api.key", "t" * 20)
    secret_file(place / "keys/cluster.key", "c" * 20)


@pytest.fixture
def threaded() -> Iterator[None]:
    """Another thread of this process, which is the daemon."""
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    yield
    ends.set()
    thread.join()


@pytest.mark.usefixtures("threaded")
@pytest.mark.skipif(launch.landlock_abi() < launch.SCOPE_ABI, reason="another kernel's")
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("abi", [launch.MIN_ABI, launch.TRUNCATE_ABI])
def test_nor_on_kernels_whose_landlock_knows_less(abi: int, alone: bool, tmp_path: Path) -> None:
    """Its daemon is a process of the test's, without sockets, and a process is the spawner."""
    attempt = (
        "import ctypes, sys, os, json; sys.path.insert(0, sys.argv[1]);"
        "from caovand.adapters.confinement import launch;"
        "launch.landlock_abi = lambda: int(sys.argv[2]);"
        "targets = {'daemon': os.getppid(), 'spawner': int(sys.argv[5])};"
        "launch.confine(ctypes.CDLL(None, use_errno=True), [sys.argv[3]], [], [],"
        " alone=sys.argv[4] == 'True', keepers=[targets['spawner']]);"
        "from tests.hostile_engine import tried;"
        "from pathlib import Path; print(json.dumps(tried(targets, Path(sys.argv[3]))))"
    )
    folders(tmp_path)
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as spawner:
        words = [sys.executable, "-c", attempt, str(ROOT), str(abi), str(tmp_path), str(alone)]
        words.append(str(spawner.pid))
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, check=True, cwd="/", timeout=PATIENCE_S
            )
        finally:
            spawner.kill()
    tried = {k: end for k, end in json.loads(done.stdout).items() if k not in BY_SOCKETS}
    # No filter knows the threads of a daemon, which come and go.
    assert more_than_denied(tried) == ({} if alone else {f"{BY_A_THREAD} the daemon": DID})


@pytest.mark.usefixtures("threaded")
@pytest.mark.skipif(launch.landlock_abi() < launch.SCOPE_ABI, reason="another kernel's")
def test_a_server_of_ours_reads_its_token_and_writes_no_file(tmp_path: Path) -> None:
    """As the page and the gateway are started; the test is their daemon."""
    places = Directories(*[tmp_path / name for name in ("run", "state", "cache", "log")])
    folders(tmp_path)
    token, config = str(tmp_path / "api.key"), Config()
    config = replace(
        config,
        page=replace(config.page, token_file=token),
        cluster=replace(config.cluster, key_file=str(tmp_path / "keys/cluster.key")),
    )
    program = [sys.executable, hostile_engine.__file__]
    argv = [*program, str(tmp_path), f"daemon={os.getpid()}"]
    env = {"PATH": os.environ["PATH"]}
    works = {"read /usr, /sys and itself", "share memory", "use devices"}
    for readable, could in ((token, {"read the API key's file": DID}), ("", {})):
        with popen_arguments(argv, env, server_confinement(config, places, readable)) as started:
            done = subprocess.run(
                **started, capture_output=True, text=True, check=True, cwd="/", timeout=PATIENCE_S
            )
        found = json.loads(done.stdout)
        tried = {name: end for name, end in found["tried"].items() if name not in BY_SOCKETS}
        assert more_than_denied(tried) == could
        assert {name for name in NEEDED if found["works"][name]} == works


@pytest.mark.exhaustive
def test_an_engine_that_is_not_confined_can(hostile: Daemon) -> None:
    text = hostile.config_path.read_text()
    hostile.config_path.write_text(text.replace("[engine]\n", "[engine]\nconfine = false\n"))
    hostile.start()
    try:
        hostile.until_state("SERVING")
        tried = found(hostile, "serving")["tried"]
    finally:
        hostile.stop()
    # Who descends from the daemon is answered on no socket.
    assert {name: end for name, end in tried.items() if end != DID} == dict.fromkeys(
        BY_SOCKETS, DENIED
    )
