"""Removes segments of System V shared memory that a killed engine left: they have no file."""

from __future__ import annotations

import ctypes
import os

from caovand.core import limits

LISTING = "/proc/sysvipc/shm"
IPC_RMID = 0


def remove_unused(listing: str = LISTING) -> None:
    """Remove our user's segments that no process is attached to and whose maker has ended.

    For a user of engines' alone: nothing tells what another program keeps from an engine's.
    """
    libc = ctypes.CDLL(None)
    with limits.suppress_absent(), open(listing, encoding="ascii", errors="replace") as lines:
        names = next(lines, "").split()
        for line in lines:
            one = dict(zip(names, map(int, line.split()), strict=False))
            # One whose maker lives may be attached to in a moment.
            if (
                one["uid"] == one["cuid"] == os.geteuid()
                and one["nattch"] == 0
                and not os.path.exists(f"/proc/{one['cpid']}")
            ):
                libc.shmctl(one["shmid"], IPC_RMID, None)
