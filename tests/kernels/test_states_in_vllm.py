"""The plugin's fixes inside vLLM 0.21's own scheduler, cache manager and copies: states_in_vllm.py.

`make vllm-0.21` brings the Python files that this needs; CAOVAN_VLLM_021 names another folder.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORKS = ROOT / "tests/kernels/forks.py"
ENGINE = ROOT / ".engines/current/bin/python"
VLLM = Path(os.environ.get("CAOVAN_VLLM_021") or ROOT / ".caovan/vllm-0.21.0")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
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
    "make_lookup": "one at a time",
    "make_chunk_end": "four",
    "make_step_start": "four, asynchronously",
    "make_step_end": "four",
    "make_block_copy": "one draft",
    "make_allocation": "fewer drafts than made",
}


TURNS, TURNS_WITHOUT = 200, 150


@pytest.fixture(scope="module")
def ran() -> dict[str, tuple[int, str, str]]:
    """Exit status and output of each load, and of each without a fix; one import serves all."""
    arguments = {load: [*words.split(), "--turns", str(TURNS)] for load, words in LOADS.items()}
    for fix, load in NEEDED_FOR.items():
        words = [*LOADS[load].split(), "--turns", str(TURNS_WITHOUT), "--leave-out", fix]
        arguments[fix] = words
    program = "import sys, states_in_vllm; sys.exit(states_in_vllm.main())"
    folders = [VLLM, ROOT / "plugin", ROOT / "csrc/bench", ROOT / "tests/kernels"]
    done = subprocess.run(
        [ENGINE, FORKS, "import states_in_vllm"],
        input=json.dumps({name: (program, words, {}) for name, words in arguments.items()}),
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "VLLM_LOGGING_LEVEL": "CRITICAL",
            "VLLM_NO_USAGE_STATS": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("load", LOADS)
def test_every_step_goes_on_from_what_it_should(
    ran: dict[str, tuple[int, str, str]], load: str
) -> None:
    status, out, err = ran[load]
    assert status == 0, out + err
    turns, hits = (int(part.split()[-1]) for part in out.splitlines()[-1].split(", "))
    assert turns == TURNS
    assert hits > 0 if "memory" in load else hits >= 60


@pytest.mark.parametrize("left_out", NEEDED_FOR)
def test_each_fix_is_needed(ran: dict[str, tuple[int, str, str]], left_out: str) -> None:
    status, out, err = ran[left_out]
    assert status == 1, out + err
    assert "turns: " in out, err
