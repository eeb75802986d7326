"""The gateway's requests on the page: how many ended how, and the latest."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser.test_nodes import served
from tests.page.browser.window import PHONE, window

pytestmark = pytest.mark.long
MARKUP = "<img src=x onerror=alert(1)>"
TOTALS = {"ended": {"200": 1204, "429": 3, "0": 1}, "waited_s": 1.0, "resent": 0}
GATEWAY = {"serving": True, "waiting": 2, "at_engine": 5, "totals": TOTALS}


def request(**changes: Any) -> dict[str, Any]:
    """A request that has ended, as the daemon keeps it."""
    return {
        "at": time.time(), "key": "alice", "path": "/v1/chat/completions", "model": "tiny",
        "status": 200, "outcome": "", "waited_s": 0.0123, "first_s": 0.8, "whole_s": 4.123,
        "read": 21_204, "written": 96, "estimated": False, "prefix": "", **changes,
    }  # fmt: skip


def test_the_latest_requests_are_shown_and_how_many_ended_how(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path, None) as (daemon, url), window(browser, url) as shown:
        shown.is_in("SERVING")
        assert not shown.page.locator("#requests").is_visible(), "there is no gateway"
        assert not shown.page.locator('nav a[href="#requests"]').is_visible()
        daemon.status["gateway"] = GATEWAY
        shown.shows("#requests", "No request has ended yet.")
        counts = shown.shows("#request-counts").inner_text()
        assert counts == "2 waiting · 5 running · client disconnected: 1 · 200: 1,204 · 429: 3"
        shown.shows('nav a[href="#requests"]', "Requests")
        prefix = "message 3 changed: about 21,000 tokens read again"
        daemon.requests = [
            request(prefix=prefix),
            request(status=429, outcome="key_limit", model="", first_s=None, estimated=True),
        ]
        shown.shows("#requests tr.failed", "429 key_limit")
        late, early = [
            [one.strip() for one in row.inner_text().split("\t")]
            for row in shown.page.locator("#requests tbody tr").all()
        ]
        assert late[1:] == [
            "429 key_limit", "–", "– /v1/chat/completions",
            "12.3 ms", "–", "4.1 s", "~21,204", "~96",
        ]  # fmt: skip
        assert early[3] == f"tiny /v1/chat/completions\n{prefix}"
        assert shown.violations() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_in_chinese_on_a_telephone(browser: Any, tmp_path: Path, theme: str) -> None:
    with (
        served(tmp_path, None) as (daemon, url),
        window(browser, url, PHONE, theme, language="zh-CN") as shown,
    ):
        daemon.status["gateway"] = GATEWAY
        daemon.requests = [request(status=503, outcome="engine_ended")]
        shown.shows("#request-counts", "客户端已离开：1")
        shown.shows("#requests tr.failed", "503 engine_ended")
        assert shown.run("document.documentElement.scrollWidth") == PHONE[0]
        assert shown.violations() == []


def test_what_clients_name_like_markup_is_text(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path, None) as (daemon, url), window(browser, url) as shown:
        daemon.status["gateway"] = GATEWAY
        daemon.requests = [request(key=MARKUP, model=MARKUP, path=MARKUP, outcome=MARKUP)]
        shown.shows("#requests tr.failed", MARKUP)
        assert shown.run("document.querySelectorAll('main img, [onerror]').length") == 0
