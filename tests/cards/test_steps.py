"""One card: where the time of a decode step goes with caovan's kernels and with vLLM's.

csrc/bench/steps.py by the engine's Python; CAOVAN_CARDS_WAYS are the ways in their order, such as
on+off+on+off.
"""

from __future__ import annotations

import os
import subprocess

from tests.cards.conftest import CACHE, CARD, ENGINE, model
from tests.daemon_process import ROOT

BENCH = ROOT / "csrc/bench/steps.py"
WAYS = os.environ.get("CAOVAN_CARDS_WAYS", "on+off+on+off").replace("+", ",")


def test_the_steps_of_each_way_are_traced(cards: int) -> None:
    env = {
        **os.environ, "CUDA_VISIBLE_DEVICES": str(CARD), "TRITON_CACHE_DIR": f"{CACHE}/triton",
        "VLLM_CACHE_ROOT": f"{CACHE}/steps", "VLLM_LOGGING_LEVEL": "WARNING",
    }  # fmt: skip
    words = [ENGINE, str(BENCH), str(model("hybrid")), "--ways", WAYS]
    assert subprocess.run(words, env=env, check=False).returncode == 0
