"""Limits of the machine or the unit: descriptors, processes, threads, memory.

An action that fails at a limit is retried. A file that cannot be read because of a limit does not
count as missing.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

_MEMORY = "memory is exhausted; find what uses it (`free -m`), or raise the unit's MemoryMax"
_TASKS = (
    "no more threads or processes can be started; raise the unit's TasksMax (`ulimit -u`), or "
    "stop some of them (`systemctl status caovan`, `ps -eLf`)"
)
_REMEDIES = {
    errno.EMFILE: "too many files are open; raise the unit's LimitNOFILE (`ulimit -n`)",
    errno.ENFILE: "the machine has too many files open; raise sysctl fs.file-max",
    errno.EAGAIN: _TASKS,
    errno.ENOMEM: _MEMORY,
    errno.ENOBUFS: _MEMORY,
}


class NoAnswer(OSError):
    """A check could not be made, so its subject remains unknown."""


def limit_reached(problem: BaseException | None) -> str:
    """The limit behind an exception or its cause, with the remedy; "" for any other exception."""
    while problem is not None:
        if isinstance(problem, MemoryError):
            return _MEMORY
        if isinstance(problem, NoAnswer):
            return str(problem)
        if isinstance(problem, RuntimeError) and "start new thread" in str(problem):
            return _TASKS
        if isinstance(problem, OSError) and problem.errno in _REMEDIES:
            return _REMEDIES[problem.errno]
        problem = problem.__cause__
    return ""


@contextlib.contextmanager
def suppress_absent() -> Iterator[None]:
    """Suppress OSErrors that mean absent or forbidden, but not exhausted limits."""
    try:
        yield
    except OSError as problem:
        if limit_reached(problem):
            raise
