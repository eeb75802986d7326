"""Confine this process to reading files that it has open and its own programs, without writing.

For a verb that reads a text of someone else: even if the text took control, it could open none of
the user's files, and reach no other process.
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
    """Confine this process for good if its kernel supports it; silently do nothing otherwise."""
    abi = launch.landlock_abi()
    if abi < launch.MIN_ABI:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(OSError):
        libc.prctl(launch.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        launch.restrict(libc, abi, _rules())


def _rules() -> Iterator[tuple[str, int]]:
    """Rules for modules that are imported late, their libraries, and the place for discarded
    output."""
    for path in (*PROGRAMS, os.path.dirname(os.__file__), os.path.join(HOME, "caovand")):
        yield os.path.realpath(path), launch.READ_FILE | launch.READ_DIR
    yield os.devnull, launch.WRITE_FILE
