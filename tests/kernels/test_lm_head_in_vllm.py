"""An int8 lm_head in vLLM 0.21's own layers: lm_head_in_vllm.py, as test_cpu_engine.py runs it.

`make vllm-0.21` brings the Python files that this needs; CAOVAN_VLLM_021 names another folder.
"""

from __future__ import annotations

import os
import subprocess

from tests.kernels.test_states_in_vllm import ENGINE, ROOT, VLLM, pytestmark

__all__ = ["pytestmark"]


def test_an_lm_head_becomes_int8_in_0_21_too() -> None:
    folders = os.pathsep.join(map(str, (VLLM, ROOT / "plugin")))
    done = subprocess.run(
        [ENGINE, ROOT / "tests/kernels/lm_head_in_vllm.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": folders, "VLLM_PLUGINS": ""},
    )
    assert done.returncode == 0, done.stderr
    assert "the lm_head is int8 on the SM75 kernel" in done.stdout + done.stderr
