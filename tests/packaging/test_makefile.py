"""What the Makefile does on machines that lack something."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon_process import ROOT

UV = """#!/bin/sh
case "$1 $2" in
"python install") exit {installs} ;;
"python find") echo "{python}" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout on a machine that has no Python 3.10; its uv is a script."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("packaging/find-python.sh", "tests/oldest.txt", ".venv/bin/uv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o755)
    (tmp_path / "packaging/find-python.sh").write_text("#!/bin/sh\necho none here >&2\nexit 1\n")
    (tmp_path / ".venv/ready").touch()
    return tmp_path


def make_oldest(checkout: Path, *, installs: int) -> subprocess.CompletedProcess[str]:
    (checkout / ".venv/bin/uv").write_text(UV.format(installs=installs, python=sys.executable))
    return subprocess.run(
        ["make", "-s", ".venv-oldest/ready"],
        cwd=checkout,
        env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_without_python_3_10_uv_brings_one(checkout: Path) -> None:
    done = make_oldest(checkout, installs=0)
    assert done.returncode == 0, done.stderr
    assert (checkout / ".venv-oldest/ready").exists()


def test_where_none_can_be_brought_one_line_says_so(checkout: Path) -> None:
    done = make_oldest(checkout, installs=1)
    ours, makes = done.stderr.splitlines()
    assert ours.startswith("cannot test the oldest libraries: no Python 3.10 is here, and none ")
    assert "install one (pyenv install 3.10)" in ours
    assert makes.startswith("make: *** ")
    assert not (checkout / ".venv-oldest").exists()


@pytest.mark.parametrize("card", [True, False])
def test_where_a_card_is_the_plugin_gets_its_library_before_the_engine(
    checkout: Path, card: bool
) -> None:
    python = checkout / ".venv/bin/python"
    python.write_text(f'#!/bin/sh\n[ "$1" != -c ] || exit {int(not card)}\necho "$*" >> did\n')
    python.chmod(0o755)
    (checkout / "csrc").mkdir()
    (checkout / "csrc/Makefile").write_text("package:\n\t@echo package >> ../did\n")
    subprocess.run(["make", "-s", "engine"], cwd=checkout, check=True)
    install = "-m caovand.cli.engine install --root .engines"
    did = (checkout / "did").read_text().splitlines()
    assert did == (["package", install] if card else [install])
