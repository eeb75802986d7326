"""Outside input is displayed as text, whatever it pretends to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.page.browser.test_live import served
from tests.page.browser.window import window
from tests.patience import until

pytestmark = pytest.mark.long
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
ERROR = f"(EngineCore pid=2) ERROR 11-20 08:53:14 [serving.py:1] ValueError: {MARKUP}"


def test_markup_in_log_events_incidents_and_names_is_text(
    browser: Any, model: Path, tmp_path: Path
) -> None:
    fault = {"at": "load", "print": [ERROR], "do": "exit", "times": 1,
             "memory": str(tmp_path / "memory")}  # fmt: skip
    orders = {"print": [MARKUP, "\u202e\x1b[31mred"], "fault": fault}
    with (
        served(model, orders, "<b onmouseover=alert(3)>") as (one, url),
        window(browser, url) as shown,
    ):
        shown.is_in("SERVING")
        until(lambda: "incident" in "".join(one.events()), "an incident")
        shown.shows("#now .facts", "<b onmouseover=alert(3)>")
        shown.shows("#log-lines div", MARKUP)
        shown.shows("#event-list li[data-kind=failure]", MARKUP)
        shown.shows("#plan-body", "<b onmouseover=alert(3)>")
        shown.shows("#incident-list .incident").click()
        shown.shows("#report[open] pre", MARKUP)
        made = "img, main script, dialog script, b[onmouseover], [onerror]"
        assert shown.run(f"document.querySelectorAll('{made}').length") == 0
        assert shown.run("document.querySelectorAll('[style*=url]').length") == 0
