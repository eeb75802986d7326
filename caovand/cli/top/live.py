"""The live screen's main loop. A thread polls the daemon once a second, so keys and signals never
wait for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from rich.console import Console

from caovand.cli.common.errors import Exit
from caovand.cli.top import screen
from caovand.cli.top.terminal import ESCAPE, Terminal
from caovand.cli.top.view import ScreenPage, TerminalStyle, View
from caovand.cli.top.watcher import Watcher

ASK_S = 1.0
MIN_S = 0.2  # between two polls, however many keys are typed
DRAW_S = 0.5
"""Interval of redrawing replies; keys and size changes are handled at once."""
KEY_PAGES = {
    "l": ScreenPage.LOG,
    "i": ScreenPage.INCIDENTS,
    "r": ScreenPage.REQUESTS,
    "?": ScreenPage.HELP,
    "m": ScreenPage.MODE,
}


class StatusPoller:
    """Polls the daemon in a thread: a hanging daemon must not block keys."""

    def __init__(self, watcher: Watcher, first: View, wake: Callable[[], None]) -> None:
        self.view, self.page = first, ScreenPage.MAIN
        self.fault: BaseException | None = None
        self._watcher, self._wake = watcher, wake
        self._chosen: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="asks", daemon=True)

    def __enter__(self) -> StatusPoller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._chosen.put(None)

    def join(self) -> None:
        """Wait for the current poll to end."""
        if self._thread.ident is not None:  # it was started
            self._thread.join()

    def turn_to(self, page: ScreenPage) -> None:
        """Poll at once for this page's content."""
        self.page = page
        self._chosen.put(None)

    def choose(self, mode: str) -> None:
        """Choose a mode."""
        self._chosen.put(mode)

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                try:
                    chosen = self._chosen.get(timeout=ASK_S)
                except queue.Empty:
                    chosen = None
                if chosen is not None:
                    self._watcher.choose(chosen)
                if not self._ending.is_set():
                    self.view = self._watcher.poll(self.page)
                    self._wake()
                self._ending.wait(MIN_S)
        except BaseException as fault:  # a bug: the main thread ends with it
            self.fault = fault
            self._wake()


def run(console: Console, watcher: Watcher, look: TerminalStyle) -> int:
    """Run until a key or a signal ends the screen; return the exit status."""
    first = watcher.first()
    terminal = Terminal(console)
    poller = StatusPoller(watcher, first, terminal.wake)
    try:
        with terminal, poller:
            return _show(terminal, poller, look)
    finally:
        poller.join()


def _show(terminal: Terminal, poller: StatusPoller, look: TerminalStyle) -> int:
    page, drawn_at = ScreenPage.MAIN, float("-inf")
    shown: tuple[ScreenPage, tuple[int, int], View] | None = None
    while True:
        if poller.fault is not None:
            raise poller.fault
        now, state = time.monotonic(), (page, terminal.size, poller.view)
        due_s = drawn_at + DRAW_S - now
        if shown is None or state[:2] != shown[:2] or (state[2] is not shown[2] and due_s <= 0):
            terminal.show(screen.lines(state[2], page, *state[1], look), state[1])
            drawn_at, shown, due_s = now, state, DRAW_S
        woken = terminal.wait(None if state[2] is shown[2] else max(due_s, 0.0))
        if woken.ended_by is not None:
            return 128 + woken.ended_by
        if woken.stopped:
            terminal.stop()
            shown = None
        for key in woken.keys:
            if key == "q":
                return Exit.DONE
            page = _on_key(key, page, poller)


def _on_key(key: str, page: ScreenPage, poller: StatusPoller) -> ScreenPage:
    """The page to show after a key."""
    if page is ScreenPage.MODE:
        if key in screen.MODE_KEYS:
            poller.choose(screen.MODE_KEYS[key])
        return ScreenPage.MAIN
    target = ScreenPage.MAIN if key == ESCAPE else KEY_PAGES.get(key, page)
    if target is page and key in KEY_PAGES:
        target = ScreenPage.MAIN  # the page's key toggles it
    if target is not page:
        poller.turn_to(target)
    return target
