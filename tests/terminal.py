"""Run a command on its own terminal and use it like a person: type keys, read the screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S, until

CTRL_C = b"\x03"
LOOK_S = 0.1
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


# These signals are ignored in everything started from a background job or by nohup.
HEEDED = "--default-signal=INT,QUIT,HUP"


class Terminal:
    """Runs `argv` as the session leader of a new terminal."""

    def __init__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        folder: Path,
        size: tuple[int, int] | None = None,
    ) -> None:
        self._keys, inside = pty.openpty()
        if size is not None:
            self.resize(*size)
        self._seen, self._closing = "", threading.Event()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "env", HEEDED, *argv],
            env=dict(environ), cwd=folder, stdin=inside, stdout=inside, stderr=inside,
        )  # fmt: skip
        os.close(inside)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # Reading from a terminal fails with EIO once all its programs have exited.
        with contextlib.suppress(OSError):
            while not self._closing.is_set():
                if select.select([self._keys], [], [], LOOK_S)[0]:
                    data = os.read(self._keys, 65536)
                    self._seen += data.decode("utf-8", "replace").replace("\r\n", "\n")

    @property
    def text(self) -> str:
        """Everything printed so far."""
        return self._seen

    def until_it_says(self, words: str, patience_s: float = PATIENCE_S) -> str:
        """Wait until the output contains `words`; returns the output so far."""

        def look() -> bool:
            if words in self._seen:
                return True
            assert self.process.poll() is None, f"ended: {self._seen[-6000:]}"
            return False

        try:
            until(look, repr(words), patience_s)
        except AssertionError as problem:
            raise AssertionError(f"{problem}: {self._seen[-6000:]}") from None
        return self._seen

    def resize(self, columns: int, lines: int) -> None:
        """Resize the terminal; its programs get SIGWINCH."""
        fcntl.ioctl(self._keys, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def modes(self) -> list[Any]:
        """The terminal's input modes, which a program that changes them must restore."""
        return termios.tcgetattr(self._keys)

    @property
    def screen(self) -> str:
        """The alternate screen; empty once the program has left it."""
        rows: dict[int, str] = {}
        drawn = self._seen.rpartition(ENTER)[2]
        if ENTER not in self._seen or LEAVE in drawn:
            return ""
        for row, text in re.findall(r"\x1b\[(\d+);1H((?:(?!\x1b\[\d+;1H).)*)", drawn, re.S):
            rows[int(row)] = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).rstrip()
        return "\n".join(rows[row] for row in sorted(rows))

    def until_it_shows(self, *words: str) -> str:
        """Wait until the alternate screen shows all `words` at once; returns the screen."""

        def look() -> str:
            shown = self.screen
            if all(word in shown for word in words):
                return shown
            assert self.process.poll() is None, f"ended: {self._seen[-6000:]}"
            return ""

        try:
            return until(look, f"{words} on the screen")
        except AssertionError as problem:
            raise AssertionError(f"{problem}: {self.screen or self._seen[-6000:]}") from None

    def press(self, keys: bytes) -> None:
        """Type `keys`."""
        os.write(self._keys, keys)

    def close(self) -> None:
        """Close the terminal as if it were a window; its programs get SIGHUP."""
        self._closing.set()
        self._reader.join()
        os.close(self._keys)

    def until_ended(self) -> int:
        """Wait until the command exits; returns its exit status."""
        return self.process.wait(PATIENCE_S)
