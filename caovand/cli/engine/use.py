"""`caovanctl engine use NAME`: switch to an engine."""

from __future__ import annotations

import argparse

from caovand.adapters.engine_install import places
from caovand.cli.common.printing import show
from caovand.cli.engine.shared import engine_verb, name_argument, root_of


def run(args: argparse.Namespace) -> int:
    with places.locked(root_of(args), f"use {args.name}", make=False):
        places.switch(root_of(args), args.name)
    text = f"{args.name} is in use; run sudo caovanctl reload to switch a running daemon to it"
    show(args, {"current": args.name}, text)
    return 0


VERB = engine_verb(
    "use",
    "switch to an engine",
    example="sudo caovanctl engine use NAME",
    arguments=name_argument,
    run=run,
    effects=True,
)
