"""The tree that the package installs, under the Pythons and libraries that Ubuntu ships."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.daemon_process import ROOT, Daemon
from tests.packaging.conftest import need
from tests.ports import free_port

pytestmark = pytest.mark.long
STANDIN = ROOT / "tests/standin/engine.py"
RELEASES = {
    "ubuntu-22.04": ("10", ROOT / "tests/oldest.txt"),
    "ubuntu-24.04": ("12", ROOT / "tests/packaging/ubuntu-24.04.txt"),
    "debian-12": ("11", None),
}


@dataclass(frozen=True)
class Installed:
    """A Python with a release's libraries, and the package's tree."""

    python: Path
    tree: Path

    def command(self, name: str) -> list[str]:
        return [str(self.python), str(self.tree / "usr/bin" / name)]

    @property
    def environ(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.tree / "usr/lib/python3/dist-packages")}

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command(name), *words],
            env=self.environ,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module", params=RELEASES)
def installed(request: pytest.FixtureRequest, caovan_deb: Path) -> Iterator[Installed]:
    """The package unpacked, and a virtual environment as that release has it."""
    need("dpkg-deb")
    minor, requirements = RELEASES[request.param]
    if requirements is None:
        python = Path("/usr/bin/python3")
        found = subprocess.run(
            [python, "-c", f"import zmq, sys; assert sys.version_info[1] == {minor}"], check=False
        )
        if found.returncode:
            pytest.skip("needs Debian 12 with the packages the daemon depends on")
    else:
        python = _environment(request.param, minor, requirements)
    with tempfile.TemporaryDirectory(prefix="caovan-") as folder:
        subprocess.run(["dpkg-deb", "-x", caovan_deb, folder], check=True)
        yield Installed(python, Path(folder))


def _environment(name: str, minor: str, requirements: Path) -> Path:
    found = subprocess.run(
        [ROOT / "packaging/find-python.sh", minor, minor],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip(f"needs Python 3.{minor}, which {name} has")
    folder = ROOT / f".venv-{name}"
    ready = folder / "ready.txt"
    if not ready.exists() or ready.read_text() != requirements.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([found.stdout.strip(), "-m", "venv", folder], check=True)
        subprocess.run(
            [folder / "bin/python", "-m", "pip", "install", "-q", "-r", requirements], check=True
        )
        ready.write_text(requirements.read_text())
    return folder / "bin/python"


def test_its_commands_say_who_they_are(installed: Installed) -> None:
    assert installed.run("caovand", "--version").stdout.startswith("caovand ")
    for name in ("caovand", "caovanctl", "caovan-vllm-serve", "caovan-sm75-doctor"):
        done = installed.run(name, "--help")
        assert (done.returncode, done.stdout[:6]) == (0, "usage:"), name + done.stderr
    assert installed.run("caovanctl", "status").returncode == 4


def test_it_is_the_packages_tree_that_runs(installed: Installed) -> None:
    where = "import caovand; print(caovand.__file__)"
    done = subprocess.run(
        [installed.python, "-c", where],
        env=installed.environ,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(installed.tree))


def test_the_packages_own_configuration_and_locks_are_good(installed: Installed) -> None:
    config = installed.tree / "etc/caovan.toml"
    done = installed.run("caovanctl", "check-config", str(config))
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((installed.tree / "usr/share/caovan/engines").glob("cuda-*.txt"))


def test_it_serves_with_a_stand_in_for_the_engine(installed: Installed, tiny_model: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="caovan-"))
    config = (
        f'[model]\npath = "{tiny_model}"\nmax_model_len = 2048\n'
        f'[server]\nport = {free_port()}\n[engine]\npython = "{STANDIN}"\n'
        "[watch]\nshutdown_timeout_s = 1\n"
    )
    one = Daemon(folder, config, installed.environ)
    one.caovand = installed.command("caovand")
    one.caovanctl = installed.command("caovanctl")
    try:
        one.start()
        one.until_state("SERVING")
        plan = ("plan", "--config", str(one.config_path))
        for words in (("status",), plan, ("logs",), ("reload",), ("mode", "stable")):
            done = one.ctl(*words)
            assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        assert one.stop() == 0, one.log()
    finally:
        if one.process is not None and one.process.poll() is None:
            one.stop()
        shutil.rmtree(folder, ignore_errors=True)
