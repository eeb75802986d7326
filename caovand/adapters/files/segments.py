"""Remove segments of System V shared memory that a killed engine left behind: they have no file."""

from __future__ import annotations

import ctypes
import os

from caovand.core import limits

LISTING = "/proc/sysvipc/shm"
IPC_RMID = 0


def remove_unused(listing: str = LISTING) -> None:
    """Remove our user's segments that no process is attached to and whose creator has ended.

    Only for a user that runs nothing but engines: nothing distinguishes another program's segments.
    """
    libc = ctypes.CDLL(None)
    with limits.suppress_absent(), open(listing, encoding="ascii", errors="replace") as lines:
        names = next(lines, "").split()
        for line in lines:
            one = dict(zip(names, map(int, line.split()), strict=False))
            # If its creator lives, someone may attach to it in a moment.
            if (
                one["uid"] == one["cuid"] == os.geteuid()
                and one["nattch"] == 0
                and not os.path.exists(f"/proc/{one['cpid']}")
            ):
                libc.shmctl(one["shmid"], IPC_RMID, None)
