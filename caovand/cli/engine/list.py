"""`caovanctl engine list`: list the installed engines, and those in use."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from caovand.adapters.engine_install import places
from caovand.adapters.engine_install.lock import FIRST_KIND
from caovand.cli.engine.shared import FAMILY, describe_engine, engine_document, engine_verb
from caovand.core.config.schema import Config
from caovand.engines import registry


def run(args: argparse.Namespace) -> int:
    root = FAMILY.root_of(args, _of_daemon)
    engines, begun = places.engines(root), places.unfinished(root)
    now = {
        kind: engine.name
        for kind in registry.MODULES
        if (engine := places.current(root, kind)) is not None
    }
    if args.json:
        print(
            json.dumps(
                {
                    "root": str(root),
                    "current": now.get(FIRST_KIND),
                    "in_use": now,
                    "engines": [engine_document(engine) for engine in engines],
                    "unfinished": begun,
                }
            )
        )
        return 0
    for engine in engines:
        mark = "*" if engine.name in now.values() else " "
        print(f"{mark} {engine.name:24} {describe_engine(engine, aligned=True)}")
    if not engines:
        print(f"no engine in {root}; install one with: sudo caovanctl engine install")
    for name in begun:
        print(
            f"note: {name} is unfinished: install it again to resume, or remove it",
            file=sys.stderr,
        )
    return 0


def _of_daemon(config: Config) -> Path | None:
    """Folder of the daemon's engine, if caovan installed it."""
    folder = Path(config.engine.python or "").parent.parent
    return folder.parent if places.read(folder) is not None else None


VERB = engine_verb(
    "list",
    "list engines; * marks the one in use of each kind",
    example="caovanctl engine list --json",
    run=run,
)
