"""A command on a terminal of its own, driven as a person does: keys in, a screen out."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.patience import PATIENCE_S, until

CTRL_C = b"\x03"
LOOK_S = 0.1


# Whoever runs the tests in the background, or by nohup, makes all they start ignore these.
HEEDED = "--default-signal=INT,QUIT,HUP"


class Terminal:
    """Runs `argv` as the session leader of a new terminal."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], folder: Path) -> None:
        self._keys, inside = pty.openpty()
        self._seen, self._closing = "", threading.Event()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "env", HEEDED, *argv],
            env=dict(environ), cwd=folder, stdin=inside, stdout=inside, stderr=inside,
        )  # fmt: skip
        os.close(inside)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # The reader of a terminal gets EIO when all its programs are gone.
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
        """Wait for `words`; the text so far."""

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

    def press(self, keys: bytes) -> None:
        """Type `keys`."""
        os.write(self._keys, keys)

    def close(self) -> None:
        """Close it, as a window is: what runs on it gets HUP."""
        self._closing.set()
        self._reader.join()
        os.close(self._keys)

    def until_ended(self) -> int:
        """Wait for the command's end; its exit status."""
        return self.process.wait(PATIENCE_S)
