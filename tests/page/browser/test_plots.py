"""The plots: the contents of each time span, for the engine and the cards."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser.test_nodes import served
from tests.page.browser.window import PHONE, window

pytestmark = pytest.mark.long
AGES = [20.0, 15.0, 10.0, 5.0, 0.0]
RECENT = {
    "age_s": AGES,
    "generation_tokens_per_s": [1.0, 2.0, 3.0, 4.0, 5.0],
    "first_token_p50_s": [None, None, 0.12, None, None],
    "first_token_p99_s": [None, None, 0.99, None, None],
    "token_p50_s": [0.02] * 5,
    "token_p99_s": [0.04] * 5,
    "tokens_per_step": [2.5] * 5,
    "card_age_s": [12.0, 7.0, 2.0],
    "cards": {
        str(n): {"power_w": [200.0 + n] * 3, "utilization": [80 + n] * 3, "temperature": [70] * 3}
        for n in range(8)
    },
}
# How many pixels of a plot have the colour of its first line.
OF_LINE = """
  const probe = document.createElement("i");
  probe.style.color = "var(--line-1)";
  document.body.append(probe);
  const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  probe.remove();
  const canvas = document.querySelector(`.chart[data-chart=${name}] canvas`);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let at = 0; at < data.length; at += 4) {
    count += data[at] === r && data[at + 1] === g && data[at + 2] === b && data[at + 3] === 255;
  }
  return count;
"""


def test_five_minutes_have_all_that_a_day_has(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path, None) as (daemon, url):
        daemon.recent = RECENT
        with window(browser, url) as shown:
            shown.shows(".chart[data-chart=pace]", "20.0")
            shown.shows(".chart[data-chart=per-step]", "2.5")
            for name, value in (("power", "207"), ("temperature", "70.0"), ("load", "87.0")):
                chart = shown.shows(f".chart[data-chart={name}]", value)
                assert chart.locator(".lines li").count() == 8
            # One reading alone makes no line, and is to be seen all the same.
            shown.shows(".chart[data-chart=latency]")
            assert shown.run(f"(name => {{{OF_LINE}}})('latency')") > 0
            assert shown.violations() == []


def test_an_engine_that_is_gone_has_no_latest_reading(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path, None) as (daemon, url):
        daemon.recent = {"age_s": [60.0, 55.0, 50.0], "running": [3.0, 4.0, 5.0]}
        with window(browser, url) as shown:
            chart = shown.shows(".chart[data-chart=under-way]", "–")
            assert "5.0" not in chart.locator(".lines").inner_text()


def test_plots_of_many_cards_fit_a_telephone(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path, None) as (daemon, url):
        daemon.recent = RECENT
        with window(browser, url, PHONE) as shown:
            shown.shows(".chart[data-chart=power]", "207")
            assert shown.run("document.documentElement.scrollWidth") == PHONE[0]


def test_a_rung_is_marked_as_soon_as_it_is_taken(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path, None) as (daemon, url), window(browser, url) as shown:
        shown.shows(".chart[data-chart=speed]")
        assert not shown.page.locator("#marks .mark").count()
        text = "degraded plan: context 1024"
        daemon.events.append(
            {"v": 1, "seq": 4, "at": time.time(), "kind": "rung", "text": text, "data": {}}
        )
        shown.shows("#marks .mark[data-kind=rung]", text)


def test_marks_that_are_not_listed_are_counted(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path, None) as (daemon, url), window(browser, url) as shown:
        at = time.time() - 60
        marks = [{"at": at + n, "kind": "restart", "text": f"restart {n}"} for n in range(10)]
        daemon.history |= {"marks": marks, "marks_left_out": 1200}
        shown.shows(".chart[data-chart=speed]")
        shown.page.click("#spans button >> nth=2")
        shown.shows("#marks", "1202 earlier")
        assert shown.page.locator("#marks [data-kind=restart]").count() == 8
        assert shown.violations() == []


def test_a_history_that_cannot_be_kept_says_so_above_what_there_is(
    browser: Any, tmp_path: Path
) -> None:
    problem = "cannot write history.db: No space left on device; free space on that disk"
    with served(tmp_path, None) as (daemon, url), window(browser, url) as shown:
        daemon.history["problem"] = problem
        shown.shows(".chart[data-chart=speed]")
        shown.page.click("#spans button >> nth=2")
        shown.shows("#plots .notice.warning", problem)
        shown.shows(".chart[data-chart=serving]")
        assert shown.violations() == []
        shown.page.click("#spans button >> nth=0")
        shown.page.locator("#plots .notice").wait_for(state="detached")
