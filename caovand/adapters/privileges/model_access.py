"""Whether the engine's own user may read a model and fill the hub's cache, and how to allow it.

The daemon's permission says nothing about its engines: they run as another user.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from shlex import quote

from caovand.adapters.model_folder import ModelProblem, folder_of
from caovand.adapters.privileges import engine_user
from caovand.adapters.privileges.engine_user import as_engine
from caovand.core.facts.inventory import ModelCard

READ_SUFFIXES = (
    ".bin",
    ".gguf",
    ".jinja",
    ".json",
    ".model",
    ".py",
    ".safetensors",
    ".tiktoken",
    ".txt",
)
"""Suffixes of the files in a model's folder that engines read."""
ACL = "system.posix_acl_access"
ENTER, LIST, OPEN = "enter", "list", "read"
NOT_WRITABLE, READ_ONLY = "write to", "write to, because it is read-only for the service,"


def check(card: ModelCard, env: Mapping[str, str]) -> None:
    """Raise ModelProblem if engines run as a user who cannot read this model, or cannot download
    it.
    """
    user = engine_user.current()
    if user is None:
        return
    place, what, asks = Path(card.path), f"read {card.path}", find_barrier
    if not card.folder:
        kept, cache = folder_of(card), hub_cache(env)
        if kept is None and cache is None:
            return
        place = kept or cache or place
        if kept is None:
            what, asks = f"download {card.path} to {cache}", write_barrier
    barrier: list[str] = []
    with contextlib.suppress(OSError):  # a slow disk: the engine will find out
        barrier = as_engine(asks, str(place))
    if barrier:
        denied, verb = barrier
        fact = f"engines run as {user.name}, who cannot {verb} {denied}"
        raise ModelProblem(what, fact, remedy(user.name, place, denied, verb))


def hub_cache(env: Mapping[str, str]) -> Path | None:
    """The folder where an engine with this environment stores hub models, if a variable sets it."""
    value = env.get("HF_HUB_CACHE") or env.get("HF_HOME") or ""
    return Path(value) if os.path.isabs(value) else None


def remedy(user: str, place: Path, denied: str, verb: str) -> str:
    """The command that grants access; for a folder on the way, without listing its contents."""
    if verb == READ_ONLY:
        return (
            "allow it: `sudo systemctl edit caovan`, with [Service] and"
            f" ReadWritePaths={place}; then restart it"
        )
    if verb == NOT_WRITABLE:
        return f"run `sudo chown -R {user} {quote(denied)}`, or set another HF_HOME"
    if group := _group(denied, stat.S_IXGRP if verb == ENTER else stat.S_IRGRP):
        return f"run `sudo usermod -aG {group} {user}`, then restart the service"
    if verb == ENTER:
        acl, mode, path = f"setfacl -m u:{user}:x", "chmod o+x", quote(denied)
    else:
        acl, mode, path = f"setfacl -R -m u:{user}:rX", "chmod -R o+rX", quote(str(place))
    return f"run `sudo {acl} {path}`, or allow every user: `sudo {mode} {path}`"


def _group(place: str, bit: int) -> str:
    """The group that has access, unless it is root's."""
    with contextlib.suppress(OSError, KeyError):
        seen = os.stat(place)
        if seen.st_gid and seen.st_mode & bit:
            return grp.getgrgid(seen.st_gid).gr_name
    return ""


def closed_to(name: str, folder: Path) -> str:
    """The first path that a user cannot enter or read, by its mode; empty if there is none.

    For a caller who runs as another user. A path with an ACL is assumed to be open: a start finds
    out.
    """
    try:
        user = pwd.getpwnam(name)
        groups = set(os.getgrouplist(user.pw_name, user.pw_gid))
        for place in (*reversed(folder.parents), folder):
            if not _has_permission(place, stat.S_IXOTH, user.pw_uid, groups):
                return str(place)
        for file in folder.iterdir():
            if file.suffix in READ_SUFFIXES and not _has_permission(
                file, stat.S_IROTH, user.pw_uid, groups
            ):
                return str(file)
    except (KeyError, OSError):
        return ""
    return ""


def _has_permission(path: Path, bit: int, uid: int, groups: Collection[int]) -> bool:
    """Whether a user has the permission that `bit` grants to others."""
    with contextlib.suppress(OSError):
        if os.getxattr(path, ACL):
            return True
    seen = path.stat()
    if seen.st_uid == uid:
        return bool(seen.st_mode & bit << 6)
    return bool(seen.st_mode & (bit << 3 if seen.st_gid in groups else bit))


def find_barrier(path: str) -> list[str]:
    """The first path that keeps our own user from reading a model, and which access it denies."""
    for place in _folders_above(path):
        if not os.access(place, os.X_OK):
            return [place, ENTER]
    if not os.path.isdir(path):
        return [] if os.access(path, os.R_OK) else [path, OPEN]
    if not os.access(path, os.R_OK):
        return [path, LIST]
    if not os.access(path, os.X_OK):
        return [path, ENTER]
    files = sorted(
        os.path.join(path, name) for name in os.listdir(path) if name.endswith(READ_SUFFIXES)
    )
    closed = (file for file in files if os.path.isfile(file) and not os.access(file, os.R_OK))
    # The hub's caches consist of links, whose targets may lie in a closed folder.
    linked = (barrier for file in files if os.path.islink(file) and (barrier := _in_link(file)))
    return next(linked, None) or next(([file, OPEN] for file in closed), [])


def write_barrier(path: str) -> list[str]:
    """The first path that keeps our own user from writing to a folder, or from creating it."""
    place = next(
        ancestor for ancestor in (path, *map(str, Path(path).parents)) if os.path.lexists(ancestor)
    )
    for folder in (*_folders_above(place), place):
        if not os.access(folder, os.X_OK):
            return [folder, ENTER]
    if os.access(place, os.W_OK):
        return []
    read_only = os.statvfs(place).f_flag & os.ST_RDONLY
    return [place, READ_ONLY if read_only else NOT_WRITABLE]


def _in_link(file: str) -> list[str]:
    return next(
        ([place, ENTER] for place in _folders_above(file) if not os.access(place, os.X_OK)), []
    )


def _folders_above(path: str) -> Iterator[str]:
    """The folders above a path and above its links' targets, topmost first."""
    for end in (os.path.abspath(path), os.path.realpath(path)):
        yield from map(str, reversed(Path(end).parents))
