"""An engine's environment: ours without what only the daemon needs, and its own tools first."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from caovand.adapters.system.processes import inherited_environ


def test_the_engines_own_tools_come_first(tmp_path: Path) -> None:
    """FlashInfer runs "ninja", which pip installs beside the engine's Python and nowhere else."""
    tools = tmp_path / "engine/bin"
    tools.mkdir(parents=True)
    (tools / "ninja").write_text("#!/bin/sh\n")
    (tools / "ninja").chmod(0o755)
    env = inherited_environ(
        {"PATH": os.defpath, "LANG": "C", "NOTIFY_SOCKET": "/run/x"}, f"{tools}/python"
    )
    assert shutil.which("ninja", path=env["PATH"]) == f"{tools}/ninja"
    assert env["PATH"].endswith(f":{os.defpath}")
    assert {name: env[name] for name in env if name != "PATH"} == {"LANG": "C"}


def test_the_engines_own_nvcc_is_found_before_another(tmp_path: Path) -> None:
    """vLLM looks for nvcc on PATH before it takes FlashInfer for usable."""
    for place in ("engine/cuda/bin", "other"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "nvcc").write_text("#!/bin/sh\n")
        (tmp_path / place / "nvcc").chmod(0o755)
    env = inherited_environ({"PATH": str(tmp_path / "other")}, f"{tmp_path}/engine/bin/python")
    assert shutil.which("nvcc", path=env["PATH"]) == f"{tmp_path}/engine/cuda/bin/nvcc"


@pytest.mark.parametrize("environ", [{}, {"PATH": ""}, {"PATH": "/usr/bin"}])
def test_the_folder_we_stand_in_is_never_searched(environ: dict[str, str]) -> None:
    for python in ("python3", "/engine/bin/python"):
        places = inherited_environ(environ, python)["PATH"].split(os.pathsep)
        assert "" not in places
        assert len(places) >= 1
