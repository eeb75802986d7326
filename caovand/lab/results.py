"""Results of `caovanctl bench` and `soak`: one file each, in a folder named after the plan."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caovand.adapters.files import safe_files, state_file
from caovand.core.problem import ProblemError

FORMAT = 1
MAX_BYTES = 32 << 20
SOAK = "soak-"
"""File name prefix of a `soak` result."""


class NoResult(ProblemError):
    """A result cannot be stored or read."""


def headline(document: Mapping[str, Any]) -> str:
    """The model, engine and plan of a result."""
    mtp = f", MTP {document['mtp'] or 'off'}" if document["mtp"] is not None else ""
    return (
        f"{document['served_name']} ({document['model']}) on {document['engine']}, mode"
        f" {document['mode']}{mtp}, plan {document['fingerprint']}"
    )


def keep(state: Path, document: Mapping[str, Any], prefix: str = "") -> Path:
    """Write a result below the folder `state` and return its path. Raises NoResult."""
    folder = state / "bench" / str(document["fingerprint"])
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(document["at"]))
    path = folder / f"{prefix}{stamp}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        state_file.write(path, {"format": FORMAT, **document})
    except OSError as problem:
        raise NoResult(
            f"keep the result in {path}",
            problem.strerror or str(problem),
            "free some space, correct the folder's permissions, or set STATE_DIRECTORY",
        ) from problem
    return path


def paths(state: Path) -> list[Path]:
    """Files with `bench` results below the folder `state`."""
    files = (state / "bench").glob("*/*.json")
    return sorted(path for path in files if not path.name.startswith(SOAK))


def load(path: Path) -> dict[str, Any]:
    """Load a saved result; raises NoResult."""
    remedy = "name a file that `caovanctl bench` wrote: bench prints the path at the end"
    try:
        document = json.loads(safe_files.read_text(path, MAX_BYTES))
    except OSError as problem:
        raise NoResult(f"read {path}", problem.strerror or str(problem), remedy) from problem
    except (ValueError, RecursionError) as problem:
        raise NoResult(f"read {path}", "it is not JSON", remedy) from problem
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise NoResult(f"read {path}", "it is not a result of this release", remedy)
    return document
