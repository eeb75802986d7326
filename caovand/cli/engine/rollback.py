"""`caovanctl engine rollback`: switch back to the previous engine."""

from __future__ import annotations

import argparse

from caovand.adapters.engine_install import places
from caovand.cli.common.printing import show
from caovand.cli.engine.choice import kind_argument
from caovand.cli.engine.shared import engine_verb, root_of


def run(args: argparse.Namespace) -> int:
    with places.locked(root_of(args), "roll back", make=False):
        engine = places.rollback(root_of(args), args.kind)
    text = (
        f"{engine.name} is in use again; run sudo caovanctl reload to switch a running daemon to it"
    )
    show(args, {"current": engine.name}, text)
    return 0


VERB = engine_verb(
    "rollback",
    "switch back to the previous engine",
    example="sudo caovanctl engine rollback && sudo caovanctl reload",
    arguments=kind_argument,
    run=run,
    effects=True,
)
