"""`caovanctl retry`: try again now, optionally with the full plan."""

from __future__ import annotations

import argparse

from caovand.cli.common import waiting


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="try the full plan once")
    waiting.arguments(parser)


def run(args: argparse.Namespace) -> int:
    return waiting.change(args, "retry", **({"full": True} if args.full else {}))


VERB = waiting.change_verb(
    "retry",
    help="try again now; --full tries the full plan once",
    description="Try again now, from FAILED, HOLD or BACKOFF, or try a changed plan again that was"
    " refused while the previous one serves. With --full, try the full plan once; if it fails, the"
    " degraded plan that served comes back. Does nothing if the full plan is already serving.",
    epilog="example: caovanctl retry --full",
    arguments=arguments,
    run=run,
)
