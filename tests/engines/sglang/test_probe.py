"""What the probe makes of SGLang's answers, and what is said where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from caovand.adapters.engine.probe import EngineMissing, probe_engine
from caovand.engines.sglang.probe import DETAILS, PROBE, VERSIONS
from tests.daemon_process import ROOT

STANDIN = ROOT / "tests/standin/sglang.py"


def test_an_environment_with_sglang_is_read(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {STANDIN} "$@"\n')
    python.chmod(0o755)
    found = probe_engine(PROBE, str(python), tmp_path / "cache")
    assert (found.version, found.build, found.cuda) == ("0.5.23", "cuda", "13.0")
    assert {"--mem-fraction-static", "--watchdog-timeout"} <= found.flags
    assert "--enable-metrics" in found.switches - {"--port"}
    assert dict(found.choices)["--kv-cache-dtype"][0] == "auto"
    assert dict(found.kernels) == {"sm_75": (), "sm_80": ()}


def test_a_python_without_it_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="SGLang is not installed there") as missing:
        probe_engine(PROBE, sys.executable, tmp_path)
    assert "caovanctl engine install --kind sglang" in str(missing.value)


def test_the_toolkit_of_an_installed_environment_is_found(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    (tmp_path / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")

    def home() -> object:
        words = [str(python), "-I", "-c", f"MARK = ''\n{VERSIONS}"]
        done = subprocess.run(words, capture_output=True, check=True, text=True)
        return json.loads(done.stdout)["cuda_home"]

    assert home() is None
    compiler = tmp_path / "cuda/bin/nvcc"
    compiler.parent.mkdir(parents=True)
    compiler.touch(0o755)
    assert home() == str(tmp_path / "cuda")


def test_kernels_are_found_in_the_library_of_common_operators(tmp_path: Path) -> None:
    library = tmp_path / "sgl_kernel/sm90/common_ops.abi3.so"
    library.parent.mkdir(parents=True)
    (tmp_path / "sgl_kernel/__init__.py").touch()
    library.write_bytes(b"\0-arch sm_80\0-arch sm_90a\0sm_100f\0")
    arguments = tmp_path / "sglang/srt/server_args.py"
    arguments.parent.mkdir(parents=True)
    arguments.write_text(
        "class ServerArgs:\n    @staticmethod\n    def add_cli_args(parser):\n"
        "        parser.add_argument('--dtype', choices=['half', 'auto'])\n"
        "        parser.add_argument('--enable-metrics', action='store_true')\n"
    )
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); MARK = ''\n"

    def asked(text: str) -> str:
        command = [sys.executable, "-I", "-c", script + text]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    assert '"sglang": null' in asked(VERSIONS)
    details = asked(DETAILS)
    assert '"cards": ["sm_100f", "sm_80", "sm_90a"]' in details
    assert '"--dtype": ["auto", "half"]' in details
    assert '"switches": ["--enable-metrics", "--help", "-h"]' in details
