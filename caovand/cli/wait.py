"""`caovanctl wait`: come back once the engine is serving."""

from __future__ import annotations

import argparse
import json

from caovand.cli.client import connect
from caovand.cli.errors import CommandError, Exit
from caovand.cli.verb import Verb
from caovand.cli.waiting import follow


def arguments(parser: argparse.ArgumentParser) -> None:
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--serving", action="store_true", help="until it is serving (the default)")
    kind.add_argument("--settled", action="store_true", help="until nothing changes by itself")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="default 600")
    parser.add_argument("--json", action="store_true", help="print the last status as JSON")


def run(args: argparse.Namespace) -> int:
    """wait."""
    until = "settled" if args.settled else "serving"
    with connect(args) as client:
        answer = follow(client, until, args.timeout, quiet=args.json)
    if args.json:
        print(json.dumps(answer))
    if answer["state"] == "SERVING" or (args.settled and answer["reached"]):
        return Exit.DONE
    # Out of FAILED nothing comes by itself: that was not waited for.
    waited = "" if answer["state"] == "FAILED" else f" after {args.timeout:.0f} s"
    raise CommandError(
        Exit.NOT_SERVING,
        f"not serving{waited}: {answer['state']} {answer['reason']}".rstrip(),
        "caovanctl status; caovanctl logs",
    )


VERB = Verb(
    name="wait",
    help="wait until the engine is serving",
    description="Wait until the engine is serving, or with --settled until it is serving, FAILED,"
    " on HOLD or STOPPED. Exit status 3 if it is not serving in time.",
    epilog="example: caovanctl wait --serving --timeout 600 && curl ...",
    arguments=arguments,
    run=run,
)
