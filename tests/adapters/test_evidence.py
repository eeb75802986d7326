"""Evidence taken from living processes, and that taking it never takes long."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from caovand.adapters.engine import evidence
from caovand.adapters.files import trust
from caovand.adapters.incidents import Incidents
from caovand.adapters.privileges import engine_user
from caovand.adapters.system import processes
from caovand.core.healing.failure import Finding
from caovand.core.reporting.incident import FailureContext
from caovand.daemon.records.chronicle import STACKS_S, Recorder
from caovand.engines.vllm.log.reader import LOG
from tests.patience import soon


def me() -> processes.Process:
    found = processes.read(os.getpid())
    assert found is not None
    return found


def test_each_process_tells_its_state_and_a_dead_one_that_it_is_gone() -> None:
    dead = processes.Process(2**22 + 1, 1, 1, 1, 0, "ghost")
    first, second = evidence.process_tree([me(), dead])
    assert first["pid"] == os.getpid()
    assert "VmRSS" in first
    assert second["State"] == "gone"


def test_without_py_spy_the_kernel_tells_where_each_thread_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    text = evidence.stacks([me()], "/nonexistent/python", 5.0)
    assert f"(pid {os.getpid()})" in text
    assert "waits in" in text


def script(folder: Path, text: str) -> str:
    (folder / "py-spy").write_text(text)
    (folder / "py-spy").chmod(0o755)
    return str(folder / "python")


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of our own Python."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path


def test_a_py_spy_beside_our_own_python_is_asked(ours: Path) -> None:
    python = script(ours, '#!/bin/sh\necho "seen $1 $4"\n')
    assert f"seen dump {os.getpid()}" in evidence.stacks([me()], python, 30.0)


def test_what_an_engine_may_have_written_is_run_as_the_engines_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    python = script(tmp_path, "#!/bin/sh\n")
    tmp_path.chmod(0o777)  # root's tests own it
    monkeypatch.setenv("PATH", str(tmp_path))
    assert evidence.find_py_spy(python) is None
    monkeypatch.setattr(trust.os, "geteuid", lambda: 12345)
    assert evidence.find_py_spy("/nonexistent/python") is None
    monkeypatch.setattr(engine_user, "_own", engine_user._Own(Mock()))
    assert evidence.find_py_spy(python) == str(tmp_path / "py-spy")
    assert evidence.find_py_spy("/nonexistent/python") == str(tmp_path / "py-spy")


def test_a_program_of_root_is_no_link_to_what_others_can_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, "#!/bin/sh\n")
    assert trust.find_root_owned_program("sh", {"PATH": "/usr/bin"}) == "/usr/bin/sh"
    monkeypatch.setattr(trust.shutil, "which", lambda *_, **__: str(tmp_path / "link"))
    (tmp_path / "link").symlink_to(tmp_path / "py-spy")
    (tmp_path / "py-spy").chmod(0o777)
    assert trust.find_root_owned_program("py-spy", {"PATH": "/usr/bin"}) is None


def test_a_py_spy_that_hangs_costs_no_more_than_the_limit(ours: Path) -> None:
    python = script(ours, "#!/bin/sh\nexec sleep 600\n")
    begun = time.monotonic()
    text = evidence.stacks([me(), me()], python, 0.3)
    assert time.monotonic() - begun < 60
    assert "(no time left)" in text


def test_why_py_spy_saw_nothing_stands_beside_the_kernels_view(ours: Path) -> None:
    python = script(ours, "#!/bin/sh\necho Permission Denied >&2\nexit 1\n")
    text = evidence.stacks([me()], python, 30.0)
    assert "(py-spy: Permission Denied)" in text
    assert "waits in" in text


def test_of_a_py_spy_without_end_only_so_much_is_kept(ours: Path) -> None:
    python = script(ours, "#!/bin/sh\nyes '    deep (down.py:1)' | head -n 100000\n")
    assert len(evidence.stacks([me()], python, 30.0)) < evidence.MAX_SPIED + 1000


# -- the real one, on a real hang -----------------------------------------------------------

HANGS = """
import sys, threading

def waits_for_what_never_comes(password):
    threading.Event().wait()

threading.Thread(target=waits_for_what_never_comes, args=("sesame-4711",), name="loader").start()
print("ready", flush=True)
waits_for_what_never_comes("sesame-4711")
"""


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[processes.Process]:
    """A Python process that waits for ever, with a secret on its command line and its stack."""
    spy = evidence.find_py_spy(sys.executable)
    assert spy, "py-spy is one of the development tools: run `make .venv/ready`"
    (tmp_path / "model.py").write_text(HANGS)
    argv = [sys.executable, str(tmp_path / "model.py"), "--api-key", "sesame-4711"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            seen = processes.read(child.pid)
            assert seen is not None
            tried = subprocess.run(
                [spy, "dump", "--pid", str(child.pid)], capture_output=True, text=True, check=False
            )
            if "Permission" in tried.stderr or "permitted" in tried.stderr:
                pytest.skip(f"the kernel forbids ptrace here: {tried.stderr.strip()[:200]}")
            yield seen
        finally:
            child.kill()


def test_the_real_py_spy_tells_where_every_thread_of_a_hung_process_waits(
    hung: processes.Process,
) -> None:
    text = evidence.stacks([hung], sys.executable, 30.0)
    assert text.startswith(f"=== {hung.name} (pid {hung.pid})\n")
    assert text.count("waits_for_what_never_comes (model.py:5)") == 2
    assert '"MainThread"' in text
    assert "sesame" not in text
    state = processes.read(hung.pid)
    assert state is not None
    assert not state.zombie


def test_an_incident_of_a_hang_has_the_real_stacks_and_no_secret(
    hung: processes.Process, tmp_path: Path
) -> None:
    async def scenario() -> dict[str, str]:
        store, told = Incidents(tmp_path / "incidents"), list[str]()
        keeper = Recorder(store, lambda name, problem: told.append(name or problem), LOG)
        argv = ("vllm", "serve", "m", "--api-key", "sesame-4711")
        case = FailureContext(
            Finding("hang", "nothing moves"), (), {}, argv=argv, secrets=("sesame-4711",)
        )
        begun = time.monotonic()
        keeper.take(case, (hung,), sys.executable)
        await keeper.before_kill()
        assert time.monotonic() - begun < STACKS_S + 60
        await soon(lambda: told)
        folder = tmp_path / "incidents" / told[0]
        return {path.name: path.read_text() for path in folder.iterdir()}

    files = asyncio.run(scenario())
    assert "waits_for_what_never_comes (model.py:5)" in files["stacks.txt"]
    assert not [name for name, text in files.items() if "sesame" in text]
