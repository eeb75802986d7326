"""`caovanctl top` next to a real daemon: an engine killed and healed, and the daemon restarted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.daemon_process import Daemon, daemon
from tests.faults.test_standin_faults import cards
from tests.scenarios.test_supervision import configuration, model
from tests.terminal import Terminal

__all__ = ["model"]  # a fixture


@pytest.mark.long
def test_it_follows_an_engine_and_a_daemon_through_their_ends(model: Path, tmp_path: Path) -> None:
    environ = cards(tmp_path, of="VLLM::EngineCor")
    config = configuration(model, watch="gpu_sample_s = 1")
    with daemon(config, environ) as one:
        terminal = Terminal(
            [*one.caovanctl, "top"], {**one.environ, "TERM": "xterm"}, one.folder, size=(100, 40)
        )
        before = terminal.modes
        try:
            watch(one, terminal)
            terminal.press(b"q")
            assert terminal.until_ended() == 0
            assert terminal.modes == before
        finally:
            if terminal.process.poll() is None:
                terminal.process.kill()
            terminal.close()


def watch(one: Daemon, terminal: Terminal) -> None:
    """What the screen shows while things end and come back."""
    terminal.until_it_shows("SERVING for", "hybrid on http", "restarts 0", "0 running, 0 waiting")
    core = next(process.pid for process in one.tree() if process.name == "VLLM::EngineCor")
    terminal.until_it_shows("GPU 0", "GPU 1", "time  command", f" {core} ")
    os.kill(one.status()["engine_pid"], signal.SIGKILL)
    terminal.until_it_shows("failure  SERVING -> RECYCLING")
    terminal.until_it_shows("SERVING for", "restarts 1", "STARTING -> SERVING", "max ")
    one.stop()
    terminal.until_it_shows("NO ANSWER for", "from caovand, which was SERVING")
    one.start()
    terminal.until_it_shows("caovand was restarted", "SERVING for", "restarts 0")
