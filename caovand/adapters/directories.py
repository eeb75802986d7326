"""Where the daemon keeps things: systemd's directories, else those of root or of a user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from caovand.adapters import trust

SERVICE = "caovan"
OF_ROOT = "caovan-root"
"""Root's own: the service's folders belong to its user, who could lead root elsewhere."""


@dataclass(frozen=True)
class Directories:
    """`runtime` holds sockets and the lock, `state` what must outlive the daemon."""

    runtime: Path
    state: Path
    cache: Path
    logs: Path

    def make(self) -> None:
        """Create what is missing; OSError where that is not allowed, or not for us alone."""
        self._check()
        for path, mode in ((self.runtime, 0o755), (self.state, 0o750), (self.cache, 0o755)):
            path.mkdir(mode=mode, parents=True, exist_ok=True)
        self.logs.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._check()  # somebody may have been quicker
        if (owner := self.runtime.stat().st_uid) != os.getuid():
            raise PermissionError(
                f"cannot use {self.runtime}: it belongs to uid {owner}; remove it, or set"
                " RUNTIME_DIRECTORY to a folder of your own"
            )

    def _check(self) -> None:
        """PermissionError where somebody else could put links, sockets or files in our place."""
        for name, folder in asdict(self).items():
            found = trust.doubt(folder, (0, os.getuid()), groups=True)
            if found is None:
                continue
            variable = f"{name.upper()}_DIRECTORY"
            raise PermissionError(
                f"cannot use {found.path}: it {found.fact}; remove it, or set {variable} to a"
                " folder of your own"
            )


def directories(environ: Mapping[str, str], uid: int, *, system: str = SERVICE) -> Directories:
    """The four directories for this environment; nothing is created.

    systemd sets RUNTIME_DIRECTORY and its like; without it root gets those of `system`, /run/caovan
    and so on, a user the XDG base directories.
    """
    home = Path(environ.get("HOME") or f"/tmp/caovan-{uid}")
    if uid == 0:
        own = Directories(
            Path("/run", system),
            Path("/var/lib", system, "state"),
            Path("/var/cache", system),
            Path("/var/log", system),
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


def own_directories(environ: Mapping[str, str], uid: int) -> Directories:
    """The directories of who types a command: as `directories`, but root's are its own."""
    return directories(environ, uid, system=OF_ROOT)
