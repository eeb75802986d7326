"""The plugin's fixes inside vLLM 0.21's own scheduler, cache manager and copies: states_in_vllm.py.

`make vllm-0.21` brings the Python files that this needs; CAOVAN_VLLM_021 names another folder.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / ".engines/current/bin/python"
VLLM = Path(os.environ.get("CAOVAN_VLLM_021") or ROOT / ".caovan/vllm-0.21.0")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not ENGINE.exists(), reason="no CPU engine: `make engine` installs it"),
    pytest.mark.skipif(
        not (VLLM / "vllm").exists(), reason="no vLLM 0.21: `make vllm-0.21` brings its files"
    ),
]

LOADS = {
    "one at a time": "--at-a-time 1",
    "one, asynchronously": "--at-a-time 1 --async-scheduling",
    "four": "--at-a-time 4",
    "four, asynchronously": "--at-a-time 4 --async-scheduling",
    "fewer drafts than made": "--fickle",
    "one draft": "--drafts 1",
    "five drafts": "--drafts 5 --budget 50",
    "little memory": "--blocks 150",
    "little memory, asynchronously": "--blocks 150 --async-scheduling",
}
NEEDED_FOR = {
    "lookup": "one at a time",
    "chunk_end": "four",
    "before_step": "four, asynchronously",
    "after_step": "four",
    "copy_blocks": "one draft",
    "allocate": "fewer drafts than made",
}


def run(load: str, *more: str) -> subprocess.CompletedProcess[str]:
    folders = [VLLM, ROOT / "plugin", ROOT / "csrc/bench"]
    return subprocess.run(
        [ENGINE, ROOT / "tests/kernels/states_in_vllm.py", *LOADS[load].split(), *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "VLLM_LOGGING_LEVEL": "CRITICAL",
            "VLLM_NO_USAGE_STATS": "1",
        },
    )


@pytest.mark.parametrize("load", LOADS)
def test_every_step_goes_on_from_what_it_should(load: str) -> None:
    done = run(load, "--turns", "200")
    assert done.returncode == 0, done.stdout + done.stderr
    turns, hits = (int(part.split()[-1]) for part in done.stdout.splitlines()[-1].split(", "))
    assert turns == 200
    assert hits > 0 if "memory" in load else hits >= 60


@pytest.mark.parametrize(("left_out", "load"), NEEDED_FOR.items())
def test_each_fix_is_needed(left_out: str, load: str) -> None:
    done = run(load, "--turns", "150", "--leave-out", left_out)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "turns: " in done.stdout, done.stderr
