"""Limits of the machine or the unit that keep something from being done now, perhaps not later.

Descriptors, processes, threads, memory: what fails for want of them is tried again, and what could
not be looked at for want of them is not taken for absent.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

_MEMORY = "there is no memory left; see what uses it (`free -m`), or raise MemoryMax of the unit"
_TASKS = (
    "no more threads or processes may be started; raise TasksMax of the unit (`ulimit -u`), or end"
    " what uses them up (`systemctl status caovan`, `ps -eLf`)"
)
_REMEDIES = {
    errno.EMFILE: "too many files are open; raise LimitNOFILE of the unit (`ulimit -n`)",
    errno.ENFILE: "the machine has too many files open; raise sysctl fs.file-max",
    errno.EAGAIN: _TASKS,
    errno.ENOMEM: _MEMORY,
    errno.ENOBUFS: _MEMORY,
}


def reached(problem: BaseException | None) -> str:
    """The limit that an exception, or its cause, tells of, with the remedy; "" for any other."""
    while problem is not None:
        if isinstance(problem, MemoryError):
            return _MEMORY
        if isinstance(problem, RuntimeError) and "start new thread" in str(problem):
            return _TASKS
        if isinstance(problem, OSError) and problem.errno in _REMEDIES:
            return _REMEDIES[problem.errno]
        problem = problem.__cause__
    return ""


@contextlib.contextmanager
def absent() -> Iterator[None]:
    """Suppress OSErrors that say that something is not there, or not for us; none of a limit."""
    try:
        yield
    except OSError as problem:
        if reached(problem):
            raise
