"""The capabilities of this process, and dropping those that a unit grants only for the spawner."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

STATUS = Path("/proc/self/status")


def read_set(kind: str) -> int:
    """A capability set of this process, by its name in /proc; 0 if it is not shown; raises OSError.

    `kind` is such as "CapEff".
    """
    lines = STATUS.read_text(errors="replace").splitlines()
    return int(next((line.split()[1] for line in lines if line.startswith(f"{kind}:")), "0"), 16)


def drop_overrides() -> None:
    """Drop the two capabilities of a user who is not root, as far as the kernel permits.

    Others are the operator's choice, such as one to read models of other owners.
    """
    with contextlib.suppress(OSError):
        if os.getuid() == 0 or not (permitted := read_set("CapPrm")):
            return
        from caovand.adapters.privileges import spawner  # noqa: PLC0415  (few processes have any)

        if permitted & (lent := spawner.SETUID_AND_SETGID):
            kept = (read_set(name) & ~lent for name in ("CapEff", "CapPrm", "CapInh"))
            spawner.capabilities(*kept)
