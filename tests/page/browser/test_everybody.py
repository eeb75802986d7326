"""Accessibility: keyboard, screen reader, phone, dark theme, both languages."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import daemon
from tests.faults.test_standin_faults import cards
from tests.page.browser.window import PHONE, Window, window
from tests.patience import LIMIT_S, until
from tests.ports import free_port
from tests.scenarios.test_supervision import configuration

pytestmark = pytest.mark.long
LANGUAGES = {"en-GB": "Serving", "zh-CN": "服务中"}


@pytest.fixture(scope="module")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A page with all there is to see: cards, a past failure, drafts, an incident."""
    folder = tmp_path_factory.mktemp("everybody")
    listen = f"127.0.0.1:{free_port()}"
    fault = {"at": "load", "do": "exit", "times": 1, "memory": str(folder / "memory")}
    config = configuration(
        model, {"fault": fault}, page=f'listen = "{listen}"', watch="gpu_sample_s = 1"
    )
    with daemon(config, cards(folder, of="VLLM::EngineCor")) as one:
        port = one.until_state("SERVING")["served"]["port"]
        until(lambda: one.status()["figures"]["running"] is not None, "a first reading")
        complete(port)
        yield f"http://{listen}/"


def complete(port: int) -> None:
    """A request whose drafts count."""
    body = json.dumps({"model": "hybrid", "prompt": [1], "max_tokens": 20}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        answer.read()


def full(shown: Window) -> None:
    """Wait until every section has something."""
    shown.is_in("SERVING")
    shown.shows("#card-list .card >> nth=1", "GPU 1")
    shown.shows("#incident-list .incident")
    shown.shows("#plan-body table")
    shown.shows("#log-lines div")
    shown.shows(".positions")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_core_finds_nothing(browser: Any, url: str, theme: str, language: str) -> None:
    with window(browser, url, theme=theme, language=language) as shown:
        full(shown)
        shown.shows("#state", LANGUAGES[language])
        assert shown.violations() == []
        shown.shows("#incident-list .incident").click()
        shown.shows("#report[open] pre")
        assert shown.violations() == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_telephone_scrolls_down_only(browser: Any, url: str, language: str) -> None:
    with window(browser, url, PHONE, language=language) as shown:
        full(shown)
        assert shown.run("document.documentElement.scrollWidth") == PHONE[0]
        too_wide = """[...document.querySelectorAll('main *')].filter(one =>
            one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML)"""
        assert shown.run(too_wide) == []
        assert shown.violations() == []


def test_theme_and_language_are_chosen_with_keys_and_remembered(browser: Any, url: str) -> None:
    with window(browser, url) as shown:
        full(shown)
        shown.page.keyboard.press("Tab")
        assert shown.run("document.activeElement.className") == "skip"
        shown.page.focus("#language")
        shown.page.keyboard.press("Enter")
        shown.shows("#state", "服务中")
        assert shown.run("document.documentElement.lang") == "zh-CN"
        for _ in range(2):  # as the system, light, dark
            shown.page.focus("#theme")
            shown.page.keyboard.press("Enter")
        dark = shown.run("getComputedStyle(document.body).backgroundColor")
        shown.page.reload()
        shown.shows("#state", "服务中")
        assert shown.run("document.documentElement.dataset.theme") == "dark"
        assert shown.run("getComputedStyle(document.body).backgroundColor") == dark


def test_without_a_card_the_page_says_so(browser: Any, model: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    with daemon(configuration(model, page=f'listen = "{listen}"')) as one:
        one.until_state("SERVING")
        with window(browser, f"http://{listen}/") as shown:
            shown.shows("#card-list", "No GPU is visible")
