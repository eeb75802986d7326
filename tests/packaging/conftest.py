"""The packages, and a machine with a real systemd to install them on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import ROOT
from tests.patience import PATIENCE_S, until

SCRIPT = ROOT / "tests/packaging/machine.sh"
# What an administrator answers whose files in /etc are edited: keep them.
KEEP = ("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold")
ENGINE = Path(os.environ.get("CAOVAN_TEST_ENGINE") or ROOT / ".engines/current")
MODEL = Path(os.environ.get("CAOVAN_TEST_MODEL") or ROOT / ".caovan/models/dense")
ENGINE_THERE = "/opt/engine"
ACCOUNT, ENGINE_ACCOUNT = "caovan", "caovan-engine"
TOOLS = {
    "mmdebstrap": "mmdebstrap", "systemd-nspawn": "systemd-container", "lintian": "lintian",
    "mandoc": "mandoc", "zsh": "zsh", "dpkg-deb": "dpkg", "pgrep": "procps",
}  # fmt: skip
# What the daemon depends on is there already: the machine has no network.
BASE_PACKAGES = (
    "apt,systemd,systemd-sysv,dbus,libnss-systemd,procps,iproute2,curl,python3-venv,"
    "python3-zmq,python3-structlog,python3-sdnotify,python3-rich,"
    "python3-prometheus-client,python3-requests,python3-aiohttp"
)

UBUNTU_KEYS = Path("usr/share/keyrings/ubuntu-archive-keyring.gpg")
# Debian 12 has no package of these keys: then Ubuntu's own is taken, known by its hash.
KEYS_DEB = (
    "http://archive.ubuntu.com/ubuntu/pool/main/u/ubuntu-keyring/ubuntu-keyring_2021.03.26_all.deb"
)
KEYS_SHA256 = "0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f"


def need(*commands: str) -> None:
    """Have these commands, installed if we are root; else skip, saying what is missing."""
    missing = [command for command in commands if not shutil.which(command)]
    if not missing:
        return
    packages = " ".join(TOOLS[command] for command in missing)
    if os.getuid() != 0 or not shutil.which("apt-get"):
        pytest.skip(f"needs {packages}: sudo apt-get install {packages}")
    # make installs some in another lane
    wait = "-o DPkg::Lock::Timeout=600"
    install = f"apt-get install -y -q --no-install-recommends {wait} {packages}"
    done = subprocess.run(
        ["sh", "-c", f"{install} || {{ apt-get update -q && {install}; }}"],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"cannot install {packages}: {done.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the .deb files made from this checkout."""
    return built(ROOT, tmp_path_factory.mktemp("packages"))


def built(source: Path, folder: Path) -> Path:
    """The folder, with the .deb files made from this source tree."""
    if not shutil.which("apt-get"):
        pytest.skip("needs Debian: the packages are built with its tools")
    done = subprocess.run(
        [source / "packaging/build-deb.sh", folder], capture_output=True, text=True, check=False
    )
    if done.returncode and "cannot build the packages: missing" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def caovan_deb(packages: Path) -> Path:
    """The daemon's package."""
    return next(packages.glob("caovan_*_all.deb"))


@pytest.fixture(scope="session")
def base() -> Path:
    """A Debian 12 root that machines are layers over, made once and kept in .caovan."""
    return make_base("bookworm", BASE_PACKAGES + ",g++,libnuma1")


@pytest.fixture(scope="module")
def ubuntu_keys() -> Iterator[Path]:
    """The keys that Ubuntu's releases are signed with."""
    if (system := Path("/") / UBUNTU_KEYS).exists():
        yield system
        return
    try:
        with urllib.request.urlopen(KEYS_DEB, timeout=60) as answer:
            data = answer.read()
    except OSError as problem:
        pytest.skip(f"needs Ubuntu's archive keys ({system}), and {KEYS_DEB}: {problem}")
    assert hashlib.sha256(data).hexdigest() == KEYS_SHA256
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # apt checks signatures as a user of its own
        (folder / "keys.deb").write_bytes(data)
        subprocess.run(["dpkg-deb", "-x", folder / "keys.deb", folder], check=True)
        yield folder / UBUNTU_KEYS


def make_base(suite: str, packages: str, *options: str, kept: str = "machines") -> Path:
    """The root of a release with these packages, `kept` there; skips where it cannot be made."""
    if os.getuid() != 0:
        pytest.skip("needs root: a machine with a systemd of its own is booted")
    need("mmdebstrap", "systemd-nspawn", "pgrep")
    recipe = hashlib.sha256(SCRIPT.read_bytes() + packages.encode()).hexdigest()[:12]
    folder = ROOT / ".caovan" / kept / f"{suite}-{recipe}"
    if not folder.exists():
        for old in folder.parent.glob(f"{suite}-*"):
            shutil.rmtree(old)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            _script("base", folder, suite, packages, *options)
        except AssertionError as problem:
            pytest.skip(f"cannot make a machine to test on: {str(problem).splitlines()[-1]}")
    return folder


