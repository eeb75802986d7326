"""Two cards of one machine: a hybrid split over both, on caovan's kernels, that loses a process."""

from __future__ import annotations

import json
import os
import signal

import pytest

from caovand.lab.core.fieldtest.trials import FORCE
from tests.cards.conftest import OUR_KERNELS, configuration, running, serves, shown
from tests.patience import until
from tests.ports import free_port


def test_a_model_split_over_two_cards_is_measured_killed_healed_and_stopped(cards: int) -> None:
    if cards < 2:
        pytest.skip("needs two cards")
    split = ["--tensor-parallel-size", "2", *OUR_KERNELS]
    config = configuration("hybrid", free_port(), [0, 1], split, env={FORCE: "1"})
    with running(config) as one:
        first = serves(one)
        assert not [text for text in first["warnings"] if "kernels" in text]
        print(json.dumps(first["forecast"]), flush=True)
        shown(one, "plan")
        shown(one, "bench", "--prompts", "512,4096", "--at-once", "1,8", "--rounds", "2",
              "--tokens", "64")  # fmt: skip
        shown(one, "status")
        rank = next(process for process in one.tree() if "Worker" in process.name)
        os.kill(rank.pid, signal.SIGKILL)
        until(lambda: one.status()["restarts"] > first["restarts"], "a restart")
        again = serves(one)
        assert again["last_failure"]["failure"] != "unknown"
        shown(one, "incidents")
        assert one.ctl("stop").returncode == 0
        until(lambda: not one.tree(), "an engine that has ended")
