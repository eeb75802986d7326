"""Where the daemon keeps things: systemd's directories, else those of root or of a user."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from caovand.adapters import trust
from caovand.adapters.safe_files import FULL, takes_nothing

SERVICE = "caovan"
OF_ROOT = "caovan-root"
"""Root's own: the service's folders belong to its user, who could lead root elsewhere."""

LEAST_BYTES = 16 << 10  # less room takes none of our files


def remedy(path: Path, number: int | None) -> str:
    """What helps where `path` cannot be written for the reason `errno` gives."""
    if number in FULL:
        return f"free some room there (`df -h {path}`)"
    if number == errno.EROFS:
        return "look for faults of that disk (`journalctl -k`), and mount it writable"
    return (
        "correct its permissions, or set RUNTIME_DIRECTORY, STATE_DIRECTORY, CACHE_DIRECTORY and"
        " LOGS_DIRECTORY"
    )


@dataclass(frozen=True)
class Directories:
    """`runtime` holds sockets and the lock, `state` what must outlive the daemon."""

    runtime: Path
    state: Path
    cache: Path
    logs: Path

    def make(self) -> None:
        """Create what is missing; OSError where that is not allowed, or not for us alone.

        State, cache and logs may be missing on a disk that takes nothing: `unwritable` says so.
        """
        self._check()
        self.runtime.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path, mode in ((self.state, 0o750), (self.cache, 0o755), (self.logs, 0o750)):
            try:
                path.mkdir(mode=mode, parents=True, exist_ok=True)
            except OSError as problem:
                if not takes_nothing(problem):
                    raise
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

    def unwritable(self) -> dict[Path, str]:
        """The folders on disks that take nothing, each with what is lost and the remedy (blocks).

        Nothing is written to find out: a spinning disk may sleep.
        """
        losses = (
            (self.runtime, "no new sockets"),
            (
                self.state,
                "modes, degraded plans and incidents are not kept; if this daemon is killed, the"
                " next may not find its engine",
            ),
            (self.cache, "the engine may fail to compile"),
            (self.logs, "engine.log has gaps"),
        )
        found: dict[Path, str] = {}
        for path, loss in losses:
            if number := _takes_nothing(path):
                fact = os.strerror(number)
                help = remedy(path, number)
                found.setdefault(path, f"cannot write to {path}: {fact}: {loss}; {help}")
        return found


def _takes_nothing(path: Path) -> int:
    """The errno with which the disk of `path`, or of its nearest parent, takes no more; else 0."""
    for place in (path, *path.parents):
        try:
            disk = os.statvfs(place)
        except OSError:
            continue
        if disk.f_flag & os.ST_RDONLY:
            return errno.EROFS
        no_room = disk.f_blocks and disk.f_bavail * disk.f_frsize < LEAST_BYTES
        no_inodes = disk.f_files and not disk.f_favail
        return errno.ENOSPC if no_room or no_inodes else 0
    return 0


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
