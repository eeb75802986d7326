"""Where the daemon keeps its files: systemd's directories, else root's or the user's."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from caovand.adapters.files import trust
from caovand.adapters.files.safe_files import DISK_FULL_ERRORS, takes_nothing

SERVICE = "caovan"
ROOT_SYSTEM = "caovan-root"
"""Root's folders: the service's user owns the service's folders, and could plant links there."""

MIN_BYTES = 16 << 10  # with less free space, even our smallest file does not fit


def remedy(path: Path, number: int | None) -> str:
    """The remedy for a `path` that cannot be written, by its errno."""
    if number in DISK_FULL_ERRORS:
        return f"free some space there (`df -h {path}`)"
    if number == errno.EROFS:
        return "check that disk for faults (`journalctl -k`), then mount it writable"
    return (
        "correct its permissions, or set RUNTIME_DIRECTORY, STATE_DIRECTORY, CACHE_DIRECTORY and"
        " LOGS_DIRECTORY"
    )


@dataclass(frozen=True)
class Directories:
    """`runtime` has sockets and the lock, `state` everything that must outlive the daemon."""

    runtime: Path
    state: Path
    cache: Path
    logs: Path

    def make(self, engine: int | None = None) -> None:
        """Create missing ones; raises OSError if that is forbidden, or if others can change them.

        The cache may also belong to the user `engine`, as which engines run. On a full or read-only
        disk, state, cache and logs may stay missing; see `unwritable`.
        """
        self._check(engine)
        self.runtime.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path, mode in ((self.state, 0o750), (self.cache, 0o755), (self.logs, 0o750)):
            try:
                path.mkdir(mode=mode, parents=True, exist_ok=True)
            except OSError as problem:
                if not takes_nothing(problem):
                    raise
        self._check(engine)  # another process may have created it first
        if (owner := self.runtime.stat().st_uid) != os.getuid():
            raise PermissionError(
                f"cannot use {self.runtime}: it belongs to uid {owner}; remove it, or set "
                "RUNTIME_DIRECTORY to your own folder"
            )

    def _check(self, engine: int | None) -> None:
        """Raise PermissionError if another user could plant links, sockets or files."""
        for name, folder in asdict(self).items():
            owners = {0, os.getuid()}
            if name == "cache" and engine is not None:
                owners.add(engine)
            doubt = trust.find_doubt(folder, owners, groups=True)
            if doubt is None:
                continue
            variable = f"{name.upper()}_DIRECTORY"
            raise PermissionError(
                f"cannot use {doubt.path}: it {doubt.fact}; remove it, or set {variable} to your "
                "own folder"
            )

    def unwritable(self) -> dict[Path, str]:
        """Folders on full or read-only disks, each with its consequence and remedy; blocking.

        It does not write, so that a sleeping disk stays asleep.
        """
        losses = (
            (self.runtime, "no new sockets"),
            (
                self.state,
                "modes, degraded plans, incidents and metrics are not kept; if this daemon is "
                "killed, the next one may not find its engine",
            ),
            (self.cache, "the engine may fail to compile"),
            (self.logs, "engine.log has gaps"),
        )
        found: dict[Path, str] = {}
        for path, loss in losses:
            if number := unwritable_errno(path):
                fact = os.strerror(number)
                help = remedy(path, number)
                found.setdefault(path, f"cannot write to {path}: {fact}: {loss}; {help}")
        return found


def unwritable_errno(path: Path) -> int:
    """The errno that a write to `path` or its nearest parent would fail with; 0 if there is
    room."""
    for place in (path, *path.parents):
        try:
            disk = os.statvfs(place)
        except OSError:
            continue
        if disk.f_flag & os.ST_RDONLY:
            return errno.EROFS
        no_room = disk.f_blocks and disk.f_bavail * disk.f_frsize < MIN_BYTES
        no_inodes = disk.f_files and not disk.f_favail
        return errno.ENOSPC if no_room or no_inodes else 0
    return 0


def directories(environ: Mapping[str, str], uid: int, *, system: str = SERVICE) -> Directories:
    """The four directories for this environment; does not create them.

    systemd sets RUNTIME_DIRECTORY and the others; without it root gets /run/`system` and so on,
    a user the XDG base directories.
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
        # systemd joins several directories of a unit with colons; the first is ours.
        # The engine runs in another folder, so relative paths must not reach it.
        value = environ.get(variable)
        return Path(value.split(":")[0]).absolute() if value else default

    return Directories(
        chosen("RUNTIME_DIRECTORY", own.runtime),
        chosen("STATE_DIRECTORY", own.state),
        chosen("CACHE_DIRECTORY", own.cache),
        chosen("LOGS_DIRECTORY", own.logs),
    )


def own_directories(environ: Mapping[str, str], uid: int) -> Directories:
    """The directories for an interactive command: as `directories`, but root has its own."""
    return directories(environ, uid, system=ROOT_SYSTEM)
