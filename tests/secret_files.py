"""Files with secrets, as caovan requires them: unreadable to other users."""

from __future__ import annotations

from pathlib import Path


def secret_file(path: Path, text: str) -> Path:
    """Write a secret to a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(text)
    return path
