"""`caovanctl engine remove NAME`: delete an engine that is not in use."""

from __future__ import annotations

import argparse

from caovand.adapters.engine_install import places
from caovand.cli.common.printing import show
from caovand.cli.engine.shared import engine_verb, name_argument, root_of


def run(args: argparse.Namespace) -> int:
    with places.locked(root_of(args), f"remove {args.name}", make=False):
        places.remove(root_of(args), args.name)
    kept = root_of(args) / ".wheels"
    also = f"; downloaded wheels are kept in {kept}" if kept.is_dir() else ""
    show(args, {"removed": args.name}, f"{args.name} is removed{also}")
    return 0


VERB = engine_verb(
    "remove",
    "delete an engine that is not in use",
    example="sudo caovanctl engine remove NAME",
    arguments=name_argument,
    run=run,
    effects=True,
)
