"""Decide who can change the file at a path, and as which user root may run an interpreter.

There is one policy: root runs and obeys only files that nobody but root can change. If one other
user could have named or changed an interpreter, root probes it as that user and refuses it as an
engine. The module imports nothing of caovan, so everything may import it.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_LINKS = 40
NOBODY_UID = 65534
# The part of root's environment that another user's program may see.
SAFE_VARIABLES = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "CUDA_HOME", "CC", "LD_LIBRARY_PATH")
HOMES = ("HOME", "PYTHONUSERBASE", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")


class Distrusted(Exception):
    """Root must not run this; `args` are what cannot be done, why, and the remedy."""

    def __str__(self) -> str:
        cannot, fact, remedy = self.args
        return f"cannot {cannot}: {fact}; {remedy}"


@dataclass(frozen=True)
class Untrusted:
    """Why others can change the file at a path; `uid` is None for a group or everybody."""

    path: Path
    fact: str
    uid: int | None = None

    def __str__(self) -> str:
        return f"{self.path} {self.fact}"


@dataclass(frozen=True)
class RunAsUser:
    """A user to run a program as."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    def popen(self, environ: Mapping[str, str]) -> dict[str, Any]:
        """Arguments for subprocess; in a new session, since it could type into our terminal."""
        env = {name: value for name, value in environ.items() if name in SAFE_VARIABLES}
        return {
            "user": self.uid,
            "group": self.gid,
            "extra_groups": self.groups,
            "start_new_session": True,
            "env": {**env, "HOME": self.home},
        }


def find_doubt(
    path: Path, owners: Collection[int] = (0,), *, groups: bool = False
) -> Untrusted | None:
    """Why users other than `owners` could replace this path; None if they cannot.

    Every folder and link on the way counts. With `groups` a group may write too: its owner chose
    the members, as for /var/log. A missing file is judged by its folder.
    """
    own = {0, *(_look_up_account(uid)[0] for uid in owners if uid)}
    try:
        for place, seen in _path_components(path):
            if seen.st_uid not in owners:
                return Untrusted(place, f"belongs to uid {seen.st_uid}", seen.st_uid)
            if stat.S_ISLNK(seen.st_mode):
                continue
            # In a sticky folder only a file's owner can replace it.
            closed = stat.S_ISDIR(seen.st_mode) and bool(seen.st_mode & stat.S_ISVTX)
            if seen.st_mode & stat.S_IWOTH and not closed:
                return Untrusted(place, "can be changed by every user")
            if seen.st_mode & stat.S_IWGRP and not (closed or groups or seen.st_gid in own):
                return Untrusted(place, f"can be changed by group {seen.st_gid}")
    except OSError as problem:
        return Untrusted(Path(problem.filename or path), f"cannot be checked: {problem.strerror}")
    return None


def probing_user(python: str, named_by: Path | None) -> RunAsUser | None:
    """The user to probe this interpreter as, None for ourselves; raises Distrusted if nobody may.

    `named_by` is the file that names it, None if we chose it ourselves.
    """
    if os.geteuid() != 0:
        return None
    doubt = _find_doubts(python, named_by, (0,))
    if doubt is not None and doubt.uid is not None:
        worse = _find_doubts(python, named_by, (0, doubt.uid))
        if worse is None:
            return user(doubt.uid)
        doubt = worse
    if doubt is None:
        return None
    raise _refusal(python, doubt)


def require(python: str, named_by: Path | None) -> None:
    """Raise Distrusted if root would run an engine that another user can change."""
    if os.geteuid() == 0 and (doubt := _find_doubts(python, named_by, (0,))) is not None:
        raise _refusal(python, doubt)


def is_anothers(path: Path) -> bool:
    """Whether we are root and another user can change this path."""
    return os.geteuid() == 0 and find_doubt(path) is not None


def user(uid: int) -> RunAsUser:
    """The user with this uid, with or without an account."""
    gid, home, name = _look_up_account(uid)
    groups = os.getgrouplist(name, gid) if name else [gid]
    return RunAsUser(uid, gid, tuple(groups), home)


def own_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Our environment for programs that we start; for root, without folders of other users.

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
    """Find a program in PATH: never in the current folder, and for root only in root's folders."""
    return _which(name, _search_path(environ))


def find_root_owned_program(name: str, environ: Mapping[str, str]) -> str | None:
    """Find a program in PATH that only root can change, for any user of ours."""
    path = _which(name, filter(_is_ours, _search_path(environ)))
    return path if path and find_doubt(Path(path)) is None else None


def _which(name: str, folders: Iterable[str]) -> str | None:
    return shutil.which(name, path=os.pathsep.join(folders) or os.devnull)


def _search_path(environ: Mapping[str, str]) -> Iterator[str]:
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        if os.path.isabs(folder) and (os.geteuid() != 0 or _is_ours(folder)):
            yield folder


def _is_ours(folder: str) -> bool:
    return os.path.isabs(folder) and find_doubt(Path(folder)) is None


def _find_doubts(python: str, named_by: Path | None, owners: Collection[int]) -> Untrusted | None:
    """The first doubt about the file that names an interpreter, and about the files it reads
    first."""
    places = ([named_by] if named_by else []) + list(_interpreter_files(Path(python)))
    return next((doubt for place in places if (doubt := find_doubt(place, owners))), None)


def _interpreter_files(python: Path) -> Iterator[Path]:
    """An interpreter, and the files of its virtual environment that Python reads first."""
    yield python
    folder = python.parent.parent
    settings = folder / "pyvenv.cfg"
    if not settings.is_file():
        return
    yield settings
    # Safe to read: `_find_doubts` has checked it before it asks for the next one.
    for line in settings.read_text(errors="replace").splitlines():
        name, _, home = line.partition("=")
        if name.strip() == "home":
            yield Path(home.strip())
    for site in folder.glob("lib/python3*/site-packages"):
        yield site
        yield from site.iterdir()


def _refusal(python: str, found: Untrusted) -> Distrusted:
    remedy = "chown it to root and `chmod go-w` it, or run this as the user who owns it"
    return Distrusted(f"run {python} as root", str(found), remedy)


def _look_up_account(uid: int) -> tuple[int, str, str]:
    """A user's group, home and name."""
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return NOBODY_UID, "/", ""
    return account.pw_gid, account.pw_dir, account.pw_name


def _path_components(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file on the way to a path, from the root on, including links and their targets."""
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
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(here / name))
        if target.is_absolute():
            here = Path("/")
        todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)
