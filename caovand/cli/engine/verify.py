"""`caovanctl engine verify [NAME]`: check every file of an engine, and that it runs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from caovand.adapters.engine_install import commands, places, verify
from caovand.adapters.engine_install.errors import EngineError
from caovand.adapters.engine_install.prove import Proof
from caovand.cli.engine.choice import kind_argument
from caovand.cli.engine.shared import ENGINE, engine_verb, root_of
from caovand.cli.family import show
from caovand.cli.progress import Screen
from caovand.engines import registry


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar=ENGINE, help="default: the one in use")
    kind_argument(parser)


def run(args: argparse.Namespace) -> int:
    """engine verify."""
    screen, root = Screen(sys.stderr), root_of(args)
    if args.name:
        engine: places.Engine | None = places.get(root, args.name, f"verify {args.name}")
    else:
        engine = places.current(root, args.kind)
    if engine is None:
        raise EngineError(
            "verify the engine",
            f"none is in use in {root}",
            "install one with sudo caovanctl engine install",
        )
    damage, proof = verify.verify(engine, commands.run, screen.progress)
    for line in damage:
        screen.say(line)
    show(
        args,
        {"name": engine.name, "damage": damage, "proof": asdict(proof) if proof else None},
        f"{engine.name} is damaged, {len(damage)} findings; sudo caovanctl engine install --again"
        if damage or proof is None
        else f"{engine.name} is intact: {_proven(engine, proof)}",
    )
    return 1 if damage else 0


def _proven(engine: places.Engine, proof: Proof) -> str:
    words = [f"{registry.engine_of(engine.kind).title} {proof.version}"]
    if proof.torch:
        words += [f"torch {proof.torch}", ", ".join(proof.devices) or "no GPU"]
    return ", ".join(words)


VERB = engine_verb(
    "verify",
    "check every file of an engine, and that it runs",
    example="caovanctl engine verify",
    arguments=arguments,
    run=run,
)
