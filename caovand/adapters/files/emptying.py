"""Remove files and folders that an engine can replace while we remove them.

An engine with our user id can replace any folder that it can write to with a link to one of ours.
So each step names a single entry of a folder that is open and was not a link. Folders at any depth
are moved to the top one at a time: a thousand levels take neither a thousand descriptors nor a deep
stack, and the kernel refuses to move a mount point, whose contents stay.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_all(paths: Iterable[str]) -> list[str]:
    """Remove files and folders; return those that could not be removed."""
    left: list[str] = []
    for path in paths:
        try:
            try:
                os.unlink(path)
            except IsADirectoryError:
                empty(path)
                os.rmdir(path)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(path)
    return left


def empty(folder: str) -> list[str]:
    """Empty a folder; return what could not be removed. A link, or another user's folder, is not
    ours to empty."""
    try:
        top = os.open(folder, FOLDER)
    except OSError:
        return []
    try:
        if os.fstat(top).st_uid != os.geteuid():
            return []
        return [os.path.join(folder, name) for name in _empty_open_folder(top)]
    finally:
        os.close(top)


def _empty_open_folder(top: int) -> list[str]:
    """Empty an open folder; return the names that could not be removed."""
    folders, left = _remove_files(top, top)
    while folders:
        name = folders.pop()
        try:
            inner = os.open(name, FOLDER, dir_fd=top)
            try:
                folders += _remove_files(inner, top)[0]
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)
        except OSError:
            left.append(name)
    return left


def _remove_files(folder: int, top: int) -> tuple[list[str], list[str]]:
    """Remove an open folder's files and move its folders to `top`.

    Returns the new names of the folders, and the names of entries neither removed nor moved.
    """
    moved, left = list[str](), list[str]()
    for name in os.listdir(folder):
        try:
            try:
                os.unlink(name, dir_fd=folder)
            except IsADirectoryError:
                fresh = f"removed-{secrets.token_hex(8)}"
                os.rename(name, fresh, src_dir_fd=folder, dst_dir_fd=top)
                moved.append(fresh)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(name)
    return moved, left
