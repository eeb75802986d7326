"""Versions of installed distributions."""

from __future__ import annotations

import importlib.metadata
import re


def release(distribution: str) -> tuple[int, ...] | None:
    """A distribution's version, such as (0, 6, 18) for 0.6.18.post1; None if it is not
    installed."""
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(n) for n in found.groups(default="0")) if found else None
