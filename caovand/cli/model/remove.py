"""`caovanctl model remove MODEL`: delete a pulled model, or an unfinished pull."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from caovand.adapters.model_pull import folders
from caovand.adapters.model_pull.errors import PullError
from caovand.cli.common.errors import CommandError
from caovand.cli.common.printing import show
from caovand.cli.common.survey import configuration, daemon_config, running
from caovand.cli.model.shared import gib, model_argument, model_verb, root_of


def run(args: argparse.Namespace) -> int:
    place, what = folders.find(root_of(args), args.model), f"remove {args.model}"
    begun = place.staging.is_dir()
    made = None if begun and not place.folder.exists() else folders.require(place, what)
    if made and any(_same(place.folder, used) for used in _used_models(args)):
        raise PullError(
            what, "caovan is serving this model", "set another [model] path and reload first"
        )
    with folders.locked(place, what):
        folders.discard(place)
    size = made.size_bytes if made else 0
    freed = f", which frees {gib(size)}" if made else ""
    show(args, {"removed": str(place.folder)}, f"{args.model} is removed{freed}")
    return 0


def _used_models(args: argparse.Namespace) -> Iterator[str]:
    """The models of the running daemon and of its configuration, as far as known."""
    daemon = running(args.runtime)
    yield daemon.get("model") or ""
    try:
        yield configuration(daemon_config(daemon)).model.path
    except CommandError:  # a broken file serves nothing
        return


def _same(folder: Path, used: str) -> bool:
    try:
        return bool(used) and os.path.samefile(folder, Path(used).expanduser())
    except (OSError, RuntimeError):
        return False


VERB = model_verb(
    "remove",
    "delete a pulled model, or an unfinished pull",
    example="sudo caovanctl model remove Qwen/Qwen3-8B-AWQ",
    arguments=model_argument,
    run=run,
    effects=True,
)
