"""The daemon's loop requests short time slices, while its child processes have the usual ones."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys

import pytest

from caovand.adapters.system.short_slice import _ATTR, SLICE_NS
from tests.daemon_process import ROOT

GETATTR = {"x86_64": 315, "aarch64": 275}
RUNTIME = 5
RELEASE = tuple(map(int, platform.release().split("-")[0].split(".")[:2]))

pytestmark = pytest.mark.skipif(
    RELEASE < (6, 12) or platform.machine() not in GETATTR, reason="this kernel has one length"
)


def runtime() -> int:
    """The length of this thread's slices in nanoseconds."""
    attr = ctypes.create_string_buffer(_ATTR.size)
    ctypes.CDLL(None).syscall(GETATTR[platform.machine()], 0, attr, _ATTR.size, 0)
    return int(_ATTR.unpack(attr.raw)[RUNTIME])


def run(before: str = "") -> dict[str, int]:
    """What a process of its own finds: the usual length, its own, that of a child and a thread."""
    program = f"""
import json, os, subprocess, sys, threading
from caovand.adapters.system import short_slice
from tests.adapters.test_short_slice import runtime
found = {{}}
{before}
found["usual"] = runtime()
found["taken"] = short_slice.shorten()
found["own"], found["nice"] = runtime(), os.getpriority(os.PRIO_PROCESS, 0)
words = [sys.executable, "-c",
         "from tests.adapters.test_short_slice import runtime; print(runtime())"]
found["child"] = int(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
thread = threading.Thread(target=lambda: found.update(thread=runtime()))
thread.start()
thread.join()
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(done.stdout))


def test_slices_are_short_for_the_loop_alone() -> None:
    found = run()
    assert found["taken"]
    assert found["own"] == SLICE_NS
    assert found["child"] == found["thread"] == found["usual"] != SLICE_NS


def test_an_operator_s_priority_stays() -> None:
    found = run("os.nice(3)")
    assert found["taken"]
    assert found["nice"] == min(3 + os.getpriority(os.PRIO_PROCESS, 0), 19)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a higher priority")
def test_who_has_a_higher_priority_needs_no_shorter_slices() -> None:
    found = run("os.nice(-30)")
    assert not found["taken"]
    assert found["own"] == found["usual"]
