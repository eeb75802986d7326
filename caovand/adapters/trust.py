"""Who can change what lies at a path, and as whom root may run an interpreter that is named to it.

The one policy: root runs and obeys what only root can change. An interpreter that one other user
could have named or changed is run as that user, where it is only asked; as an engine it is refused.
Imports nothing of caovan: everything may stand on it.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_LINKS = 40
NOBODY = 65534
# What a program of another user may know of root's environment.
HARMLESS = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "CUDA_HOME", "CC", "LD_LIBRARY_PATH")
HOMES = ("HOME", "PYTHONUSERBASE", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")


class Distrusted(Exception):
    """What root must not run; says why, and what to do."""


@dataclass(frozen=True)
class Doubt:
    """Why somebody else decides what lies at a path; `uid` is None for a group or everybody."""

    path: Path
    fact: str
    uid: int | None = None

    def __str__(self) -> str:
        return f"{self.path} {self.fact}"


@dataclass(frozen=True)
class User:
    """A user to run something as."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    def popen(self, environ: Mapping[str, str]) -> dict[str, Any]:
        """Arguments for subprocess; away from our terminal, where it could type for us."""
        env = {name: value for name, value in environ.items() if name in HARMLESS}
        return {
            "user": self.uid,
            "group": self.gid,
            "extra_groups": self.groups,
            "start_new_session": True,
            "env": {**env, "HOME": self.home},
        }


def doubt(path: Path, owners: Collection[int] = (0,), *, groups: bool = False) -> Doubt | None:
    """Why others than `owners` could put something else there, None where they cannot.

    Every folder and link on the way counts. With `groups` a group may write, too: its members
    were chosen by whoever owns it, as those of /var/log. What is not there yet is its folder's.
    """
    own = {0, *(_account(uid)[0] for uid in owners if uid)}
    try:
        for place, seen in _way(path):
            if seen.st_uid not in owners:
                return Doubt(place, f"belongs to uid {seen.st_uid}", seen.st_uid)
            if stat.S_ISLNK(seen.st_mode):
                continue
            # In a sticky folder only a file's owner can replace it.
            closed = stat.S_ISDIR(seen.st_mode) and bool(seen.st_mode & stat.S_ISVTX)
            if seen.st_mode & stat.S_IWOTH and not closed:
                return Doubt(place, "may be changed by everybody")
            if seen.st_mode & stat.S_IWGRP and not (closed or groups or seen.st_gid in own):
                return Doubt(place, f"may be changed by group {seen.st_gid}")
    except OSError as problem:
        return Doubt(Path(problem.filename or path), f"cannot be looked at: {problem.strerror}")
    return None


def asker(python: str, named_by: Path | None) -> User | None:
    """As whom to ask this interpreter, None as ourselves; Distrusted where as nobody.

    `named_by` is the file that names it, None where we chose it ourselves.
    """
    if os.geteuid() != 0:
        return None
    found = _doubts(python, named_by, (0,))
    if found is not None and found.uid is not None:
        worse = _doubts(python, named_by, (0, found.uid))
        if worse is None:
            return user(found.uid)
        found = worse
    if found is None:
        return None
    raise Distrusted(_refusal(python, found))


def require(python: str, named_by: Path | None) -> None:
    """Distrusted where root would run, as an engine, what another decides."""
    if os.geteuid() == 0 and (found := _doubts(python, named_by, (0,))) is not None:
        raise Distrusted(_refusal(python, found))


def is_anothers(path: Path) -> bool:
    """Whether we are root and another can change what lies there."""
    return os.geteuid() == 0 and doubt(path) is not None


def user(uid: int) -> User:
    """The user of this number, with or without an account."""
    gid, home, name = _account(uid)
    groups = os.getgrouplist(name, gid) if name else [gid]
    return User(uid, gid, tuple(groups), home)


def own_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Our environment for programs we start: as root no folder in it is another's.

    sudo may keep the caller's HOME, where pip, uv and Python look for configuration and modules.
    """
    kept = dict(environ)
    if os.geteuid() != 0:
        return kept
    for name in HOMES:
        if name in kept and not _is_ours(kept[name]):
            del kept[name]
    kept.setdefault("HOME", pwd.getpwuid(0).pw_dir)
    kept["PATH"] = os.pathsep.join(_search_path(environ))
    if "PYTHONPATH" in kept:
        kept["PYTHONPATH"] = os.pathsep.join(filter(_is_ours, kept["PYTHONPATH"].split(os.pathsep)))
    return kept


def program(name: str, environ: Mapping[str, str]) -> str | None:
    """Where PATH has this program: never in the current folder, for root in none of another's."""
    return shutil.which(name, path=os.pathsep.join(_search_path(environ)) or os.devnull)


def _search_path(environ: Mapping[str, str]) -> Iterator[str]:
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        if os.path.isabs(folder) and (os.geteuid() != 0 or _is_ours(folder)):
            yield folder


def _is_ours(folder: str) -> bool:
    return os.path.isabs(folder) and doubt(Path(folder)) is None


def _doubts(python: str, named_by: Path | None, owners: Collection[int]) -> Doubt | None:
    """The first doubt in what names an interpreter and in what it runs at its start."""
    places = ([named_by] if named_by else []) + list(_parts(Path(python)))
    return next((found for place in places if (found := doubt(place, owners))), None)


def _parts(python: Path) -> Iterator[Path]:
    """An interpreter, and what of its virtual environment Python reads before anything else."""
    yield python
    folder = python.parent.parent
    settings = folder / "pyvenv.cfg"
    if not settings.is_file():
        return
    yield settings
    # Nobody else could write it, or its doubt was found just now.
    for line in settings.read_text(errors="replace").splitlines():
        name, _, home = line.partition("=")
        if name.strip() == "home":
            yield Path(home.strip())
    for site in folder.glob("lib/python3*/site-packages"):
        yield site
        yield from site.iterdir()


def _refusal(python: str, found: Doubt) -> str:
    remedy = "chown it to root and `chmod go-w` it, or run this as the user whom it belongs to"
    return f"cannot run {python} as root: {found}; {remedy}"


def _account(uid: int) -> tuple[int, str, str]:
    """Group, home and name of a user."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return NOBODY, "/", ""
    return found.pw_gid, found.pw_dir, found.pw_name


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything passed on the way to a path, links and what they lead to, from the root on."""
    here, links = Path("/"), 0
    todo = list(reversed(Path(os.getcwd(), path).parts[1:]))
    yield here, os.lstat(here)
    while todo:
        name = todo.pop()
        if name == "..":
            here = here.parent
            continue
        try:
            seen = os.lstat(here / name)
        except (FileNotFoundError, NotADirectoryError):
            return
        yield here / name, seen
        if not stat.S_ISLNK(seen.st_mode):
            here /= name
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(here / name))
        if target.is_absolute():
            here = Path("/")
        todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)
