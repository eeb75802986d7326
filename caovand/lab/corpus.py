"""The texts for prompts; the README in `texts/` lists their sources."""

from __future__ import annotations

import hashlib
from importlib import resources

FILES = ("prose.txt", "rights.txt", "code.txt")


def texts() -> tuple[str, ...]:
    """All shipped texts."""
    folder = resources.files("caovand.lab") / "texts"
    return tuple((folder / name).read_text("utf-8") for name in FILES)


def digest(known: tuple[str, ...]) -> str:
    """A short hash of the texts."""
    return hashlib.sha256("\0".join(known).encode()).hexdigest()[:12]
