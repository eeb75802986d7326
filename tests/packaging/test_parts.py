"""Running and summarising the test parts, also on a machine without Python 3.10."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon_process import ROOT

PARTS = """\
good:
	@echo "= 30 passed, 3 skipped in 12.30s (0:00:12) ="
bad:
	@echo "what failed"; echo "2 failed, 1 passed, 1 error in 3.00s"; exit 1
none:
	@echo "error: a reason"; echo "skipped: no Python 3.10 is here"
waits:
	@echo ".... [ 50%]"; read line < go
"""


def parts(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start it as a shell starts a job in the background: with SIGINT ignored."""
    (folder / "Makefile").write_text(PARTS)
    ignored = ["env", "--ignore-signal=INT"]
    return subprocess.Popen(
        [*ignored, sys.executable, ROOT / "packaging/parts.py", *words],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_everything_runs_and_the_last_lines_sum_it_up(tmp_path: Path) -> None:
    one = parts(tmp_path, "bad,none", "good")
    screen = one.communicate()[0]
    assert one.returncode == 1
    *_, table = screen.partition("\npart  ")
    rows = [line.split(None, 4) for line in table.splitlines()[1:4]]
    assert [(name, result, tests) for name, result, _, _, tests in rows] == [
        ("bad", "FAILED", "3 failed, 1 passed"),
        ("none", "skipped", "no Python 3.10 is here"),
        ("good", "passed", "30 passed, 3 skipped"),
    ]
    assert screen.splitlines()[-1] == "31 passed, 3 failed, 3 skipped"
    assert "what failed" in screen  # of those that passed only the log has it
    assert "12.30s" not in screen
    assert "12.30s" in (tmp_path / ".caovan/parts/good.log").read_text()


def test_while_a_part_runs_a_line_tells_how_far_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    one = parts(tmp_path, "--sign-of-life", "0.05", "waits")
    assert one.stdout is not None
    while not (line := one.stdout.readline()).endswith(" s, 50 %\n"):
        assert line.startswith("... waits"), line
    (tmp_path / "go").write_text("on\n")
    assert one.communicate()[0].splitlines()[-1] == "0 passed, 0 failed, 0 skipped"
    assert one.returncode == 0


def test_an_interrupt_ends_what_runs_and_still_sums_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    one = parts(tmp_path, "--sign-of-life", "0.05", "good+waits+good")
    assert one.stdout is not None
    while "50 %" not in (line := one.stdout.readline()):
        assert line, "it has ended"
    one.send_signal(signal.SIGINT)
    assert "30 passed, 0 failed, 3 skipped" in one.communicate()[0]
    assert one.returncode == 130


UV = """#!/bin/sh
case "$1 $2" in
"python install") echo "error: no route to its source" >&2; exit {installs} ;;
"python find") echo "{python}" ;;
esac
"""


@pytest.fixture
def no_python_3_10(tmp_path: Path) -> Path:
    """A checkout on a machine that has no Python 3.10; its uv is a script."""
    for name in ("packaging/oldest.sh", "packaging/find-python.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "packaging/find-python.sh").write_text("#!/bin/sh\necho none here >&2\nexit 1\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/oldest.txt").touch()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/uv").touch(0o755)
    return tmp_path


def oldest(checkout: Path, *, installs: int) -> subprocess.CompletedProcess[str]:
    (checkout / ".venv/bin/uv").write_text(UV.format(installs=installs, python=sys.executable))
    return subprocess.run(
        [checkout / "packaging/oldest.sh", "-c", "print('tested')"],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_without_python_3_10_uv_fetches_one(no_python_3_10: Path) -> None:
    done = oldest(no_python_3_10, installs=0)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "tested"), done.stderr


def test_where_none_can_be_fetched_the_part_is_skipped_with_the_reason(
    no_python_3_10: Path,
) -> None:
    done = oldest(no_python_3_10, installs=1)
    why, skipped = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert why == "error: no route to its source"
    assert skipped.startswith("skipped: no Python 3.10 is here, and uv could not fetch one: ")
    assert "UV_PYTHON_INSTALL_MIRROR" in skipped
    assert not (no_python_3_10 / ".venv-oldest").exists()


NO_PYTHON = (
    "caovanctl: cannot find Python 3.11: no Python here has a working venv module, and "
    "uv could not install one (cause: no route)"
)


@pytest.mark.parametrize(
    ("installs", "status", "last"),
    [
        ("true", 0, "tested"),
        (f"echo '{NO_PYTHON}; apt install'; false", 0, "skipped: no Python 3.11 is here for vLLM,"),
        ("echo 'caovanctl: cannot download torch'; false", 1, "no engine"),
    ],
    ids=["installed", "no Python", "broken"],
)
def test_a_machine_that_cannot_have_vllms_python_skips_what_needs_vllm(
    tmp_path: Path, installs: str, status: int, last: str
) -> None:
    (tmp_path / "packaging").mkdir()
    script = Path(shutil.copy(ROOT / "packaging/with-engine.sh", tmp_path / "packaging"))
    engine = tmp_path / "packaging/engine.sh"
    engine.write_text(f"#!/bin/sh\n{installs}\n")
    engine.chmod(0o755)
    done = subprocess.run([script, "echo", "tested"], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stdout.splitlines()[-1].startswith(last)
    assert list((tmp_path / ".caovan").iterdir()) == []
