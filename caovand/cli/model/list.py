"""`caovanctl model list`: list pulled models and unfinished pulls."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from caovand.adapters.model_pull import folders
from caovand.cli.model.shared import FAMILY, gib, model_document, model_verb
from caovand.core.config.schema import Config
from caovand.core.printable import one_line


def run(args: argparse.Namespace) -> int:
    root = FAMILY.root_of(args, _of_daemon)
    pulled, begun = folders.models(root), folders.unfinished(root)
    if args.json:
        models = [model_document(place.folder, made) for place, made in pulled]
        rows = [asdict(pull) for pull in begun]
        print(json.dumps({"root": str(root), "models": models, "unfinished": rows}))
        return 0
    for place, made in pulled:
        at = made.commit[:12] or made.revision
        print(
            f"{one_line(made.name):40} {gib(made.size_bytes):>11}  {one_line(at):12} "
            f" {made.pulled_at[:10]}  {place.folder}"
        )
    if not pulled:
        print(f"no model in {root}; download one with: sudo caovanctl model pull OWNER/NAME")
    for pull in begun:
        print(
            f"note: {one_line(pull.name)} is not complete, {gib(pull.done_bytes)} of "
            f"{gib(pull.size_bytes)}: pull it again to resume, or remove it",
            file=sys.stderr,
        )
    return 0


def _of_daemon(config: Config) -> Path | None:
    """The daemon's models folder, if its model was pulled there."""
    folder = Path(config.model.path).parent
    return folder if config.model.path and folders.models(folder) else None


VERB = model_verb("list", "list pulled models", example="caovanctl model list --json", run=run)
