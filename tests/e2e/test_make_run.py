"""README's quick start as a new user meets it: a fresh Debian, a terminal, Ctrl-C.

Everything is made anew: virtual environment, engine, model. The daemon serves on its default port.
By hand, with other releases (minutes each, where llama.cpp is compiled):

    CAOVAN_RELEASES=bookworm,jammy,noble python -m pytest tests/e2e/test_make_run.py
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from caovand.adapters.system import processes
from caovand.core import tiny_chat
from tests.daemon_process import ROOT
from tests.e2e.bare_root import BareRoot
from tests.packaging.conftest import make_base, ubuntu_keys  # noqa: F401  (a fixture)
from tests.terminal import CTRL_C, Terminal

pytestmark = [pytest.mark.engine, pytest.mark.long]

INSTALL_S = 1800
SERVES = "It serves. In a second terminal:"
METRICS = "http://127.0.0.1:8000/metrics"
RELEASES = os.environ.get("CAOVAN_RELEASES", "bookworm").split(",")
MIRROR = "http://archive.ubuntu.com/ubuntu"
THERE = "/root/caovan"


def quick_start() -> tuple[list[str], str]:
    """README's packages, and its line that tries caovan."""
    text = (ROOT / "README.md").read_text().partition("## Quick start")[2]
    packages = re.search(r"^(?:sudo )?apt-get install (.*?) *(#|$)", text, re.MULTILINE)
    line = re.search(r"^(make run) +#", text, re.MULTILINE)
    assert packages is not None
    assert line is not None
    return packages[1].split(), line[1]


def copy_checkout(folder: Path) -> None:
    """The files that git has or would take."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


@dataclass
class Bare:
    """A fresh machine with README's packages and a checkout in root's home, of mode 700."""

    root: BareRoot
    copied: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.copied = self.files()

    def files(self) -> frozenset[str]:
        """What is in the checkout."""
        checkout = self.root.path / THERE.lstrip("/")
        return frozenset(
            str(path.relative_to(checkout)) for path in checkout.rglob("*") if not path.is_dir()
        )

    def make_run(self, line: str = "make run") -> Terminal:
        """The first terminal."""
        return Terminal(self.root.command(f"exec {line}", THERE), os.environ, Path("/"))

    def second_terminal(self, line: str) -> str:
        """What a line typed in a second terminal prints; fails where it fails."""
        done = subprocess.run(
            self.root.command(f". {THERE}/.caovan/env && {line}", "/"),
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def status(self) -> dict[str, object]:
        """The status for programs."""
        return dict(json.loads(self.second_terminal("caovanctl status --json")))

    def processes(self) -> list[str]:
        """What runs there but for the process that holds the root."""
        space = os.readlink(self.root.path.parent / "ns/pid")
        found = []
        for process in processes.all_processes():
            try:
                theirs = os.readlink(f"/proc/{process.pid}/ns/pid")
                command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            except OSError:
                continue
            # That one ends no zombies, which have no command line.
            if theirs == space and command and process.name != "sleep":
                found.append(f"{process.pid} {process.name}")
        return found

    def left_elsewhere(self) -> list[str]:
        """Files outside the checkout that neither apt nor Python's cache of the system wrote."""
        ours = ("root/caovan/", "usr/", "etc/", "var/lib/apt/", "var/lib/dpkg/", "var/cache/")
        ours = (*ours, "var/log/", "var/lib/python/", "var/lib/ucf/", "var/lib/systemd/")
        names = []
        for path in self.root.written.rglob("*"):
            name = path.relative_to(self.root.written)
            # A folder of the base is copied up when something in it came and went.
            is_old = (self.root.base / name).is_dir()
            if not path.is_dir() or not (is_old or any(path.iterdir())):
                names.append(str(name))
        seen = [name for name in names if not name.startswith(ours)]
        return [name for name in seen if f"/{name}" not in self.root.seen]


@pytest.fixture(params=RELEASES)
def bare(request: pytest.FixtureRequest) -> Iterator[Bare]:
    """A machine of that release. In CI the last core is for the other lane."""
    if "CAOVAN_RELEASES" not in os.environ:
        request.getfixturevalue("last_core")
    packages, _ = quick_start()
    options = []
    if request.param != "bookworm":
        keys = request.getfixturevalue("ubuntu_keys")
        options = ["--components=main,universe", f"--keyring={keys}"]
    base = make_base(request.param, ",".join(["apt", *packages]), *options, kept="bare")
    wanted = re.compile(r"PIP_|UV_|\w+_proxy$", re.IGNORECASE)
    settings = {name: value for name, value in os.environ.items() if wanted.match(name)}
    named = [word for value in settings.values() for word in value.split() if word[0] == "/"]
    root = BareRoot(base, named, settings)
    try:
        copy_checkout(root.path / THERE.lstrip("/"))
        (root.path / "root").chmod(0o700)
        if options:  # the keys are those of the system
            pockets = (request.param, f"{request.param}-updates", f"{request.param}-security")
            sources = [f"deb {MIRROR} {pocket} main universe\n" for pocket in pockets]
            (root.path / "etc/apt/sources.list").write_text("".join(sources))
        yield Bare(root)
    finally:
        root.close()


