"""Where the daemon keeps things: systemd's directories, else those of root or of a user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Directories:
    """`runtime` holds sockets and the lock, `state` what must outlive the daemon."""

    runtime: Path
    state: Path
    cache: Path
    logs: Path

    def make(self) -> None:
        """Create what is missing; OSError where that is not allowed."""
        for path, mode in ((self.runtime, 0o755), (self.state, 0o750), (self.cache, 0o755)):
            path.mkdir(mode=mode, parents=True, exist_ok=True)
        self.logs.mkdir(mode=0o750, parents=True, exist_ok=True)
        # Whoever owns the folder of the sockets, or the one around it, could put others there: in
        # /tmp somebody may have made it before us.
        for folder, fine in ((self.runtime, ()), (self.runtime.parent, (0,))):
            owner = folder.stat().st_uid
            if owner not in (os.getuid(), *fine):
                raise PermissionError(
                    f"cannot use {folder}: it belongs to uid {owner}; remove it, or set"
                    " RUNTIME_DIRECTORY to a folder of your own"
                )


def directories(environ: Mapping[str, str], uid: int) -> Directories:
    """The four directories for this environment; nothing is created.

    systemd sets RUNTIME_DIRECTORY and its like; without it root gets /run/caovan and so on, a
    user the XDG base directories.
    """
    home = Path(environ.get("HOME") or f"/tmp/caovan-{uid}")
    if uid == 0:
        own = Directories(
            Path("/run/caovan"),
            Path("/var/lib/caovan/state"),
            Path("/var/cache/caovan"),
            Path("/var/log/caovan"),
        )
    else:
        state = Path(environ.get("XDG_STATE_HOME") or home / ".local/state") / "caovan"
        own = Directories(
            Path(environ.get("XDG_RUNTIME_DIR") or f"/tmp/caovan-{uid}") / "caovan",
            state,
            Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "caovan",
            state / "log",
        )

    def chosen(variable: str, default: Path) -> Path:
        # With several directories in a unit systemd joins them with colons; the first is ours.
        # The engine works in another folder than we do: nothing relative must reach it.
        given = environ.get(variable)
        return Path(given.split(":")[0]).absolute() if given else default

    return Directories(
        chosen("RUNTIME_DIRECTORY", own.runtime),
        chosen("STATE_DIRECTORY", own.state),
        chosen("CACHE_DIRECTORY", own.cache),
        chosen("LOGS_DIRECTORY", own.logs),
    )
