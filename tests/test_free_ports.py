"""Ports of tests: no two tests get the same one, and the kernel gives it to nobody else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import ports
from tests.daemon_process import ROOT

OTHER = "import sys; from tests.ports import free_port; print(free_port(), flush=True); input()"


def test_a_port_of_another_process_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as other:  # fmt: skip
        assert other.stdin is not None
        assert other.stdout is not None
        port = int(other.stdout.readline())
        assert port < ports.first_of_the_kernel()
        monkeypatch.setattr(ports, "FIRST", port)
        monkeypatch.setattr(ports, "first_of_the_kernel", lambda: port + 1)
        monkeypatch.setattr(ports, "MAX_TRIES", 1)
        with pytest.raises(OSError, match="none of 1 ports"):
            ports.free_port()
        other.stdin.close()