def drafts_a_round() -> float:
    """Draft tokens a round since the engine's start, from vLLM's own metrics."""
    with urllib.request.urlopen(METRICS, timeout=60) as answer:
        text = answer.read().decode()

    def total(name: str) -> float:
        return sum(map(float, re.findall(rf"^vllm:{name}{{.*}} (\S+)$", text, re.M)))

    return total("spec_decode_num_draft_tokens_total") / total("spec_decode_num_drafts_total")


def printed_chat(screen: str) -> str:
    """The request that `make run` prints."""
    words = screen.partition(SERVES)[2].replace("\\\n", " ")
    return next(line.strip() for line in words.splitlines() if "curl" in line)


def said(answer: str) -> str:
    return str(json.loads(answer)["choices"][0]["message"]["content"])


def test_a_new_user_s_first_half_hour(bare: Bare) -> None:
    begun_s = time.monotonic()
    first = bare.make_run(quick_start()[1])
    first.until_it_says(SERVES, INSTALL_S)
    screen = first.until_it_says("caovanctl reload  ")
    print(f"served after {time.monotonic() - begun_s:.0f} s")
    # What is missing is installed first, in one line.
    needs = re.findall(r"^installing with apt: (.*)$", screen, re.MULTILINE)
    assert len(needs) == 1
    assert screen.index("installing with apt") < screen.index("making .venv")
    assert "[1/6]" in screen
    percents = [int(found) for found in re.findall(r"^ +(\d+) % .*unpacking$", screen, re.M)]
    assert percents == sorted(percents)

    # The second terminal: what was printed is typed.
    chat = printed_chat(first.text)
    assert "SERVING" in bare.second_terminal("caovanctl status")
    assert said(bare.second_terminal(chat)) == tiny_chat.TEXT
    for verb in ("plan", "inventory", "doctor", "check-config", "engine list", "engine verify"):
        bare.second_terminal(f"caovanctl {verb}")
    if "vLLM" in screen:
        assert bare.status()["mtp"] == 0  # the CPU build and a hybrid
        bare.second_terminal("caovanctl mode fast")
        bare.second_terminal(chat)
        assert (bare.status()["mtp"], drafts_a_round()) == (4, 4)

    config = bare.root.path / THERE.lstrip("/") / ".caovan/caovan.toml"
    config.write_text(config.read_text().replace('"demo"', '"edited"'))
    bare.second_terminal("caovanctl reload")
    answer = json.loads(bare.second_terminal(chat.replace('"demo"', '"edited"')))
    assert answer["model"] == "edited"

    first.press(CTRL_C)
    first.until_ended()
    assert "-> STOPPED" in first.text, first.text[-3000:]
    assert "***" not in first.text  # make's errors
    assert bare.processes() == []

    # The second time everything is there, and Ctrl-C works while it starts, too.
    second = bare.make_run()
    screen = second.until_it_says("engine started, pid")
    for once in ("installing", "making .venv", "[1/6]"):
        assert once not in screen
    second.press(CTRL_C)
    second.until_ended()
    assert bare.processes() == []

    subprocess.run(bare.root.command("make clean", THERE), check=True, capture_output=True)
    assert bare.files() == bare.copied
    assert bare.left_elsewhere() == []


@pytest.fixture
def checkout(last_core: int) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="caovan-run-"))
    copy_checkout(place / "caovan")
    yield place / "caovan"
    shutil.rmtree(place, ignore_errors=True)


def test_the_same_with_llama_cpp_where_it_is_installed(checkout: Path) -> None:
    """Its engine was made by `make llamacpp`; nothing else is there."""
    (checkout / ".engines").mkdir()
    for name in ("current-llamacpp", os.readlink(ROOT / ".engines/current-llamacpp")):
        (checkout / ".engines" / name).symlink_to(ROOT / ".engines" / name)
    (checkout / ".venv").symlink_to(ROOT / ".venv")
    unwanted = ("CAOVAN_", "MAKE", "MFLAGS", "KIND")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    environ["PYTHONPATH"] = str(checkout)
    first = Terminal(["make", "run"], environ, checkout)
    first.until_it_says(SERVES, INSTALL_S)
    first.until_it_says("caovanctl reload  ")

    def second_terminal(line: str) -> str:
        return subprocess.run(
            ["sh", "-c", f". {checkout}/.caovan/env && {line}"],
            env=environ, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    assert said(second_terminal(printed_chat(first.text))) == tiny_chat.TEXT
    assert json.loads(second_terminal("caovanctl status --json"))["state"] == "SERVING"
    first.press(CTRL_C)
    assert first.until_ended() == -signal.SIGINT, first.text[-3000:]
    assert "***" not in first.text
