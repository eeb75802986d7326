"""`caovanctl engine list`: the engines that are here, and the one in use."""

from __future__ import annotations

import argparse
import json
import sys

from caovand.adapters.engine_install import places
from caovand.cli.engine.shared import engine_verb, facts, root_of


def run(args: argparse.Namespace) -> int:
    """engine list."""
    root = root_of(args)
    now, found, begun = places.current(root), places.engines(root), places.unfinished(root)
    if args.json:
        print(
            json.dumps(
                {
                    "root": str(root),
                    "current": now.name if now else None,
                    "engines": [facts(engine) for engine in found],
                    "unfinished": begun,
                }
            )
        )
        return 0
    for engine in found:
        mark = "*" if now is not None and now.name == engine.name else " "
        plugin = f"plugin {engine.plugin}" if engine.plugin else "no plugin"
        print(
            f"{mark} {engine.name:24} vLLM {engine.version:12} torch {engine.torch:14} "
            f"Python {engine.python:8} {plugin}"
        )
    if not found:
        print(f"no engine in {root}; install one with: sudo caovanctl engine install")
    for name in begun:
        print(
            f"note: {name} is unfinished: install it again to continue, or remove it",
            file=sys.stderr,
        )
    return 0


VERB = engine_verb(
    "list", "list engines; * is the one in use", example="caovanctl engine list --json", run=run
)
