"""`python -m caovan_vllm_sm75_turbo3.probe` prints JSON whatever is missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def probe(**environment: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "caovan_vllm_sm75_turbo3.probe"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "plugin")} | environment,
    )
    return json.loads(done.stdout)


def test_probe_names_the_library_and_its_architectures(build: Path) -> None:
    said = probe(CAOVAN_SM75_LIBRARY=str(build / "libcaovan_sm75.so"))
    assert said["library"]["path"] == str(build / "libcaovan_sm75.so")
    assert said["library"]["architectures"] == ["sm_75", "compute_75"]
    assert said["version"] == said["library"]["version"]


def test_probe_says_why_when_the_library_is_missing() -> None:
    said = probe(CAOVAN_SM75_LIBRARY="/nowhere.so")
    assert "CAOVAN_SM75_LIBRARY names it" in said["library"]["error"]
    assert said["operators"] == []


def test_probe_says_what_it_found_of_vllm() -> None:
    said = probe()
    assert said["gdn interface"].startswith(("pass", "fail: "))
    assert said["states"].startswith(("pass", "fail: "))
    assert said["attention"].startswith(("pass", "fail: "))
    assert said["lm_head"].startswith(("pass", "fail: "))
    assert (said["vllm"] is None) == said["gdn interface"].startswith("fail: vLLM is not installed")
