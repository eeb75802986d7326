"""A session with the driver's NVML, through its Python bindings."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from caovand.core.printable import one_line

VENDORED = "/usr/lib/caovan/vendor"
"""The folder where the Debian package puts pynvml: the distribution has none, or one that is too
old."""
CLOCK_SM, CLOCK_MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_UNSUPPORTED = ("NVMLError_NotSupported", "NVMLError_NoPermission", "NVMLError_NotFound")


def pynvml() -> Any:
    """Import pynvml, wherever it is installed; raises ImportError if it is missing."""
    if VENDORED not in sys.path and os.path.isdir(VENDORED):
        sys.path.insert(0, VENDORED)
    return importlib.import_module("pynvml")


class Nvml:
    """An open session of `library`, which may be of any release.

    `faults` are the errors of all calls, but for those of a card or driver without that function.
    """

    def __init__(self, library: Any) -> None:
        self.library = library
        self.faults: list[Exception] = []

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call an NVML function; None if this card, driver or release of the library lacks it."""
        try:
            answer = getattr(self.library, function)(*arguments)
        except self.library.NVMLError as problem:
            if type(problem).__name__ not in _UNSUPPORTED:
                self.faults.append(problem)
            return None
        except (AttributeError, TypeError, UnicodeDecodeError):
            return None  # older bindings lack functions and arguments, newer ones decode strictly
        return decode(answer) if isinstance(answer, (bytes, str)) else answer

    def card(self, index: int) -> Any:
        """The handle of a card; None for one that is lost."""
        return self.ask("nvmlDeviceGetHandleByIndex", index)

    def indices(self) -> range:
        """The indices of all cards, the lost ones included."""
        return range(self.library.nvmlDeviceGetCount())


@contextlib.contextmanager
def open_session(library: Any) -> Iterator[Nvml]:
    """Open a session; raises NVMLError if the driver is missing or has another version."""
    library.nvmlInit()
    try:
        yield Nvml(library)
    finally:
        with contextlib.suppress(library.NVMLError):
            library.nvmlShutdown()


def decode(answer: Any) -> str:
    """The text of an answer on one line; older bindings return bytes."""
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
    return one_line(text)
