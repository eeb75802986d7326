"""What an engine's own Python reports about itself, over stand-ins for torch and vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.engine_install import run_in_env
from caovand.engines.vllm.installation import INSTALL

TORCH = """
import types
__version__, version = "2.13.0+cpu", types.SimpleNamespace(cuda=None)
cuda = types.SimpleNamespace(device_count=lambda: 0)
operators = []
_C = types.SimpleNamespace(_dispatch_get_all_op_names=lambda: ["aten::add", *operators])
"""
PLATFORMS = """
import importlib
class current_platform:
    device_type = "cpu"
    def import_kernels():
        {}
"""
AS_A_MODULE = "importlib.import_module('vllm._C')"
NO_MODULE = "import torch; torch.operators.append('_C::silu_and_mul')"
NOTHING = "pass"


@pytest.mark.parametrize(
    ("loads", "library", "errors"),
    [
        (AS_A_MODULE, "", []),
        # For processors without AVX-512: it registers its operators, then is no Python module.
        (NO_MODULE, "import os; os.abort()", []),
        (NOTHING, "raise ImportError('GLIBC_2.38 not found')",
         ["import vllm._C: ImportError: GLIBC_2.38 not found"]),
    ],
    ids=["a module", "no module", "nothing"],
)  # fmt: skip
def test_a_library_of_kernels_is_loaded_once(
    tmp_path: Path, loads: str, library: str, errors: list[str]
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "vllm/__init__.py").write_text("__version__ = '0.32.0'\n")
    (tmp_path / "vllm/platforms.py").write_text(PLATFORMS.format(loads))
    (tmp_path / "vllm/_C.py").write_text(library)
    report = reported(tmp_path)
    assert (report["errors"], report["platform"]) == (errors, "cpu")


def reported(modules: Path) -> dict[str, Any]:
    """The line that it prints when these modules are found first."""
    env = {**os.environ, "PYTHONPATH": str(modules)}
    imports = INSTALL.imports
    assert imports is not None
    asked = {"modules": imports.modules, "kernels": imports.kernels, "plugins": imports.plugins}
    words = [sys.executable, "-S", run_in_env.__file__, json.dumps(asked)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report
