"""One card: drafts that kill each engine at its proof; a neighbour that is there before a start.

Each test has a daemon of its own; with what test_faults.py compiled no start is cold.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from caovand.adapters.system import processes
from tests.cards.conftest import CARD, engine_plugin, running, serves, shown
from tests.cards.neighbour import card_mib, neighbour
from tests.cards.server import configured
from tests.patience import until
from tests.ports import free_port

SPARE_MIB, LITTLE_MIB, SOME_MIB = 256, 1_000, 24_000
ENDED_S = 30.0
WATCH = "stable_after_s = 2\n"
POISON = "drafts: "
"""As injected.py has it, which imports torch."""


@pytest.mark.parametrize("fault", ["illegal_access", "exception"])
def test_drafts_that_kill_every_engine_are_turned_off(
    fault: str, cards: int, tmp_path: Path
) -> None:
    plugin, unused = engine_plugin(tmp_path, "injected", "stray"), card_mib()
    (plugin / "fault").write_text(f"{POISON}{fault}")
    began = time.monotonic()
    with running(configured(free_port(), more=WATCH, PYTHONPATH=str(plugin))) as one:
        status = serves(one)
        took = time.monotonic() - began
        shown(one, "incidents")
        old = {process.pid for process in one.tree()}
        last = status["last_failure"]
        print(
            f"| drafts: {fault} | {status['restarts']} restarts | serving {took:.0f} s"
            f" | {status['rungs']} | {last['failure']}: {last['text'][:100]} |",
            flush=True,
        )
        assert (status["mtp"], status["restarts"]) == (0, 2)
        assert [rung for rung in status["rungs"] if "mtp" in rung or "draft" in rung.lower()]
        assert one.ctl("stop").returncode == 0
        until(lambda: not one.tree(), "an engine that has ended")
    assert not old & {process.pid for process in processes.all_processes() if not process.zombie}
    until(lambda: card_mib() <= unused + SPARE_MIB, "an unused card", ENDED_S)


def test_a_card_that_a_neighbour_has_is_waited_for(cards: int) -> None:
    with neighbour(LITTLE_MIB) as other:
        print(f"in use: {card_mib()} MiB of GPU {CARD}, by {other.pid}", flush=True)
        config = configured(free_port(), more=WATCH)
        with running(config) as one:
            until(lambda: one.status()["state"] == "HOLD", "a start that waits")
            print(one.status()["reason"], flush=True)
            assert not one.commands()
            other.kill()
            other.wait()
            began = time.monotonic()
            until(lambda: one.status()["state"] != "HOLD", "a start")
            noticed = time.monotonic() - began
            status = serves(one)
            print(
                f"| neighbour before the start | noticed {noticed:.1f} s"
                f" | serving {time.monotonic() - began:.1f} s | {status['rungs']} |",
                flush=True,
            )
            assert (status["restarts"], status["rungs"]) == (0, [])


def test_a_start_next_to_a_neighbour_takes_what_is_left_and_a_restart_the_rest(cards: int) -> None:
    with neighbour(SOME_MIB) as other, running(configured(free_port(), more=WATCH)) as one:
        small = serves(one)
        shown(one, "status")
        other.kill()
        other.wait()
        before = one.status()["generation"]
        assert one.ctl("restart").returncode == 0
        until(lambda: one.status()["generation"] > before, "another engine")
        whole = serves(one)
        for status in (small, whole):
            print({name: status[name] for name in ("forecast", "rungs")}, flush=True)
        assert whole["reported"]["kv_tokens"] > 2 * small["reported"]["kv_tokens"]
        assert not whole["failures"]
