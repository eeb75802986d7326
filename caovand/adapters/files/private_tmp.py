"""Paths below a /tmp that systemd made for this service alone (PrivateTmp).

The service cannot see files in the machine's own /tmp, though everybody else can.
"""

from __future__ import annotations

import os
from pathlib import Path

from caovand.adapters.files.safe_files import read_or_empty

MOUNTS = Path("/proc/self/mountinfo")
FOLDERS = ("/tmp", "/var/tmp")
PRIVATE_TMP_PREFIX = "/systemd-private-"
"""The prefix of the folder that systemd mounts there, within its own file system."""


def remedy(path: str, mounts: Path = MOUNTS) -> str:
    """The remedy for a path that PrivateTmp hides; empty if it is missing for another reason."""
    place = os.path.realpath(path)
    folder = next((tmp for tmp in FOLDERS if place.startswith(f"{tmp}/")), "")
    if not folder or os.path.exists(path) or folder not in _find_private_folder(mounts):
        return ""
    return (
        f"the service has its own {folder} (PrivateTmp): move the file to another folder, such "
        "as /srv, or share the machine's folder with `sudo systemctl edit caovan`: [Service] "
        "PrivateTmp=no"
    )


def _find_private_folder(mounts: Path) -> set[str]:
    """Find where a private folder of the service is mounted, from fields four and five of each
    line."""
    fields = [line.split(" ") for line in read_or_empty(mounts).splitlines()]
    return {line[4] for line in fields if len(line) > 4 and PRIVATE_TMP_PREFIX in line[3]}
