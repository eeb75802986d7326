"""Print untrusted text without letting a terminal interpret it.

Process and model names, the engine's lines and the daemon's replies may contain anything.
`escaping_output` wraps the stream behind `print`, so verbs need no precautions. Code that writes
colours or moves the cursor on purpose takes the `raw_stream` and escapes its texts itself. Only the
standard library is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from caovand.core.printable import printable


class EscapingStream(io.TextIOBase):
    """Forwards text to `stream` with control characters escaped.

    It never claims to be a terminal: programs would then send colours, which do not pass.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(printable(text))
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Leave `stream` open: it belongs to someone else, and collecting this object must not
        flush it."""


@contextlib.contextmanager
def escaping_output() -> Iterator[None]:
    """Escape everything printed while the context is active."""
    out, err = sys.stdout, sys.stderr
    for stream in (out, err):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be valid text
    sys.stdout, sys.stderr = (
        cast(TextIO, EscapingStream(raw_stream(stream))) for stream in (out, err)
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def raw_stream(stream: TextIO) -> TextIO:
    """The underlying stream, for code that escapes its own output."""
    return stream.stream if isinstance(stream, EscapingStream) else stream


def takes_unicode(stream: TextIO) -> bool:
    """Whether a stream can encode more than ASCII."""
    return (raw_stream(stream).encoding or "utf-8").lower().startswith("utf")


def show(args: argparse.Namespace, result: Any, text: str) -> None:
    """Print a result: as JSON for programs with --json, else as text for people."""
    print(json.dumps(result, default=str) if args.json else text)
