"""What is taken from living processes, and that it never takes long."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from caovand.adapters import evidence, processes


def me() -> processes.Process:
    found = processes.read(os.getpid())
    assert found is not None
    return found


def test_each_process_tells_its_state_and_a_dead_one_that_it_is_gone() -> None:
    dead = processes.Process(2**22 + 1, 1, 1, 1, 0, "ghost")
    first, second = evidence.process_tree([me(), dead])
    assert first["pid"] == os.getpid()
    assert "VmRSS" in first
    assert second["State"] == "gone"


def test_without_py_spy_the_kernel_tells_where_each_thread_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    text = evidence.stacks([me()], "/nonexistent/python", 5.0)
    assert f"(pid {os.getpid()})" in text
    assert "waits in" in text


def script(folder: Path, text: str) -> str:
    (folder / "py-spy").write_text(text)
    (folder / "py-spy").chmod(0o755)
    return str(folder / "python")


def test_a_py_spy_beside_the_engines_python_is_asked(tmp_path: Path) -> None:
    python = script(tmp_path, '#!/bin/sh\necho "seen $1 $4"\n')
    assert f"seen dump {os.getpid()}" in evidence.stacks([me()], python, 30.0)


def test_a_py_spy_that_hangs_costs_no_more_than_the_limit(tmp_path: Path) -> None:
    python = script(tmp_path, f"#!{sys.executable}\nimport signal\nsignal.pause()\n")
    begun = time.monotonic()
    text = evidence.stacks([me(), me()], python, 0.3)
    assert time.monotonic() - begun < 10
    assert "(no time left)" in text
