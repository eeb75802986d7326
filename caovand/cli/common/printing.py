"""What commands print: the text of strangers is shown, and never obeyed by a terminal.

Process and model names, the engine's lines and the daemon's answers may contain anything.
`escaping_output` puts itself between `print` and the terminal, so that no verb has to think of it.
Code that writes colours and moves the cursor on purpose takes the `raw_stream` and cleans its texts
itself. Needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import TextIO, cast

from caovand.core.printable import printable


class EscapingStream(io.TextIOBase):
    """Passes text on to `stream` with its control characters written out.

    It is no terminal, whatever that is: who asks would send colours, which do not get through.
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
        """Leave `stream` open, which is another's; collecting this one must not flush it either."""


@contextlib.contextmanager
def escaping_output() -> Iterator[None]:
    """Let everything that is printed meanwhile go through `EscapingStream`."""
    out, err = sys.stdout, sys.stderr
    for stream in (out, err):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name need not be text
    sys.stdout, sys.stderr = (
        cast(TextIO, EscapingStream(raw_stream(stream))) for stream in (out, err)
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def raw_stream(stream: TextIO) -> TextIO:
    """The stream itself, for code that cleans what it writes."""
    return stream.stream if isinstance(stream, EscapingStream) else stream


def takes_unicode(stream: TextIO) -> bool:
    """Whether a stream takes more than ASCII."""
    return (raw_stream(stream).encoding or "utf-8").lower().startswith("utf")
