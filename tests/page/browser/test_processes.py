"""The processes on the cards: the engine's and others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_top import card
from tests.page.browser.test_nodes import served
from tests.page.browser.window import PHONE, window
from tests.page.client import FakeDaemon

pytestmark = pytest.mark.long
MARKUP = "<img src=x>"


@contextmanager
def named(name: str) -> Iterator[int]:
    """A process that calls itself so."""
    ours, theirs = socket.socketpair()
    code = (
        "import ctypes, sys; ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0);"
        " print(flush=True); sys.stdin.read()"
    )
    with ours, theirs:
        words = [sys.executable, "-c", code, name]
        with subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, cwd="/") as process:
            theirs.close()
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
            ours.close()


def use(daemon: FakeDaemon, engine: int, other: int) -> None:
    """An engine on card 0, with another program, which is on card 1 alone."""
    users = [[engine, 18_432], [other, 512]]
    daemon.status["gpus"] = [card(0, users=users), card(1, users=[[other, 0]])]
    daemon.status["figures"] = {
        **daemon.status["figures"],
        "memory": [{"gpu": 0, "engine_mib": 18_432, "engine_pids": [engine], "parts": {}}],
    }


def test_each_process_is_shown_with_its_memory_and_whose_it_is(
    browser: Any, tmp_path: Path
) -> None:
    with (
        named(MARKUP) as other,
        served(tmp_path, None) as (daemon, url),
        window(browser, url) as shown,
    ):
        shown.is_in("SERVING")
        assert not shown.page.locator("#processes").is_visible(), "there is no process"
        use(daemon, os.getpid(), other)
        row = shown.shows(f'#processes tr[data-pid="{os.getpid()}"]').inner_text()
        assert row.split("\t")[1:] == [str(os.getpid()), "GPU 0", "18,432 MiB", "Engine"]
        others = [
            one.inner_text().split("\t")
            for one in shown.page.locator(f'#processes tr[data-pid="{other}"]').all()
        ]
        assert others == [
            [MARKUP, str(other), "GPU 0", "512 MiB", "others"],
            [MARKUP, str(other), "GPU 1", "–", "others"],
        ]
        assert shown.violations() == []


def test_in_chinese_on_a_telephone(browser: Any, tmp_path: Path) -> None:
    with (
        served(tmp_path, None) as (daemon, url),
        window(browser, url, PHONE, language="zh-CN") as shown,
    ):
        use(daemon, 2**22 + 1, os.getpid())
        shown.shows("#processes tr", "此处看不到")
        shown.shows("#processes tr", "其他程序")
        assert shown.run("document.documentElement.scrollWidth") == PHONE[0]
        assert shown.violations() == []