def _script(*words: str | Path, **environ: str) -> None:
    done = subprocess.run(
        [SCRIPT, *words],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Machine:
    """A booted machine; `root` is its file system as we see it."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def run(self, *words: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run a command in it, whatever comes out."""
        return subprocess.run(
            [SCRIPT, "exec", self.folder, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def must(self, *words: str, timeout_s: float = PATIENCE_S) -> str:
        """Run a command in it that has to succeed; what it printed."""
        done = self.run(*words, timeout_s=timeout_s)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file there, with the folders above it."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def put(self, source: Path, path: str) -> None:
        """Copy a file or folder into it, readable for everybody."""
        target = self.root / path.lstrip("/")
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        self.must("chmod", "-R", "a+rX", path)

    def install(self, deb: Path, *options: str) -> str:
        """Install a package file with apt."""
        self.put(deb, f"/opt/{deb.name}")
        return self.must(
            "apt-get", "install", "-y", "--no-install-recommends", *options, f"/opt/{deb.name}"
        )

    def show(self, name: str) -> str:
        """A property of the service."""
        return self.must("systemctl", "show", "-P", name, "caovan").strip()

    def journal(self, *options: str) -> str:
        """What the service and systemd wrote about it."""
        return self.must("journalctl", "-u", "caovan", "-o", "cat", "--no-pager", *options)

    def status(self) -> dict[str, Any]:
        """The status document."""
        return dict(json.loads(self.run("caovanctl", "status", "--json").stdout or "{}"))

    def until_state(self, *states: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for one of these states of the engine; the status then."""

        def look() -> dict[str, Any] | None:
            status = self.status()
            return status if status.get("state") in states else None

        try:
            found = until(look, f"state {' or '.join(states)}", patience_s)
        except AssertionError as problem:
            raise AssertionError(f"{problem}; {self.status()}; {self.journal('-n40')}") from None
        assert found is not None
        return found

    def pids(self) -> set[int]:
        """All processes of the accounts caovan and caovan-engine."""
        found = (self.run("pgrep", "-u", user).stdout for user in (ACCOUNT, ENGINE_ACCOUNT))
        return {int(pid) for pids in found for pid in pids.split()}

    def comm(self, pid: int) -> str:
        """The name of a process."""
        return self.must("cat", f"/proc/{pid}/comm").strip()

    def engine_pids(self) -> set[int]:
        """The processes of the engine, without the daemon and its helpers."""
        helpers = ("caovand", "caovan-spawner", "caovan-calls", "caovan-survivor")
        return {pid for pid in self.pids() if self.comm(pid) not in helpers}

    def user(self, pid: int) -> str:
        """The user of a process."""
        return self.must("stat", "-c", "%U", f"/proc/{pid}").strip()

    def groups(self, pid: int) -> str:
        """The control groups of a process, as systemd in the machine names them."""
        return self.must("cat", f"/proc/{pid}/cgroup")

    def add_engine(self) -> None:
        """Have the real engine on one core, and the tiny model."""
        core = sorted(os.sched_getaffinity(0))[-1]
        python = f'#!/bin/sh\nexec taskset -c {core} {ENGINE_THERE}/bin/python "$@"\n'
        self.write("/opt/python", python, 0o755)
        self.put(MODEL, "/opt/model")
        if home := _python_home():
            # Bind mounts keep their paths, which may be below a home of mode 0700.
            for parent in home.parents:
                self.must("chmod", "a+x", str(parent))


def _python_home() -> Path | None:
    """Where the Python lies that the engine's environment was made with; None for the system's."""
    lines = (ENGINE / "pyvenv.cfg").read_text().splitlines()
    home = next(line.partition("=")[2].strip() for line in lines if line.startswith("home"))
    return None if home == "/usr/bin" else Path(home).resolve().parent


def boot(folder: Path, base: Path, *, engine: bool, unified: bool = False) -> Machine:
    """Boot a machine with no network, with the real engine bind-mounted if wanted."""
    options = ["--private-network"]
    if engine:
        if not (ENGINE / "bin/python").exists() or not MODEL.exists():
            pytest.fail("no engine or model to test with: run `make engine` first", pytrace=False)
        # Not at its own path: a /tmp of the machine's would hide it there.
        options.append(f"--bind-ro={ENGINE.resolve()}:{ENGINE_THERE}")
        if home := _python_home():
            options.append(f"--bind-ro={home}")
    try:
        _script("boot", folder, base, *options, UNIFIED=str(int(unified)))
    except AssertionError:
        _script("end", folder)
        raise
    return Machine(folder)


def end(machine: Machine) -> None:
    """Power off and drop everything."""
    _script("end", machine.folder)


@pytest.fixture(scope="module")
def machine(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine for the tests of one file, with a real engine at hand."""
    one = boot(tmp_path_factory.mktemp("m") / "machine", base, engine=True)
    try:
        one.add_engine()
        yield one
    finally:
        end(one)


@pytest.fixture
def unified_machine(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The same on cgroup v2."""
    one = boot(tmp_path_factory.mktemp("m") / "machine", base, engine=True, unified=True)
    try:
        one.add_engine()
        yield one
    finally:
        end(one)


def version_of(deb: Path) -> str:
    """A package's version."""
    done = subprocess.run(["dpkg-deb", "-f", deb, "Version"], capture_output=True, check=True)
    return done.stdout.decode().strip()


def repacked(deb: Path, folder: Path, version: str, conffile_line: str) -> Path:
    """The same package under another version, with a line more in its conffiles."""
    tree = folder / version
    subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
    control = tree / "DEBIAN/control"
    old = f"Version: {version_of(deb)}\n"
    control.write_text(control.read_text().replace(old, f"Version: {version}\n"))
    for conffile in ("etc/caovan.toml", "etc/default/caovan"):
        with open(tree / conffile, "a") as file:
            file.write(conffile_line)
    (tree / "DEBIAN/md5sums").unlink()
    made = folder / f"caovan_{version}_all.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", tree, made], check=True, stdout=subprocess.DEVNULL
    )
    return made


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that the planner takes: headers, no weights."""
    folder = tmp_path_factory.mktemp("model") / "dense"
    folder.mkdir()
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "dtype": "bfloat16",
        "max_position_embeddings": 4096,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    header = {"lm_head.weight": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    return folder
