"""Paths below a /tmp that systemd made for this service alone (PrivateTmp).

What lies in the machine's own /tmp is not there for the service, though everybody else sees it.
"""

from __future__ import annotations

import os
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
FOLDERS = ("/tmp", "/var/tmp")
OURS = "/systemd-private-"
"""Begins the folder that systemd mounts there, in the mount's own file system."""


def remedy(path: str, mounts: Path = MOUNTS) -> str:
    """What to do about a path that is missing because of it; empty where it is not."""
    place = os.path.realpath(path)
    folder = next((tmp for tmp in FOLDERS if place.startswith(f"{tmp}/")), "")
    if not folder or os.path.exists(path) or folder not in _private(mounts):
        return ""
    return (
        f"the service has a {folder} of its own (PrivateTmp): move it to another folder, such as"
        " /srv, or let the service see the machine's with `sudo systemctl edit caovan`:"
        " [Service] PrivateTmp=no"
    )


def _private(mounts: Path) -> set[str]:
    """Where a folder of the service's own is mounted; the fourth and fifth field of each line."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return set()
    fields = [line.split(" ") for line in lines]
    return {line[4] for line in fields if len(line) > 4 and OURS in line[3]}
