"""Checks and choices before anything is downloaded, on systems that lack something."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from caovand.adapters.engine_install import lock
from caovand.engines import registry
from tests.daemon_process import ROOT

TOOLS = ("sh", "setsid", "dirname", "df", "awk", "grep", "tail", "sleep", "mkdir", "tr", "cat")
# As on a fresh system: no lists of packages yet.
APT = """#!/bin/sh
echo "$*" >> {log}
case "$1" in update) : > {lists} ;; install) [ -e {lists} ] ;; esac
"""


class System:
    """A checkout's scripts, and programs of which the usual ones and these are all that is."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.programs = folder / "checkout", folder / "bin"
        self.apt_log = folder / "apt.log"
        for name in ("prerequisites.sh", "alive.sh", "find-python.sh", "engine.sh", "demo/kind.sh"):
            (self.checkout / "packaging" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "packaging" / name, self.checkout / "packaging" / name)
        self.programs.mkdir()
        for name in TOOLS:
            (self.programs / name).symlink_to(shutil.which(name) or name)
        self.has("apt-get", APT.format(log=self.apt_log, lists=folder / "lists"))

    def has(self, program: str, script: str = "#!/bin/sh\n") -> None:
        (self.programs / program).write_text(script)
        (self.programs / program).chmod(0o755)

    def run(self, script: str, *words: str, user: int) -> subprocess.CompletedProcess[str]:
        self.has("id", f"#!/bin/sh\necho {user}\n")
        return subprocess.run(
            [self.checkout / "packaging" / script, *words],
            env={"PATH": str(self.programs), "HOME": str(self.checkout)},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_root_has_what_is_missing_installed_with_lists_fetched_first(system: System) -> None:
    done = system.run("prerequisites.sh", "run the demo", "compiler", "curl", user=0)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "installing with apt: g++ curl"
    install = "install -y --no-install-recommends g++ curl"
    assert system.apt_log.read_text().splitlines() == [install, "update", install]


def test_others_are_shown_the_one_command(system: System) -> None:
    done = system.run("prerequisites.sh", "run the demo", "python", "curl", user=1000)
    assert (done.returncode, done.stdout) == (1, "")
    command = "sudo apt-get install python3 python3-venv curl"
    assert done.stderr == (
        f"cannot run the demo: missing: python3 python3-venv curl; run: {command}\n"
    )
    assert not system.apt_log.exists()


def test_where_all_is_there_nothing_is_said(system: System) -> None:
    system.has("c++")
    done = system.run("prerequisites.sh", "run the demo", "compiler", "disk=1", user=1000)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("script", "missing"),
    [("[ \"$2\" = 'import ensurepip, venv' ]", "python3.12-dev"), ("exit 0", ""), ("exit 1", "")],
)
def test_headers_are_those_of_the_python_that_an_engine_will_use(
    system: System, script: str, missing: str
) -> None:
    system.has("python3.12", f"#!/bin/sh\n{script}\n")
    done = system.run("prerequisites.sh", "--missing", "headers=3.12", user=0)
    assert (done.stdout.strip(), done.stderr) == (missing, "")


def test_a_cuda_engine_needs_the_headers_of_its_locks_python() -> None:
    versions = registry.engine_of("vllm").install.versions
    python = lock.load("cuda", versions["cuda"]).python
    assert f"compiler headers={python} " in (ROOT / "packaging/engine.sh").read_text()


@pytest.mark.parametrize(
    ("need", "fact"),
    [("disk=999999999", "MiB free, and 999999999 MiB are needed; make room"),
     ("python", "Python 3.9.2 is here, and a Python from 3.10 to 3.13 is needed")],
)  # fmt: skip
def test_what_apt_cannot_help_is_refused(system: System, need: str, fact: str) -> None:
    system.has("python3", "#!/bin/sh\n[ $1 = --version ] && echo Python 3.9.2\n")
    done = system.run("prerequisites.sh", "run the demo", need, user=0)
    assert done.returncode == 1
    assert fact in done.stderr
    assert not system.apt_log.exists()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="chooses for a machine without a card")
@pytest.mark.parametrize(("cores", "kind"), [(2, "vllm"), (8, "llamacpp")])
def test_the_engine_is_the_one_that_answers_soonest(system: System, cores: int, kind: str) -> None:
    system.has("python3.11")
    system.has("nproc", f"#!/bin/sh\necho {cores}\n")
    (system.checkout / "packaging/engine.sh").write_text("#!/bin/sh\n")  # needs nothing
    done = system.run("demo/kind.sh", user=0)
    assert done.stdout == f"{kind}\n"
    assert "MiB to download" in done.stderr


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="chooses for a machine without a card")
def test_without_root_it_is_one_whose_needs_are_met(system: System) -> None:
    system.has("nproc", "#!/bin/sh\necho 8\n")
    system.has("python3.11")
    system.has("c++")
    (system.checkout / "packaging/engine.sh").write_text("#!/bin/sh\n[ $2 = vllm ] || echo curl\n")
    assert system.run("demo/kind.sh", user=1000).stdout == "vllm\n"
    system.has("curl")
    assert system.run("demo/kind.sh", user=1000).stdout == "llamacpp\n"


def test_an_interrupt_ends_all_that_a_step_has_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    step = f"sleep 1000 > {tmp_path}/alive; true"
    with subprocess.Popen(
        [ROOT / "packaging/alive.sh", tmp_path / "log", "step", "sh", "-c", step],
        stdin=subprocess.DEVNULL,
    ) as alive:
        held = tmp_path.joinpath("alive").open("rb")
        alive.send_signal(signal.SIGTERM)
        assert alive.wait() == 130
        # The pipe's last writer is gone, which is the process that the step's shell has started.
        assert held.read() == b""
        held.close()
