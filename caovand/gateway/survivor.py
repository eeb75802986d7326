"""End the clients' answers when the gateway's process dies, whatever the cause.

The survivor is a process that shares the gateway's table of descriptors: the kernel closes them
only once both are gone, so the connections outlive the gateway by the milliseconds that it takes to
write the last words. Until then it sleeps, and must not close any descriptor: that would close it
in the gateway, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import platform
import resource
import select
import signal
from typing import NoReturn

from caovand.core.gateway.last_words import LAST_WORDS, NOTHING

PR_SET_NAME = 15
CLONE_FILES = 0x400
CLONE = {"x86_64": 56, "aarch64": 220}
"""The number of the system call."""


class Marks:
    """A byte for each descriptor, shared with the survivor: it selects the last words."""

    def __init__(self) -> None:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._bytes = mmap.mmap(-1, most)

    def set(self, descriptor: int, mark: int) -> None:
        """Mark a connection; it keeps the mark until its next."""
        self._bytes[descriptor] = mark

    def marked(self) -> list[tuple[int, int]]:
        """Descriptors and their marks."""
        return [(place, mark) for place, mark in enumerate(self._bytes[:]) if mark != NOTHING]


def start(marks: Marks) -> None:
    """Start the survivor of this process, which must have one thread and no socket objects.

    Where the kernel or the machine has no such call, there is none.
    """
    if (clone := CLONE.get(platform.machine())) is None:
        return
    libc = ctypes.PyDLL(None)  # which keeps the interpreter's lock, as a fork must
    flags = ctypes.c_ulong(CLONE_FILES | signal.SIGCHLD)
    gateway = os.pidfd_open(os.getpid())
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = libc.syscall(ctypes.c_long(clone), flags, None, None, None, None)
    if pid == 0:
        _survive(gateway, marks)
    ctypes.pythonapi.PyOS_AfterFork_Parent()


def _survive(gateway: int, marks: Marks) -> NoReturn:
    try:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        ctypes.PyDLL(None).prctl(PR_SET_NAME, b"caovan-survivor", 0, 0, 0)
        gc.disable()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # sent to the whole service
        dead = select.poll()
        dead.register(gateway, select.POLLIN)
        dead.poll()
        for descriptor, mark in marks.marked():
            # Sockets of asyncio never block. What the client does not read is cut off.
            with contextlib.suppress(OSError):
                os.write(descriptor, LAST_WORDS[mark])
    finally:
        os._exit(0)
