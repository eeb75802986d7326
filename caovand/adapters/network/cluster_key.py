"""The file with a cluster's key, and the CURVE keys that both ends of a link derive from it."""

from __future__ import annotations

import errno
import grp
import os
import secrets
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85

from caovand.adapters.files import safe_files, trust
from caovand.core.cluster.key import SECRET_BYTES, BadKey, ClusterKey, parse

MODE = 0o640
MAX_BYTES = 4 << 10


class KeyPairs(NamedTuple):
    """Both CURVE key pairs of a cluster, each key as 40 bytes of Z85; repr shows none.

    `token` is for the engine's own processes.
    """

    head_public: bytes
    head_secret: bytes
    worker_public: bytes
    worker_secret: bytes
    token: str = ""

    def __repr__(self) -> str:
        return "KeyPairs(...)"


def new_key() -> ClusterKey:
    """Make a new random key."""
    return ClusterKey(secrets.token_bytes(SECRET_BYTES))


def read(path: Path) -> ClusterKey:
    """Read the key from a file that only root or we can change and others cannot read.

    Raises BadKey, with the remedy.
    """
    cannot = f"use the cluster key {path}"
    fix = f"chown root:caovan {path} && chmod {MODE:o} {path}"
    try:
        # Another user's link may point to a FIFO or a device: check before opening anything.
        if doubt := trust.find_doubt(path, (0, os.geteuid())):
            raise BadKey(cannot, str(doubt), _remedy(doubt, path, fix))
        descriptor = safe_files.open_regular(path)
        try:
            exposed = safe_files.describe_exposure(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        if exposed:
            raise BadKey(
                cannot,
                exposed,
                f"run `sudo chmod {MODE:o} {path}`, and create a new key if others may have read "
                "it",
            )
        return parse(safe_files.read_text(path, MAX_BYTES), str(path))
    except FileNotFoundError:
        raise BadKey(
            cannot,
            "the file does not exist",
            "`sudo caovanctl cluster init` on the head creates it; copy it to each worker",
        ) from None
    except PermissionError as problem:
        remedy = f"run this with sudo; for the service: `sudo sh -c '{fix}'`"
        raise BadKey(cannot, str(problem.strerror), remedy) from None
    except OSError as problem:
        raise BadKey(cannot, str(problem.strerror), "put the key into a file") from None
    except UnicodeDecodeError:
        raise BadKey(cannot, "it is not UTF-8 text", "copy it from the head again") from None


def _remedy(doubt: trust.Untrusted, path: Path, fix: str) -> str:
    if doubt.path == path:
        return f"run `sudo sh -c '{fix}'`"
    return f"keep it in a folder that only root can write to, or `chmod go-w {doubt.path}`"


def make(path: Path, group: str) -> ClusterKey:
    """Create a file with a new key, readable for this group if the group exists.

    Raises BadKey; an existing file is never overwritten.
    """
    cannot = f"create the cluster key {path}"
    key = new_key()
    try:
        if doubt := trust.find_doubt(path, (0, os.geteuid())):
            remedy = "choose a folder that only root can write to, with --key-file"
            raise BadKey(cannot, str(doubt), remedy)
        with safe_files.readable_by_all():
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        safe_files.create(path, key.text(), MODE, (-1, _gid(group)))
    except FileExistsError:
        raise BadKey(cannot, "the file exists already", "use it, or remove it first") from None
    except OSError as problem:
        remedy = (
            "run this with sudo"
            if problem.errno in (errno.EACCES, errno.EPERM)
            else "choose another file with --key-file"
        )
        raise BadKey(cannot, str(problem.strerror), remedy) from None
    return key


def share(path: Path, group: str) -> bool:
    """Let a group read a key that root copied here; return whether that changed anything.

    The service is not a member of root's group, and `scp` makes the file root's. Raises BadKey.
    """
    gid = _gid(group)
    if os.geteuid() != 0 or gid < 0:
        return False
    try:
        descriptor = safe_files.open_own(Path(os.path.realpath(path)), os.O_RDONLY)
        try:
            seen = os.fstat(descriptor)
            if seen.st_gid == gid and seen.st_mode & 0o040:
                return False
            os.fchown(descriptor, -1, gid)
            os.fchmod(descriptor, MODE)
        finally:
            os.close(descriptor)
    except OSError as problem:
        remedy = f"run `sudo chown root:{group} {path} && sudo chmod {MODE:o} {path}`"
        cannot = f"let the service read the cluster key {path}"
        raise BadKey(cannot, str(problem.strerror), remedy) from None
    return True


def derive_pairs(key: ClusterKey) -> KeyPairs:
    """Derive both key pairs, the head's first; raises BadKey if ZeroMQ has no CURVE."""
    head, worker = (z85.encode(key.curve_secret(side)) for side in ("head", "worker"))
    try:
        public = zmq.curve_public
        return KeyPairs(public(head), head, public(worker), worker, key.token())
    except zmq.ZMQError as problem:
        raise BadKey(
            "encrypt the cluster's link",
            f"this machine's ZeroMQ has no CURVE ({problem})",
            "install a libzmq built with libsodium, such as the distribution's",
        ) from None


def _gid(group: str) -> int:
    """Look up a group's number; -1 if there is no such group."""
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return -1
