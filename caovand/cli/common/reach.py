"""Connect to the daemon's sockets, only in a folder that only its owner can change.

The process that answers there controls what we print, and what root does next.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
import struct
from pathlib import Path

from caovand.adapters.admission.door import peer_uid
from caovand.cli.common.errors import CommandError, Exit

SYSTEM_RUNTIME = Path("/run/caovan")
_TIMEVAL = struct.Struct("ll")


class NoDaemon(CommandError):
    """No daemon is listening, possibly not yet."""


def connect(path: Path, timeout_s: float, *, named: bool) -> socket.socket:
    """A blocking connection to the socket at `path`; raises CommandError.

    `named` says that the operator named the folder, and so vouches for its owner.
    """
    owner = _check_folder(path.parent, named=named)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A stopped daemon accepts no connections: once its queue is full, connecting would block
        # forever.
        timeout = _TIMEVAL.pack(*divmod(int(timeout_s * 1e6) + 1, 1_000_000))
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            link.setsockopt(socket.SOL_SOCKET, option, timeout)
        link.connect(str(path))
        peer = peer_uid(link)
        if peer not in (0, owner):
            raise CommandError(
                Exit.NOT_REACHABLE,
                f"cannot trust {path}: {user_name(peer)} listens there, the folder is"
                f" {user_name(owner)}'s",
                f"end that process and remove {path.parent}",
            )
    except CommandError:
        link.close()
        raise
    except OSError as problem:
        link.close()
        raise _unreachable_error(path, problem, timeout_s) from None
    return link


def _check_folder(folder: Path, *, named: bool) -> int:
    """The folder's owner; raises CommandError if another user could have put the sockets there."""
    try:
        seen = folder.stat()
        above = folder.resolve().parent.stat()
    except OSError as problem:
        raise _unreachable_error(folder, problem, 0.0) from None
    remedy = "remove it, or name the daemon's folder with --runtime"
    if seen.st_mode & 0o022:
        raise CommandError(
            Exit.NOT_REACHABLE,
            f"cannot trust {folder}: users other than {user_name(seen.st_uid)} can write there",
            f"chmod go-w {folder}",
        )
    if not named and seen.st_uid not in (0, os.getuid()) and not _is_roots_alone(above):
        text = f"cannot trust {folder}: it belongs to {user_name(seen.st_uid)}"
        raise CommandError(Exit.NOT_REACHABLE, text, remedy)
    return seen.st_uid


def _is_roots_alone(folder: os.stat_result) -> bool:
    """Whether only root controls a folder's entries, as in /run, where systemd creates ours."""
    return folder.st_uid == 0 and not folder.st_mode & 0o022


def _unreachable_error(path: Path, problem: OSError, timeout_s: float) -> CommandError:
    if isinstance(problem, PermissionError):
        return CommandError(
            Exit.NOT_PERMITTED,
            f"cannot use {path}: permission denied",
            "run it as root, or join the group: sudo usermod -aG caovan $USER (then log in again)",
        )
    if isinstance(problem, BlockingIOError):
        return CommandError(
            Exit.NOT_REACHABLE,
            f"cannot reach caovand at {path}: no connection was accepted within {timeout_s:.0f} s",
            "check `systemctl status caovan` and `journalctl -u caovan`",
        )
    refused = problem.errno == errno.ECONNREFUSED
    reason = "no daemon listens there" if refused else problem.strerror or str(problem)
    remedy = (
        "start it with `sudo systemctl start caovan`; for the daemon of `make run`, first run `."
        " .caovan/env`"
    )
    if SYSTEM_RUNTIME not in (path, path.parent):
        remedy = "start the caovand of this folder, or check --runtime and RUNTIME_DIRECTORY"
    return NoDaemon(Exit.NOT_REACHABLE, f"cannot reach caovand at {path}: {reason}", remedy)


def user_name(uid: int) -> str:
    """A user's name, or the number of a nameless user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
