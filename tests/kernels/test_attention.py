"""The kernels of attention and of its cache on a CPU, a fiber a thread, against float64."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = Path(__file__).parent / "emulator"


@pytest.mark.long
def test_attention_is_right_in_every_format_and_at_ragged_borders(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or pytest.skip("no g++ to compile the kernels for a CPU with")
    for source in (*(ROOT / "csrc/src").glob("*.cuh"), *EMULATOR.iterdir()):
        shutil.copy(source, tmp_path)  # the emulator's ptx.cuh replaces the real one
    program = tmp_path / "attention"
    built = subprocess.run(
        [compiler, "-std=c++17", "-O1", "-w", "-I", tmp_path, "-I", ROOT / "csrc/include",
         "-o", program, tmp_path / "attention.cpp"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "_Float16" in built.stderr:
        pytest.skip("this g++ has no _Float16: 12 or newer is needed")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.count("pass") == 25
