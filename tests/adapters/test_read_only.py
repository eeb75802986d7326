"""A process that reads untrusted text cannot open its user's files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from caovand.adapters.confinement import launch
from caovand.engines.writer import explain_log
from tests.daemon_process import ROOT


@pytest.mark.skipif(launch.landlock_abi() < launch.MIN_ABI, reason="no Landlock")
def test_a_process_that_explains_a_log_opens_nothing_else(tmp_path: Path) -> None:
    log, secret = tmp_path / "log", tmp_path / "secret"
    log.write_text("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off\n")
    secret.touch()
    samples = sorted((ROOT / "tests/samples").glob("*.log"))[::20]
    script = (
        "import json, sys\n"
        "from caovand.cli.main import main\n"
        "from caovand.engines.writer import explain_log\n"
        "log, secret, *samples = sys.argv[1:]\n"
        "texts = [open(sample).read() for sample in samples]\n"
        "sys.argv[1:] = ['explain', log]\n"
        "assert main() == 0\n"
        "for mode in 'rw':\n"
        "    try: print('opened', open(secret, mode))\n"
        "    except PermissionError: pass\n"
        "print([str(explain_log(text)) for text in texts])\n"
    )
    words = [sys.executable, "-c", script, str(log), str(secret), *map(str, samples)]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True, cwd="/")
    *page, explained = done.stdout.splitlines()
    assert page[:2] == ["Kernel and driver", "gpu-lost"]
    assert [line for line in page if line.startswith("opened")] == []
    assert explained == str([str(explain_log(sample.read_text())) for sample in samples])
