"""The Makefile: the order of its recipes, and the tests that it names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.daemon_process import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the Makefile and its scripts; the rest of its .venv is the test's."""
    (tmp_path / "packaging").mkdir()
    for file in [ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / "packaging").glob("*.sh")]:
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    (tmp_path / "packaging/prerequisites.sh").write_text("#!/bin/sh\n")  # it installs things
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/ready").touch()
    return tmp_path


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


def test_the_tests_that_it_names_exist() -> None:
    """pytest ignores or deselects a file that is gone without a word."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    prefixed = re.findall(r"\$\(addprefix (tests/[\w/]*),([\w.\s]+)\)", text)
    named = [prefix + name for prefix, names in prefixed for name in names.split()]
    named += re.findall(r"(?<![\w/])tests/[\w/]+\.py", text)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
