"""The page in a headless Chromium, and what must hold whenever it is open.

`make browser` brings Playwright and axe-core; Chromium is the system's.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import urllib.request
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.daemon_process import ROOT
from tests.patience import LIMIT_S, until

BROUGHT = ROOT / ".caovan/browser"
AXE = BROUGHT / "axe_playwright_python/axe.min.js"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
DESK, PHONE = (1280, 900), (360, 740)
# What Chromium itself reports of a server that goes away, and of a refusal that the page shows.
LOSS = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET",
        "ERR_EMPTY_RESPONSE", "ERR_SOCKET_NOT_CONNECTED")  # fmt: skip
REFUSAL = ("status of 403",)
CARD_MIB = 300


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser of Playwright's."""
    program = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if program is None or not AXE.is_file():
        pytest.fail("no browser to test with: run `make browser` first", pytrace=False)
    sys.path.insert(0, str(BROUGHT))
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415  (not there before)
    finally:
        sys.path.remove(str(BROUGHT))
    with sync_playwright() as playwright:
        # As root it has no sandbox.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def answers(url: str) -> bool:
    """Whether the page's process listens yet."""
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=LIMIT_S):
        return True
    return False


@dataclass
class Window:
    """The page, with what its console said and what it asked for."""

    page: Any
    url: str
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def shows(self, selector: str, text: str = "") -> Any:
        """Wait until an element is visible, with this text in it."""
        found = self.page.locator(selector).filter(has_text=text).first
        found.wait_for(timeout=LIMIT_S * 1000)
        return found

    def is_in(self, state: str) -> None:
        """Wait until the page shows the engine in a state."""
        self.shows(f'#now[data-state="{state}"]')

    def run(self, script: str) -> Any:
        """The value of a script in the page."""
        return self.page.evaluate(script)

    def violations(self) -> list[str]:
        """What axe-core finds."""
        self.run(AXE.read_text(encoding="utf-8"))
        found = self.run("axe.run()")["violations"]
        return [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
            for one in found
            for node in one["nodes"]
        ]


@contextlib.contextmanager
def window(
    browser: Any,
    url: str,
    size: tuple[int, int] = DESK,
    theme: str = "light",
    language: str = "en-GB",
    may_say: Collection[str] = (),
) -> Iterator[Window]:
    """The page at `url`: at the end its console is empty, and it asked no other host.

    Lines with one of the words `may_say` do not count.
    """
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=theme,
        locale=language,
        reduced_motion="reduce",
    )
    page = context.new_page()
    found = Window(page, url)
    page.on("console", lambda message: found.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda problem: found.said.append(f"error: {problem}"))
    page.on("dialog", lambda dialog: (found.said.append(f"dialog: {dialog}"), dialog.dismiss()))
    page.on("request", lambda request: found.asked.append(request.url))
    try:
        until(lambda: answers(url), "a page")
        page.goto(url)
        yield found
        said = [text for text in found.said if not any(word in text for word in may_say)]
        assert not said, said
        assert [one for one in found.asked if not one.startswith(url)] == []
    finally:
        context.close()
