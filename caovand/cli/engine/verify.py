"""`caovanctl engine verify [NAME]`: check every file of the engines in use, and that they run."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from caovand.adapters.engine_install import commands, places, verify
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.prove import Proof
from caovand.cli.common.progress import Screen
from caovand.cli.engine.shared import ENGINE, engine_verb, root_of
from caovand.engines import registry


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar=ENGINE, help="default: all that are in use")
    parser.add_argument("--kind", choices=list(registry.MODULES), help="only this kind of engine")


def run(args: argparse.Namespace) -> int:
    screen, root = Screen(sys.stderr), root_of(args)
    documents = [_verify(engine, screen, quiet=args.json) for engine in _choose_engines(args, root)]
    if args.json:
        print(json.dumps(documents[0] if args.name else {"engines": documents}, default=str))
    return 1 if any(document["damage"] for document in documents) else 0


def _choose_engines(args: argparse.Namespace, root: Path) -> list[places.InstalledEngine]:
    """The named engine, else those in use, filtered by kind if one is named."""
    if args.name:
        return [places.get(root, args.name, f"verify {args.name}")]
    kinds = [args.kind] if args.kind else list(registry.MODULES)
    engines = [engine for kind in kinds if (engine := places.current(root, kind)) is not None]
    if not engines:
        raise EngineError(
            "verify the engine",
            f"no engine in {root} is in use",
            "install one with sudo caovanctl engine install",
        )
    return engines


def _verify(engine: places.InstalledEngine, screen: Screen, *, quiet: bool) -> dict[str, Any]:
    """Check an engine and return its document; for people, also print its findings and a
    summary."""
    damage, proof = verify.verify(engine, commands.run, screen.progress)
    for line in damage:
        screen.say(line)
    if not quiet:
        print(
            f"{engine.name} is damaged, {len(damage)} findings; "
            f"sudo caovanctl engine install --kind {engine.kind} --again"
            if damage or proof is None
            else f"{engine.name} is intact: {_proven(engine, proof)}"
        )
    return {"name": engine.name, "damage": damage, "proof": asdict(proof) if proof else None}


def _proven(engine: places.InstalledEngine, proof: Proof) -> str:
    words = [f"{registry.engine_of(engine.kind).title} {proof.version}"]
    if proof.torch:
        words += [f"torch {proof.torch}", ", ".join(proof.devices) or "no GPU"]
    return ", ".join(words)


VERB = engine_verb(
    "verify",
    "check every file of the engines in use, and that they run",
    example="caovanctl engine verify",
    arguments=arguments,
    run=run,
)
