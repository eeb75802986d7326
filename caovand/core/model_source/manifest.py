"""The origin of a pulled model: hub, commit, and the hash of every file.

The manifest is written last, so a folder that contains one was complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caovand.core.model_source import listing
from caovand.core.model_source.listing import BadListing, RemoteFile

VERSION = 1
MAX_TEXT = 512  # characters per text


@dataclass(frozen=True)
class Manifest:
    """A pulled model. `commit` is empty if the hub reports none; `pulled_at` is ISO 8601, UTC."""

    name: str
    endpoint: str
    revision: str
    commit: str
    pulled_at: str
    files: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def document(self) -> dict[str, Any]:
        """The content of the manifest's file."""
        return {
            "version": VERSION,
            "name": self.name,
            "endpoint": self.endpoint,
            "revision": self.revision,
            "commit": self.commit,
            "pulled_at": self.pulled_at,
            "files": {
                file.path: {"size": file.size_bytes, "hash": str(file.digest)}
                for file in self.files
            },
        }


def read(document: Any) -> Manifest:
    """Parse `document`'s output, validated like a hub's list; raises BadListing."""
    if not isinstance(document, Mapping) or document.get("version") != VERSION:
        raise BadListing("it has another version")
    texts = [document.get(key) for key in ("name", "endpoint", "revision", "commit", "pulled_at")]
    if not all(isinstance(text, str) and len(text) <= MAX_TEXT for text in texts):
        raise BadListing("a field is missing")
    name, endpoint, revision, commit, pulled_at = (str(text) for text in texts)
    files = document.get("files")
    if not isinstance(files, Mapping) or len(files) > listing.MAX_FILES:
        raise BadListing("it has no list of files")
    listed = [
        listing.file(path, entry.get("size"), entry.get("hash"))
        for path, entry in files.items()
        if isinstance(entry, Mapping)
    ]
    return Manifest(
        name, endpoint, revision, commit, pulled_at, listing.listing(commit, listed).files
    )
