"""The Python files of vLLM's releases: 0.32 is the CPU engine of `make engine`, 0.21's are brought
by `make vllm-0.21`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RELEASES = [
    pytest.param("0.21", marks=pytest.mark.long),
    pytest.param("0.32", marks=pytest.mark.engine),
]


def source_of(release: str) -> Path:
    """The package of a release; skips the test where it was not fetched."""
    folders = {
        "0.21": [ROOT / ".caovan/vllm-0.21.0/vllm"],
        "0.32": sorted((ROOT / ".engines/current/lib").glob("python3.*/site-packages/vllm")),
    }
    folder = next((path for path in folders[release] if path.is_dir()), None)
    if folder is None:
        pytest.skip(f"no vLLM {release}: `make engine` and `make vllm-0.21` bring them")
    return folder
