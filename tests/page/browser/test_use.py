"""Using the page: log in, try the model, stop a long answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import daemon
from tests.page.browser.test_live import served
from tests.page.browser.window import REFUSAL, Window, window
from tests.ports import free_port
from tests.scenarios.test_supervision import configuration
from tests.secret_files import secret_file

pytestmark = pytest.mark.long
TOKEN = "correct horse battery staple"  # of no system


def log_in(shown: Window, token: str) -> None:
    shown.shows("#token").fill(token)
    shown.page.keyboard.press("Enter")


def test_who_has_the_token_logs_in_and_stays_so(browser: Any, model: Path, tmp_path: Path) -> None:
    secret_file(tmp_path / "token", TOKEN)
    listen = f"127.0.0.1:{free_port()}"
    page = f'listen = "{listen}"\ntoken_file = "{tmp_path / "token"}"'
    with (
        daemon(configuration(model, page=page)) as one,
        window(browser, f"http://{listen}/", may_say=REFUSAL) as shown,
    ):
        one.until_state("SERVING")
        assert shown.violations() == []
        log_in(shown, "wrong")
        shown.shows("form [role=alert]", "the token is wrong")
        assert shown.violations() == []
        log_in(shown, TOKEN)
        shown.is_in("SERVING")
        shown.page.reload()
        shown.is_in("SERVING")
        assert TOKEN not in shown.run("document.cookie + JSON.stringify(localStorage)")


def test_the_model_s_answer_comes_with_its_speed(browser: Any, model: Path) -> None:
    with served(model, {}) as (_, url), window(browser, url) as shown:
        shown.is_in("SERVING")
        prompt = shown.shows("#prompt")
        prompt.fill("one <b>two</b> three")
        prompt.press("Control+Enter")
        shown.shows(".answer .said", "one <b>two</b> three")
        shown.shows("#try-form .below", "3 tokens")
        assert shown.violations() == []


def test_an_answer_is_ended_by_its_button(browser: Any, model: Path) -> None:
    with served(model, {"pace_s": 0.2}) as (_, url), window(browser, url) as shown:
        shown.is_in("SERVING")
        shown.shows("#prompt").fill("again " * 200)
        send = shown.shows("#try-form button[type=submit]")
        send.click()
        shown.shows(".answer .said", "again again")
        send.click()
        shown.shows("#try-form .below", "stopped")
        shown.shows("#try-form button[type=submit]", "Send")


def test_nothing_can_be_sent_while_nothing_serves(browser: Any, model: Path) -> None:
    with served(model, {}) as (one, url), window(browser, url) as shown:
        shown.is_in("SERVING")
        shown.shows("#prompt").fill("kept")
        assert one.ctl("stop").returncode == 0
        shown.is_in("STOPPED")
        shown.shows("#try-form button[type=submit]:disabled")
        assert shown.run("document.getElementById('prompt').value") == "kept"
