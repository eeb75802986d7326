"""An engine whose code turns against its daemon: what it could do, and what it still must."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.adapters import launch
from caovand.adapters.confinement import popen_arguments
from caovand.adapters.files.directories import Directories
from caovand.core.config.schema import Config
from caovand.daemon.start.confinement import of_a_server
from tests import hostile_engine
from tests.daemon_process import ROOT, Daemon
from tests.hostile_engine import HOSTILE, NEEDED
from tests.secret_files import secret_file
from tests.standin_daemon import ENGINE, configuration, make_model


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
    attack = shlex.join([sys.executable, hostile_engine.__file__])
    out = folder / "cache"
    wrapper.write_text(
        f'#!/bin/sh\ncase " $* " in *" serve "*) name=serving;; *) name=asked;; esac\n'
        f"[ -e {out}/$name ] || {attack} $PPID {folder} >{out}/$name\n"
        f'exec {ENGINE} "$@"\n'
    )
    wrapper.chmod(0o755)
    text = configuration(make_model(tmp_path / "hybrid")).replace(str(ENGINE), str(wrapper))
    text = text.replace("[server]\n", f'[server]\napi_key_file = "{key}"\n')
    return Daemon(folder, f'{text}\n[cluster]\nkey_file = "{cluster}"\n')


def tried(one: Daemon) -> tuple[dict[str, bool], dict[str, bool]]:
    """What its environment's programs could do when they were asked, and the engine as it serves.

    It serves after its attempts.
    """
    one.start()
    try:
        one.until_state("SERVING")
        asked, serving = (one.folder / "cache" / name for name in ("asked", "serving"))
        return json.loads(asked.read_text()), json.loads(serving.read_text())
    finally:
        one.stop()


def test_an_engine_cannot_touch_its_daemon_and_can_do_its_work(hostile: Daemon) -> None:
    asked, found = tried(hostile)
    abi = launch.landlock_abi()
    if abi < launch.MIN_ABI:
        pytest.skip(f"this kernel's Landlock has version {abi}")
    assert {name for name in HOSTILE if asked[name]} == set()
    assert {name for name in HOSTILE if found[name]} == set()
    assert {name for name in NEEDED if not found[name]} == set()


@pytest.mark.skipif(launch.landlock_abi() < launch.SCOPE_ABI, reason="another kernel's")
@pytest.mark.parametrize("abi", [launch.MIN_ABI, launch.TRUNCATE_ABI])
def test_nor_on_kernels_whose_landlock_knows_less(abi: int, tmp_path: Path) -> None:
    """Its daemon is a process of the test's, without sockets; only its life is tried."""
    attempt = (
        "import ctypes, sys, os, json; sys.path.insert(0, sys.argv[1]);"
        "from caovand.adapters import launch;"
        "launch.landlock_abi = lambda: int(sys.argv[2]);"
        "launch.confine(ctypes.CDLL(None, use_errno=True), [sys.argv[3]], [], []);"
        "from tests.hostile_engine import tried;"
        "from pathlib import Path; print(json.dumps(tried(os.getppid(), Path(sys.argv[3]))))"
    )
    for name in ("state", "log"):
        (tmp_path / name).mkdir()
    words = [sys.executable, "-c", attempt, str(ROOT), str(abi), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd="/")
    found = json.loads(done.stdout)
    assert {name for name in HOSTILE if found[name]} == set()


@pytest.mark.skipif(launch.landlock_abi() < launch.SCOPE_ABI, reason="another kernel's")
def test_a_server_of_ours_reads_its_token_and_writes_no_file(tmp_path: Path) -> None:
    """As the page and the gateway are started; the test is their daemon."""
    places = Directories(*[tmp_path / name for name in ("run", "state", "cache", "log")])
    for place in (places.runtime, places.state, places.cache, places.logs, tmp_path / "keys"):
        place.mkdir()
    token = secret_file(tmp_path / "api.key", "t" * 20)
    cluster = secret_file(tmp_path / "keys/cluster.key", "c" * 20)
    config = Config()
    config = replace(
        config,
        page=replace(config.page, token_file=str(token)),
        cluster=replace(config.cluster, key_file=str(cluster)),
    )
    argv = [sys.executable, hostile_engine.__file__, str(os.getpid()), str(tmp_path)]
    env = {"PATH": os.environ["PATH"]}
    could = []
    for readable in (str(token), ""):
        with popen_arguments(argv, env, of_a_server(config, places, readable)) as started:
            done = subprocess.run(**started, capture_output=True, text=True, check=True, cwd="/")
        found = json.loads(done.stdout)
        could.append({name for name in (*HOSTILE, *NEEDED) if found[name]})
    works = {"read /usr, /sys and itself", "share memory", "use devices"}
    assert could == [{*works, "read the API key's file"}, works]


@pytest.mark.exhaustive
def test_an_engine_that_is_not_confined_can(hostile: Daemon) -> None:
    text = hostile.config_path.read_text()
    hostile.config_path.write_text(text.replace("[engine]\n", "[engine]\nconfine = false\n"))
    _, found = tried(hostile)
    assert {name for name in HOSTILE if not found[name]} == {
        "use control",  # these two are refused by descent
        "take the key from the page's socket",
    }
