"""The kernel's own limits, lowered under a daemon that serves, and raised again."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon_process import Daemon, daemon
from tests.patience import until
from tests.scenarios.test_supervision import configuration, model

__all__ = ["model"]  # a fixture

NOBODY = 65534


def limit(one: Daemon, kind: str, soft: str) -> str:
    """Lower a soft limit of the daemon alone, as its user; what it was."""
    assert one.process is not None
    tool = [*one.wrapper, "prlimit", f"--pid={one.process.pid}"]
    before = subprocess.check_output([*tool, f"--{kind}", "-o", "SOFT", "--noheadings"], text=True)
    subprocess.run([*tool, f"--{kind}={soft}:"], check=True)
    return before.strip()


def said(one: Daemon, text: str) -> int:
    """How often the daemon's log says it; nothing is asked, which needs descriptors."""
    return (one.folder / "log.txt").read_text().count(text)


def endures(one: Daemon, kind: str, soft: str) -> None:
    """Serve under a limit, and as if nothing had been when it is raised."""
    pid = one.until_state("SERVING")["engine_pid"]
    before = limit(one, kind, soft)
    until(lambda: said(one, "; retrying"), "the limit is said")
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 12, "two more looks")
    limit(one, kind, before)
    until(lambda: said(one, "threads and memory suffice again"), "its end is said")
    status = one.until_state("SERVING")
    assert (status["engine_pid"], status["restarts"], status["failures"]) == (pid, 0, 0)
    assert (said(one, "; retrying"), said(one, "threads and memory suffice again")) == (1, 1)
    assert one.ctl("stop").returncode == 0
    assert one.tree() == []


@pytest.mark.long
def test_without_a_descriptor_to_open_the_engine_serves_on(model: Path) -> None:
    with daemon(configuration(model)) as one:
        one.until_state("SERVING")
        endures(one, "nofile", "3")


def test_an_engine_that_ends_meanwhile_is_started_once_it_can_be(model: Path) -> None:
    with daemon(configuration(model, watch="failures = 2")) as one:
        pid = one.until_state("SERVING")["engine_pid"]
        before = limit(one, "nofile", "3")
        os.kill(pid, 9)
        until(lambda: said(one, "LimitNOFILE"), "the limit is said")
        began = time.monotonic()
        until(lambda: time.monotonic() > began + 5, "more looks")
        limit(one, "nofile", before)
        until(lambda: one.status()["engine_pid"] not in (None, pid), "a new engine")
        one.until_state("SERVING")


@pytest.fixture
def nobodys() -> Iterator[Path]:
    """A folder that uid 65534 may use."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root, to run a daemon as another user")
    folder = Path(tempfile.mkdtemp(prefix="caovan-"))
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long
def test_without_a_thread_to_start_the_engine_serves_on(model: Path, nobodys: Path) -> None:
    """The limit counts a user's threads and processes, and does not hold for root."""
    # The checkout and Python may be root's alone; that right has no say in how many threads.
    may_read = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    user = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    become = ("setpriv", *user, *may_read, "--")
    one = Daemon(nobodys, configuration(model))
    tried = subprocess.run(
        [*become, *one.caovand, "--version"], env=one.environ, capture_output=True, check=False
    )
    if tried.returncode:
        pytest.skip("needs CAP_DAC_OVERRIDE to run this checkout as another user")
    one.wrapper = become
    try:
        one.start()
        endures(one, "nproc", "1")
    finally:
        one.stop()
