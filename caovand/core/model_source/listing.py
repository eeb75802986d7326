"""A model's files as a hub lists them, each with its size and the publisher's hash.

The hub is untrusted: a list that could write outside the model's folder, or that is too long for a
model, is refused as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from caovand.core.printable import one_line

MAX_FILES = 10_000
MAX_BYTES = 1 << 41
"""Maximum size of one file: 2 TiB, ten times the largest known checkpoint."""
MAX_PART = 200  # bytes of a file or folder name, leaving room for suffixes that we append
MAX_FOLDER_DEPTH = 8
MAX_LISTED = 3000
"""ModelScope silently truncates lists here: a list of this length may lack files."""

SHA256 = "sha256"
GIT = "git"
"""Git's hash of a small file: SHA-1 of its length and content."""
_HEX = {SHA256: re.compile(r"[0-9a-f]{64}"), GIT: re.compile(r"[0-9a-f]{40}")}
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


class BadListing(Exception):
    """The document is not a list of a model's files."""


@dataclass(frozen=True)
class Digest:
    """A publisher's hash of a file; `kind` is SHA256 or GIT."""

    kind: str
    value: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}"


@dataclass(frozen=True)
class RemoteFile:
    """One file of a model."""

    path: str
    size_bytes: int
    digest: Digest


@dataclass(frozen=True)
class Listing:
    """All files of a model at one commit; `commit` is empty if the hub reports none."""

    commit: str
    files: tuple[RemoteFile, ...]


def is_name(text: str) -> bool:
    """Whether this is OWNER/NAME; in folder names, `--` stands for the slash."""
    return bool(_NAME.fullmatch(text)) and "--" not in text and ".." not in text


def split_name(text: str) -> tuple[str, str] | None:
    """Split OWNER/NAME:LABEL; the label may be missing and is then empty. None for any other
    text."""
    name, colon, label = text.partition(":")
    if not is_name(name) or (colon and not _LABEL.fullmatch(label)) or ".." in label:
        return None
    return name, label


def digest(text: Any) -> Digest:
    """Parse a hash as `str` prints it; raises BadListing."""
    kind, _, value = text.partition(":") if isinstance(text, str) else ("", "", "")
    if kind not in _HEX or not _HEX[kind].fullmatch(value):
        raise BadListing("a file's hash is not a SHA-256 or git digest")
    return Digest(kind, value)


def file(path: Any, size_bytes: Any, known_by: Any) -> RemoteFile:
    """Validate one entry; raises BadListing if nothing may be written under this name."""
    if not isinstance(path, str) or not is_safe(path):
        raise BadListing(f"a file's name is refused: {one_line(ascii(path)[:80])}")
    if type(size_bytes) is not int or not 0 <= size_bytes <= MAX_BYTES:
        raise BadListing(f"{path} has an impossible size")
    try:
        return RemoteFile(path, size_bytes, digest(known_by))
    except BadListing:
        raise BadListing(f"{path} has no hash to verify it with") from None


def is_safe(path: str) -> bool:
    """Whether this names a printable path inside a folder on every file system."""
    parts = path.split("/")
    return (
        path.isprintable()
        and "\\" not in path
        and len(parts) <= MAX_FOLDER_DEPTH
        and all(part not in ("", ".", "..") and part == part.strip() for part in parts)
        and all(len(part.encode()) <= MAX_PART for part in parts)
    )


def listing(commit: str, files: Iterable[RemoteFile]) -> Listing:
    """Validate a list: no file is another one's folder, and none occurs twice."""
    ordered = tuple(sorted(files, key=lambda remote: remote.path))
    names = {remote.path for remote in ordered}
    if len(names) != len(ordered):
        raise BadListing("a file is listed twice")
    if len({(remote.digest, remote.size_bytes) for remote in ordered}) != len(
        {remote.digest for remote in ordered}
    ):
        raise BadListing("two files have the same hash and different sizes")
    for remote in ordered:
        folders = remote.path.split("/")[:-1]
        if any("/".join(folders[: n + 1]) in names for n in range(len(folders))):
            raise BadListing(f"{remote.path} is below another file")
    return Listing(commit, ordered)


def parse_hugging_face(document: Any) -> Listing:
    """Parse the response of /api/models/NAME/revision/REVISION?blobs=true."""
    if not isinstance(document, Mapping):
        raise BadListing("it is not a table")
    commit = document.get("sha")
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise BadListing("it does not name a commit")
    return listing(commit, (_of_sibling(sibling) for sibling in _entries(document.get("siblings"))))


def _of_sibling(entry: Mapping[str, Any]) -> RemoteFile:
    large = entry.get("lfs")
    if isinstance(large, Mapping):
        return file(entry.get("rfilename"), large.get("size"), f"{SHA256}:{large.get('sha256')}")
    return file(entry.get("rfilename"), entry.get("size"), f"{GIT}:{entry.get('blobId')}")


def parse_modelscope(document: Any) -> Listing:
    """Parse the response of /api/v1/models/NAME/repo/files, which names no commit of the
    repository."""
    data = document.get("Data") if isinstance(document, Mapping) else None
    if not isinstance(data, Mapping):
        raise BadListing("it has no data")
    entries = _entries(data.get("Files"))
    if len(entries) >= MAX_LISTED:
        raise BadListing(f"it has {len(entries)} entries, and the service may have truncated it")
    return listing(
        "",
        (
            file(entry.get("Path"), entry.get("Size"), f"{SHA256}:{entry.get('Sha256')}")
            for entry in entries
            if entry.get("Type") != "tree"
        ),
    )


def _entries(entries: Any) -> list[Mapping[str, Any]]:
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise BadListing("it has no list of files")
    if len(entries) > MAX_FILES:
        raise BadListing(f"it has {len(entries)} files, more than any model")
    return entries
