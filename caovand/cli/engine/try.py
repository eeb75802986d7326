"""`caovanctl engine try NAME`: load the laboratory only on use, because the other verbs of `engine`
need nothing but the standard library."""

from __future__ import annotations

import argparse

from caovand.cli.engine.shared import engine_verb


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|VERSION", help="an installed engine, or its release")
    parser.add_argument(
        "--idle", type=float, default=0.0, metavar="S",
        help="wait until no request has come for S seconds (default 0: start at once)",
    )  # fmt: skip
    parser.add_argument(
        "--keep-slower", action="store_true", help="keep the new engine even if it is slower"
    )


def run(args: argparse.Namespace) -> int:
    from caovand.lab import engine_trial  # noqa: PLC0415

    return engine_trial.run(args)


VERB = engine_verb(
    "try",
    "serve with another engine, compare it with the current one, keep it or go back",
    description="Measure the engine that serves, switch the daemon to another installed engine, "
    "and measure that: fixed prompts, then the bench. The new engine is kept if it serves, "
    "answers and is not slower beyond noise; otherwise the old one serves again. An engine that "
    "is known to fail is refused before anything is stopped. Clients notice at most two starts. "
    "Exit status: 0 kept, 1 refused or rolled back.",
    example="sudo caovanctl engine install 0.33.0 && sudo caovanctl engine try 0.33.0",
    arguments=arguments,
    run=run,
    effects=True,
)
