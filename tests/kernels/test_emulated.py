"""Kernels of attention, of its cache and of logits on a CPU, a fiber a thread, against float64."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = Path(__file__).parent / "emulator"


@pytest.mark.long
@pytest.mark.parametrize(("program", "cases"), [("attention", 57), ("lm_head", 9)])
def test_every_case_is_right(program: str, cases: int, tmp_path: Path) -> None:
    compiler = shutil.which("g++") or pytest.skip("no g++ to compile the kernels for a CPU with")
    for source in (*(ROOT / "csrc/src").glob("*.cuh"), *EMULATOR.iterdir()):
        shutil.copy(source, tmp_path)  # the emulator's ptx.cuh replaces the real one
    executable = tmp_path / program
    built = subprocess.run(
        [compiler, "-std=c++17", "-O1", "-w", "-I", tmp_path, "-I", ROOT / "csrc/include",
         "-o", executable, tmp_path / f"{program}.cpp"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "_Float16" in built.stderr:
        pytest.skip("this g++ has no _Float16: 12 or newer is needed")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([executable], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.count("pass") == cases
