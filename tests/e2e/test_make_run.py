"""`make run` from a bare checkout as a new user meets it: a terminal, the printed commands, Ctrl-C.

Everything is made anew: virtual environment, engine, model. The daemon serves on its default port.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from caovand.adapters import processes
from tests.daemon_process import ROOT
from tests.terminal import CTRL_C, Terminal

pytestmark = [pytest.mark.engine, pytest.mark.long]

INSTALL_S = 1800
SERVES = "It serves. In a second terminal:"
METRICS = "http://127.0.0.1:8000/metrics"


@dataclass
class Checkout:
    """A copy of the project with nothing made in it, and the environment of its user."""

    folder: Path
    environ: dict[str, str]

    def make_run(self) -> Terminal:
        """The first terminal."""
        return Terminal(["make", "run"], self.environ, self.folder)

    def second_terminal(self, line: str) -> str:
        """What a line typed in a second terminal prints; fails where it fails."""
        done = subprocess.run(
            ["bash", "-c", f'export PATH="{self.folder}/.venv/bin:$PATH"; {line}'],
            env=self.environ, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def status(self) -> dict[str, object]:
        """The status for programs."""
        return dict(json.loads(self.second_terminal("caovanctl status --json")))

    def processes(self) -> list[str]:
        """Living processes that come from this checkout: vLLM renames its own, maps stay."""
        found = []
        for process in processes.every():
            of = Path(f"/proc/{process.pid}")
            try:
                seen = (of / "cmdline").read_text() + (of / "maps").read_text()
            except OSError:
                continue
            if str(self.folder) in seen:
                found.append(f"{process.pid} {process.name}")
        return found


@pytest.fixture
def checkout(last_core: int) -> Iterator[Checkout]:
    """Copied from the files that git has or would take; what runs there leaves the last core."""
    place = Path(tempfile.mkdtemp(prefix="caovan-run-"))
    folder = place / "caovan"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith(("CAOVAN_", "MAKE", "MFLAGS"))
    }
    environ["RUNTIME_DIRECTORY"] = str(place / "run")
    environ["KIND"] = "vllm"  # on many cores llama.cpp is quicker to get
    yield Checkout(folder, environ)
    shutil.rmtree(place, ignore_errors=True)


def drafts_a_round() -> float:
    """Draft tokens a round since the engine's start, from vLLM's own metrics."""
    with urllib.request.urlopen(METRICS, timeout=60) as answer:
        text = answer.read().decode()

    def total(name: str) -> float:
        return sum(map(float, re.findall(rf"^vllm:{name}{{.*}} (\S+)$", text, re.M)))

    return total("spec_decode_num_draft_tokens_total") / total("spec_decode_num_drafts_total")


def test_a_new_user_s_first_half_hour(checkout: Checkout) -> None:
    first = checkout.make_run()
    screen = first.until_it_says(SERVES, INSTALL_S)
    first.until_it_says("caovanctl reload  ")
    assert "making .venv" in screen
    assert "[1/6]" in screen  # the engine's installation shows where it is

    # The second terminal: what was printed is typed.
    words = first.text.partition(SERVES)[2].replace("\\\n", " ")
    chat = next(line.strip() for line in words.splitlines() if "curl" in line)
    assert "SERVING" in checkout.second_terminal("caovanctl status")
    answer = json.loads(checkout.second_terminal(chat))
    assert answer["usage"]["completion_tokens"] > 0
    assert checkout.status()["mtp"] == 0  # the CPU build and a hybrid
    checkout.second_terminal("caovanctl mode fast")
    checkout.second_terminal(chat)
    assert (checkout.status()["mtp"], drafts_a_round()) == (4, 4)

    config = checkout.folder / ".caovan/caovan.toml"
    config.write_text(config.read_text().replace('"demo"', '"edited"'))
    checkout.second_terminal("caovanctl reload")
    answer = json.loads(checkout.second_terminal(chat.replace('"demo"', '"edited"')))
    assert answer["model"] == "edited"

    first.press(CTRL_C)
    assert first.until_ended() == -signal.SIGINT, first.text[-3000:]  # make's own, at the end
    assert "-> STOPPED" in first.text
    assert checkout.processes() == []
    checkout.second_terminal(f"caovanctl engine verify --root {checkout.folder}/.engines")

    # The second time everything is there, and Ctrl-C works while it starts, too.
    second = checkout.make_run()
    screen = second.until_it_says("engine started, pid")
    assert "making .venv" not in screen
    assert "[1/6]" not in screen
    second.press(CTRL_C)
    assert second.until_ended() == -signal.SIGINT, second.text[-3000:]
    assert checkout.processes() == []


def test_the_same_with_llama_cpp_where_it_is_installed(checkout: Checkout) -> None:
    """Its engine was made by `make llamacpp`; nothing else is there."""
    (checkout.folder / ".engines").mkdir()
    for name in ("current-llamacpp", os.readlink(ROOT / ".engines/current-llamacpp")):
        (checkout.folder / ".engines" / name).symlink_to(ROOT / ".engines" / name)
    (checkout.folder / ".venv").symlink_to(ROOT / ".venv")
    del checkout.environ["KIND"]
    checkout.environ["PYTHONPATH"] = str(checkout.folder)
    first = checkout.make_run()
    first.until_it_says(SERVES, INSTALL_S)
    first.until_it_says("caovanctl reload  ")
    words = first.text.partition(SERVES)[2].replace("\\\n", " ")
    chat = next(line.strip() for line in words.splitlines() if "curl" in line)
    assert json.loads(checkout.second_terminal(chat))["usage"]["completion_tokens"] > 0
    assert checkout.status()["state"] == "SERVING"
    first.press(CTRL_C)
    assert first.until_ended() == -signal.SIGINT, first.text[-3000:]
    assert checkout.processes() == []
