"""Makes this process one that reads what it has open, and programs of its own, and writes no file.

For a verb that reads a text of someone else: whatever the text made of it, it could open nothing
of the user's, and reach no other process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

from caovand import HOME
from caovand.adapters.confinement import launch

PROGRAMS = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")


def confine() -> None:
    """Confine this process for good, where its kernel can; without a word where it cannot."""
    abi = launch.landlock_abi()
    if abi < launch.MIN_ABI:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(OSError):
        libc.prctl(launch.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        launch.restrict(libc, abi, _rules())


def _rules() -> Iterator[tuple[str, int]]:
    """Modules that are imported late, their libraries, and where lost output goes."""
    for path in (*PROGRAMS, os.path.dirname(os.__file__), os.path.join(HOME, "caovand")):
        yield os.path.realpath(path), launch.READ_FILE | launch.READ_DIR
    yield os.devnull, launch.WRITE_FILE
