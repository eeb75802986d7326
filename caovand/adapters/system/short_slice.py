"""Short time slices for the daemon's loop.

The scheduler of Linux 6.6 and later lets a task that has just started finish its slice, of some
milliseconds, before another that wakes gets its core: a status request waits for that at each of
several steps. From 6.12 on, a task with shorter slices need not wait (sched(7), sched_setattr(2),
PREEMPT_SHORT in kernel/sched/features.h). Earlier kernels ignore the length.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SLICE_NS = 500_000
SETATTR = {"x86_64": 314, "aarch64": 274}
RESET_ON_FORK = 1
_ATTR = struct.Struct("=IIQiIQQQII")
"""struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period, limits."""


def shorten() -> bool:
    """Shorten the time slices of this thread only; return whether the kernel accepted it.

    Children, above all the engine, have the usual ones. An operator's priority stays.
    """
    number = SETATTR.get(platform.machine())
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if number is None or nice < 0 or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    attr = _ATTR.pack(
        _ATTR.size, os.SCHED_OTHER, RESET_ON_FORK, nice, 0, SLICE_NS, 0, 0, 0, 0
    )  # fmt: skip
    return int(ctypes.CDLL(None).syscall(number, 0, attr, 0)) == 0
