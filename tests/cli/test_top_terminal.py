"""`caovanctl top` on a terminal: keys, sizes, signals, and a restored terminal after every exit."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.fake_daemon import FakeDaemon, status
from tests.daemon_process import ROOT
from tests.patience import LIMIT_S, eventually
from tests.terminal import CTRL_C, LEAVE, Terminal

Begin = Callable[..., Terminal]
TOP = ("-m", "caovand.cli.main", "--runtime", "{}", "top")
BREAKS = """
import sys
from caovand.cli import main, top
top.live.screen.lines = lambda *_: 1 / 0
sys.exit(main.main(["--runtime", sys.argv[1], "top"]))
"""


@pytest.fixture
def begin(daemon: FakeDaemon, folder: Path) -> Iterator[Begin]:
    """Run `top`, or another Python program, on a terminal of 80x24."""
    daemon.answers.update(status=status(), recent={}, events={"events": []})
    begun: list[Terminal] = []

    def run(*words: str, **environ: str) -> Terminal:
        inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
        argv = [sys.executable, *(word.format(folder) for word in words or TOP)]
        given = {**inherited, "TERM": "xterm", "PYTHONPATH": str(ROOT), **environ}
        begun.append(Terminal(argv, given, folder, size=(80, 24)))
        return begun[-1]

    yield run
    for terminal in begun:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.until_ended()
        terminal.close()


def restored(terminal: Terminal, before: list[object]) -> bool:
    """Whether keys are read as before, and screen and cursor are back."""
    return terminal.modes == before and terminal.text.rstrip().endswith(
        (f"{LEAVE}\x1b[?25h", f"\x1b[?25h{LEAVE}")
    )


def test_pages_keys_and_sizes(begin: Begin, daemon: FakeDaemon) -> None:
    daemon.answers.update(
        logs={
            "lines": ["INFO the engine prints", "\x1b[2Jis obeyed"],
            "last": 2,
            "more": False,
            "end": 2,
        },
        incidents={"incidents": []},
        requests={"requests": []},
        mode={"mode": "fast", "overruled": "", "state": "RECYCLING"},
    )
    terminal = begin()
    before = terminal.modes
    shown = terminal.until_it_shows("SERVING for 12 s", "q quit")
    assert len(shown.splitlines()) == 24
    assert "\x1b[1;32mSERVING" in terminal.text
    assert terminal.modes != before
    terminal.press(b"l")
    terminal.until_it_shows("INFO the engine prints", "\\x1b[2Jis obeyed", "Esc back")
    terminal.press(b"\x1b[A")  # an arrow is no Escape
    terminal.press(b"i")
    terminal.until_it_shows("no incidents")
    terminal.press(b"r")
    terminal.until_it_shows("no such requests")
    terminal.press(b"r")
    terminal.until_it_shows("m mode")
    terminal.press(b"?")
    terminal.until_it_shows("l    the engine's latest output")
    terminal.press(b"\x1b")
    terminal.until_it_shows("m mode")
    terminal.press(b"m")
    terminal.until_it_shows("f fast")
    assert "mode" not in {request.op for request in daemon.asked}
    terminal.press(b"f")
    terminal.until_it_shows("note      mode fast", "m mode")
    terminal.resize(120, 40)
    eventually(lambda: len(terminal.screen.splitlines()) == 40)
    terminal.resize(30, 5)
    terminal.until_it_shows("needs 40x10, this is 30x5")
    terminal.press(b"q")
    assert terminal.until_ended() == 0
    eventually(lambda: restored(terminal, before))


@pytest.mark.parametrize("end", [CTRL_C, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_it_leaves_the_terminal_as_it_was(begin: Begin, end: bytes | signal.Signals) -> None:
    terminal = begin()
    before = terminal.modes
    terminal.until_it_shows("SERVING", "q quit")
    if isinstance(end, bytes):
        terminal.press(end)
    else:
        terminal.process.send_signal(end)
    assert terminal.until_ended() == (130 if end == CTRL_C else 128 + signal.SIGTERM)
    eventually(lambda: restored(terminal, before))


def test_a_fault_of_ours_leaves_the_terminal_as_it_was(begin: Begin) -> None:
    terminal = begin("-c", BREAKS, "{}")
    before = terminal.modes
    assert terminal.until_ended() == 1
    eventually(lambda: "ZeroDivisionError" in terminal.text)
    text = terminal.text
    assert text.index(LEAVE) < text.index("Traceback")
    assert terminal.modes == before


def test_stopped_it_gives_the_terminal_back_and_goes_on_where_it_was(begin: Begin) -> None:
    terminal = begin()
    before = terminal.modes
    terminal.until_it_shows("SERVING", "q quit")
    terminal.press(b"\x1a")
    pid = terminal.process.pid
    eventually(lambda: terminal.screen == "" and terminal.modes == before)
    eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    terminal.process.send_signal(signal.SIGCONT)
    terminal.until_it_shows("SERVING", "q quit")
    terminal.press(b"q")
    assert terminal.until_ended() == 0
    eventually(lambda: restored(terminal, before))


def test_a_daemon_that_hangs_holds_up_no_key(begin: Begin, daemon: FakeDaemon) -> None:
    goes_on = threading.Event()

    def hangs(_: object) -> dict[str, Any]:
        goes_on.wait(LIMIT_S)
        return status()

    terminal = begin()
    try:
        terminal.until_it_shows("SERVING", "q quit")
        daemon.answers["status"] = hangs
        terminal.until_it_shows("NO ANSWER", "caovand did not answer within 3 s")
        terminal.press(b"?")
        terminal.until_it_shows("l    the engine's latest output")
    finally:
        goes_on.set()
    terminal.press(b"?")
    terminal.until_it_shows("SERVING for 12 s")
    terminal.press(b"q")
    assert terminal.until_ended() == 0


def test_without_colour_there_is_none(begin: Begin) -> None:
    terminal = begin(NO_COLOR="1")
    terminal.until_it_shows("SERVING")
    assert "\x1b[1;32m" not in terminal.text
    terminal.press(b"q")
    assert terminal.until_ended() == 0


def test_a_dumb_terminal_gets_one_screen(begin: Begin) -> None:
    terminal = begin(TERM="dumb")
    assert terminal.until_ended() == 0
    eventually(lambda: "SERVING for 12 s" in terminal.text)
    assert "\x1b" not in terminal.text
