"""The page over a real daemon shows what `caovanctl status --json` shows, as soon as it does."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from caovand.cli.common.client import DaemonClient
from caovand.cli.common.errors import CommandError
from caovand.core.reporting.wire import WireError
from tests.daemon_process import Daemon, daemon
from tests.page.browser.window import LOSS, Window, window
from tests.ports import free_port
from tests.scenarios.test_supervision import configuration

pytestmark = pytest.mark.long
SLOW = {"boot_s": 0.5, "pace_s": 0.05}  # so that each phase is to be seen
LATE_S = 2.0
LOOK_S = 0.05
# Each change of what the page shows, with its time.
WATCH = """
  window.trace = [];
  const now = document.getElementById("now");
  window.lit = [];
  const look = () => {
    window.trace.push([Date.now() / 1000, now.dataset.state, now.dataset.phase]);
    window.lit.push(now.querySelector(".steps .current")?.firstChild.textContent);
  };
  new MutationObserver(look).observe(now, {attributeFilter: ["data-state", "data-phase"]});
  look();
"""
Seen = tuple[float, str, str]


class Witness:
    """Asks for the status all the time: each change of state and phase, with its time."""

    def __init__(self, folder: Path) -> None:
        self.trace: list[Seen] = []
        self._folder, self._ends = folder, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(LOOK_S):
            try:
                with DaemonClient(self._folder) as client:
                    status = client.ask("status", answer_s=5.0)
            except (CommandError, WireError):
                continue  # it is being started again
            found = (status["state"], status["phase"])
            if not self.trace or self.trace[-1][1:] != found:
                self.trace.append((time.time(), *found))


@contextmanager
def served(model: Path, orders: dict[str, Any], name: str = "m") -> Iterator[tuple[Daemon, str]]:
    """A daemon with a page, and the page's address."""
    listen = f"127.0.0.1:{free_port()}"
    config = configuration(model, orders, page=f'listen = "{listen}"')
    named = config.replace("[model]", f'[model]\nserved_name = "{name}"', 1)
    with daemon(named) as one:
        yield one, f"http://{listen}/"


def at(trace: list[Seen], moment: float) -> tuple[str, str] | None:
    """State and phase at a moment."""
    before = [one for one in trace if one[0] <= moment]
    return before[-1][1:] if before else None


def in_between(trace: list[Seen], begin: float, end: float) -> set[tuple[str, str] | None]:
    """All that was shown in a time."""
    return {at(trace, begin)} | {one[1:] for one in trace if begin < one[0] <= end}


def disagreements(page: list[Seen], daemons: list[Seen]) -> list[str]:
    """Where the page, each second, shows what the daemon did not show since one update before."""
    found = []
    moment, last = page[0][0] + LATE_S, max(page[-1][0], daemons[-1][0])
    while moment < last:
        shown, true = at(page, moment), in_between(daemons, moment - LATE_S, moment + LOOK_S * 4)
        if shown not in true:
            found.append(f"at {moment:.1f} the page shows {shown}, the daemon {true}")
        moment += 1.0
    return found


def test_page_and_status_agree_each_second_of_a_life(browser: Any, model: Path) -> None:
    with served(model, SLOW) as (one, url):
        witness = Witness(one.folder / "run")
        try:
            with window(browser, url) as shown:
                shown.shows("#now[data-state]")
                shown.run(WATCH)
                shown.is_in("SERVING")
                shown.shows(".tile[data-tile=requests] b", "0")
                killed(one, shown)
                assert one.ctl("mode", "fast").returncode == 0
                shown.is_in("SERVING")
                assert one.ctl("stop").returncode == 0
                shown.is_in("STOPPED")
                assert one.ctl("start").returncode == 0
                shown.is_in("SERVING")
                shown.page.wait_for_timeout(LATE_S * 1000)
                trace = [tuple(entry) for entry in shown.run("trace")]
                lit = set(shown.run("lit"))
        finally:
            witness.end()
    assert disagreements(trace, witness.trace) == []
    states = {state for _, state, _ in trace}
    assert {"STARTING", "SERVING", "STOPPED"} <= states
    assert len({phase for _, _, phase in trace}) > 4, "phases of the starts were seen"
    assert {"Load", "Prepare"} <= lit, "and lit their steps"


def killed(one: Daemon, shown: Window) -> None:
    """An engine is killed: its failure, the next start and the incident appear."""
    os.kill(one.status()["engine_pid"], signal.SIGKILL)
    shown.shows("#event-list li[data-kind=failure]", "SERVING -> RECYCLING")
    shown.shows("#event-list li[data-kind=incident]", "incident 0001-engine-died")
    one.until_state("SERVING")
    shown.is_in("SERVING")
    shown.shows("#now .notice.past", "engine-died")
    shown.shows("#now .facts", "restarts 1")
    shown.shows("#incident-list .incident", "1 · engine-died").click()
    shown.shows("#report[open] pre", "incident 1")
    shown.page.keyboard.press("Escape")


def test_it_outlives_the_daemon_and_repeats_nothing(browser: Any, model: Path) -> None:
    with served(model, {}) as (one, url), window(browser, url, may_say=LOSS) as shown:
        shown.is_in("SERVING")
        shown.shows("#log-lines div", "Application startup complete")
        one.stop()
        shown.shows("#banner", "does not answer")
        shown.shows('body[data-lost="yes"] #now[data-state]')
        one.start()
        shown.page.locator("#banner").wait_for(state="hidden", timeout=120_000)
        shown.is_in("SERVING")
        shown.shows("#event-list li", "STARTING -> SERVING")
        seen = shown.run("[...document.querySelectorAll('#event-list li')].map(e => e.innerText)")
        assert len(seen) == len(set(seen))
        lines = shown.run(
            "[...document.querySelectorAll('#log-lines div')].map(e => e.innerText)"
            ".filter(text => text.includes('startup complete')).length"
        )
        assert lines == 2, "one of each daemon's engine"


def test_the_log_waits_for_whoever_reads_it(browser: Any, model: Path) -> None:
    orders = {"print": [f"INFO line {number}" for number in range(150)]}
    with served(model, orders) as (one, url):
        one.until_state("SERVING")  # asked for a plan before there is one, a browser logs an error
        with window(browser, url) as shown:
            shown.is_in("SERVING")
            shown.shows("#log-lines div", "INFO line 149")
            shown.run("document.getElementById('log-lines').scrollTop = 0")
            shown.shows("#log-end")
            assert one.ctl("restart").returncode == 0
            shown.shows("#log-end", "new lines")
            assert shown.run("document.getElementById('log-lines').scrollTop") == 0
            shown.page.click("#log-end")
            shown.page.locator("#log-end").wait_for(state="hidden")
