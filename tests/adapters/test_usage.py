"""Resource usage of processes: of this one and of a child."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.adapters.system import usage

CHILD = """
import os, sys
kept = b"x" * (64 << 20)
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(50)]
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_child_adds_its_memory_and_its_files() -> None:
    before = usage.total_usage(usage.living_tree(os.getpid()))
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    pids = usage.living_tree(os.getpid())
    assert {os.getpid(), child.pid} <= pids
    after, alone = usage.total_usage(pids), usage.total_usage([os.getpid()])
    child.communicate()
    assert None not in (
        before.memory_mib,
        before.files,
        after.memory_mib,
        after.files,
        alone.memory_mib,
    )
    assert after.memory_mib >= alone.memory_mib + 64  # type: ignore[operator]
    assert after.files >= before.files + 50  # type: ignore[operator]
    assert child.pid not in usage.living_tree(os.getpid()), "it ended"


def test_what_is_gone_uses_nothing_that_is_known() -> None:
    assert usage.total_usage(usage.living_tree(1 << 22)) == usage.Usage(None, None)


def test_the_work_of_a_process_grows_and_another_of_its_pid_is_none_of_it() -> None:
    first = usage.process_usage(os.getpid())
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    second = usage.process_usage(os.getpid())
    assert first is not None
    assert second is not None
    assert second.cpu_s - first.cpu_s >= 0.05
    cores = (second.cpu_s - first.cpu_s) / (second.at - first.at)
    assert second.cores_since(first) == pytest.approx(cores)
    assert second.cores_since(None) is None
    assert second.cores_since(second) is None
    assert second.cores_since(replace(first, began=first.began - 1)) is None
    assert 0 < second.began < second.at
    assert second.resident_mib == pytest.approx(
        int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20,
        abs=16,
    )
    assert usage.process_usage(1 << 22) is None


def test_shared_memory_is_counted() -> None:
    assert (usage.shared_memory_mib() or 0.0) >= 0
