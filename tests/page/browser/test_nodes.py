"""The machines of a cluster on the page: present ones, missing ones, and remedies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cluster.test_nodes_and_check import FACTS, check, cluster, node, rank
from tests.cli.fake_daemon import status
from tests.page.browser.window import PHONE, window
from tests.page.client import Browser, FakeDaemon, browser
from tests.patience import LIMIT_S

pytestmark = pytest.mark.long
MARKUP = "<img src=x onerror=alert(1)>"
FULL = cluster(
    nodes=[
        node("gpu1", "here", ranks=[rank("TP0", 4710), rank("TP1", 4711)]),
        node("gpu2", "joined", ranks=[rank("TP2", 815)], gpus=[1]),
        node("gpu3", "lost", since_s=30.0),
        node("gpu2", "refused", address="10.0.0.9"),
    ],
    missing=2,
    checks=[
        check("gpu2", "PASS", "gpu2 agrees with gpu1"),
        check("gpu2", "FAIL", "torch differs", "on gpu2: sudo caovanctl engine install"),
        check("gpu2", "WARN", "MTU differs", "on gpu1: ip link set eth0 mtu 9000"),
    ],
)


class Served:
    """A page over a table of answers, in a thread: the browser's calls block this one."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ready = folder, threading.Event()
        self.page: Browser | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(LIMIT_S)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with browser(self._folder) as self.page:
            self._ready.set()
            await self._end.wait()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


@contextmanager
def served(folder: Path, answer: dict[str, Any] | None) -> Iterator[tuple[FakeDaemon, str]]:
    """A page of a head that knows this of its cluster."""
    one = Served(folder)
    try:
        assert one.page is not None
        daemon = one.page.daemon
        daemon.status = {**status(cluster=answer and {"role": "head"}), "slots": [{"name": "main"}]}
        daemon.incidents = []
        daemon.cluster = answer or {"role": "off"}
        yield daemon, f"{one.page.url}/"
    finally:
        one.end()


def test_each_node_is_shown_with_its_state_ranks_and_findings(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path, FULL) as (daemon, url), window(browser, url) as shown:
        shown.shows('.node[data-node="gpu1"]', "This machine · for 5 min")
        row = shown.shows('.node[data-node="gpu2"]', "Joined · for 5 min").inner_text()
        for text in ("10.0.0.2", "vllm 0.32.0", "2 × Tesla T4 (15 GiB)", "TP2 (pid 815, GPU 1)"):
            assert text in row
        shown.shows('.node[data-state="lost"]', "Check that its machine and caovan are up.")
        shown.shows('.node[data-state="refused"]', "Refused · for 5 min")
        shown.shows('.node[data-state="missing"]', "1 not joined")
        shown.shows('.node[data-state="missing"]', "the head at 10.0.0.1:7070")
        shown.shows("#nodes .notice.failed", "torch differs")
        shown.shows("#nodes .notice.failed", "Action: on gpu2: sudo caovanctl engine install")
        shown.shows("#nodes .notice.warning", "MTU differs")
        shown.shows("#nodes .agreed", "gpu2 agrees with gpu1")
        shown.shows('nav a[href="#nodes"]', "Nodes")
        assert shown.violations() == []
        # One that comes back is shown without a reload.
        daemon.cluster = cluster()
        daemon.status["cluster"] = {"role": "head", "missing": 0}
        shown.page.locator('.node[data-state="lost"]').wait_for(state="detached")
        assert shown.run("document.querySelectorAll('.node').length") == 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_telephone_in_chinese(browser: Any, tmp_path: Path, theme: str) -> None:
    with (
        served(tmp_path, FULL) as (_, url),
        window(browser, url, PHONE, theme, language="zh-CN") as shown,
    ):
        shown.shows('.node[data-node="gpu2"]', "已加入")
        shown.shows('.node[data-state="missing"]', "1 个节点未加入")
        assert shown.run("document.documentElement.scrollWidth") == PHONE[0]
        assert shown.violations() == []


def test_a_node_s_memory_stands_next_to_its_forecast(browser: Any, tmp_path: Path) -> None:
    expected = {"kv_tokens": 9, "stage_0_kv_gib": 70.1, "stage_1_weights_gib": 4.325}
    found = {"stage_1_weights_gib": 4.5, "stage_1_kv_gib": 1.0}
    whole = {"weights_gib": 16.0, "kv_gib": 70.67}
    nodes = [node("gpu1", "here"), node("gpu2", "joined", reported=found)]
    answer = cluster(forecast=expected, nodes=nodes)
    with served(tmp_path, answer) as (daemon, url), window(browser, url) as shown:
        text = "stage 1's weights 4.50 GiB (forecast 4.33)"
        row = shown.shows('.node[data-node="gpu2"]', text).inner_text()
        assert row.endswith(f"Memory\n{text}"), "what was not forecast has nothing to stand next to"
        assert "Memory" not in shown.shows('.node[data-node="gpu1"]').inner_text()
        daemon.cluster = cluster(
            forecast={"weights_gib": 15.1}, nodes=[node("gpu1", "here", reported=whole)]
        )
        shown.shows('.node[data-node="gpu1"]', "weights 16.00 GiB (forecast 15.10)")


def test_a_machine_that_serves_alone_has_no_such_section(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path, None) as (_, url), window(browser, url) as shown:
        shown.is_in("SERVING")
        assert not shown.page.locator("#nodes").is_visible()
        assert not shown.page.locator('nav a[href="#nodes"]').is_visible()


def test_a_node_that_is_named_like_markup_is_text(browser: Any, tmp_path: Path) -> None:
    facts = {**FACTS, "engine": MARKUP, "cards": [{"name": MARKUP, "memory_mib": 1024, "count": 1}]}
    answer = cluster(
        nodes=[node(MARKUP, "joined", facts=facts, address=MARKUP, ranks=[rank(MARKUP, 1)])],
        checks=[check(MARKUP, "FAIL", MARKUP, MARKUP), check(MARKUP, "PASS", MARKUP)],
    )
    with served(tmp_path, answer) as (_, url), window(browser, url) as shown:
        shown.shows("#nodes .notice.failed", MARKUP)
        shown.shows(".node", MARKUP)
        assert shown.run("document.querySelectorAll('main img, [onerror]').length") == 0
