"""The live screen's terminal: keys, signals, size, and restoring its former state."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import termios
import tty
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.region import Region
from rich.text import Text

ENDING = (signal.SIGTERM, signal.SIGHUP)
WAKING = (*ENDING, signal.SIGWINCH, signal.SIGTSTP)
KEYS = 0
"""File descriptor of the keyboard: standard input."""
ESCAPE = "\x1b"
SEQUENCE = re.compile(r"\x1b(?:\[[0-9;]*[@-~]|O.)")
"""Escape sequence of an arrow or similar key."""


@dataclass(frozen=True)
class Input:
    """The events that woke the loop: typed `keys`, and whether a signal requests it to exit or to
    suspend.
    """

    keys: str = ""
    ended_by: signal.Signals | None = None
    stopped: bool = False


class Terminal:
    """The alternate screen with unbuffered keys; leaving it restores the normal screen.

    Signals only write to a socket that the loop waits on, so none interrupts the drawing of a line.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._woken, self._waker = socket.socketpair()
        self._shown: list[Text] = []
        self._size = (0, 0)
        self._left, self._taken = contextlib.ExitStack(), contextlib.ExitStack()

    def __enter__(self) -> Terminal:
        try:
            for end in (self._woken, self._waker):
                end.setblocking(False)
                self._left.callback(end.close)
            for number in WAKING:
                before = signal.signal(number, lambda *_: None)
                self._left.callback(signal.signal, number, before)
            # Restore it before the socket is closed.
            wakeup = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
            self._left.callback(signal.set_wakeup_fd, wakeup)
            self._left.callback(self._taken.close)
            self._take()
        except BaseException:
            self._left.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError, termios.error):  # a closed window has nothing to restore
            self._left.close()

    def _take(self) -> None:
        """Enter the alternate screen and cbreak mode."""
        modes = termios.tcgetattr(KEYS)
        self._taken.callback(termios.tcsetattr, KEYS, termios.TCSADRAIN, modes)
        tty.setcbreak(KEYS)
        self._taken.enter_context(self._console.screen(hide_cursor=True))
        self._shown = []

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        size = os.get_terminal_size(self._console.file.fileno())
        return (size.columns or 80), (size.lines or 24)

    def wake(self) -> None:
        """Make `wait` return; callable from any thread."""
        with contextlib.suppress(OSError):  # full, so that it wakes anyway, or closed
            self._waker.send(b"\0")

    def wait(self, timeout_s: float | None) -> Input:
        """Wait for a key, a signal or `wake`."""
        woken = self._woken.fileno()
        ready, _, _ = select.select([KEYS, woken], [], [], timeout_s)
        keys, numbers = "", b""
        if woken in ready:
            numbers = self._woken.recv(4096)
        if KEYS in ready:
            typed = b""
            with contextlib.suppress(OSError):
                typed = os.read(KEYS, 4096)
            if not typed:  # the window is closed
                return Input(ended_by=signal.SIGHUP)
            keys = SEQUENCE.sub("", typed.decode("utf-8", "replace"))
        ended_by = next((number for number in ENDING if number in numbers), None)
        return Input(keys, ended_by, signal.SIGTSTP in numbers)

    def stop(self) -> None:
        """Leave the screen and stop, as ^Z requests; enter it again when continued."""
        self._taken.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()

    def show(self, lines: Sequence[Text], size: tuple[int, int]) -> None:
        """Draw the lines that differ from the current screen."""
        if size != self._size:
            self._shown, self._size = [], size
        before = [*self._shown, *[None] * (len(lines) - len(self._shown))]
        with self._console:
            for y, (old, new) in enumerate(zip(before, lines, strict=False)):
                if old is None or old.markup != new.markup:
                    self._console.update_screen(new, region=Region(0, y, size[0], 1))
        self._shown = list(lines)
