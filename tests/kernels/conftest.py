"""The kernel library, built once; the plugin importable from the checkout."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "plugin"), str(ROOT / "csrc"), str(ROOT / "csrc" / "bench")]


@pytest.fixture(scope="session")
def build() -> Path:
    """csrc/build with the library up to date; skipped where there is no CUDA compiler."""
    with open(ROOT / "csrc/Makefile") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of this run want it, too
        done = subprocess.run(
            ["make", "-C", str(ROOT / "csrc")], capture_output=True, text=True, check=False
        )
    if done.returncode and "no nvcc" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return ROOT / "csrc" / "build"
