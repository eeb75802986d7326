"""`caovanctl wait`: return once the engine is serving."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from caovand.cli.common.client import connect
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.reach import NoDaemon
from caovand.cli.common.verb import Verb
from caovand.cli.common.waiting import follow

RETRY_S = 0.25
"""Seconds between attempts to reach a daemon that is not listening yet."""


def arguments(parser: argparse.ArgumentParser) -> None:
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--serving", action="store_true", help="wait until the engine is serving (the default)"
    )
    kind.add_argument(
        "--settled",
        action="store_true",
        help="wait until the state is final: serving, FAILED, HOLD or STOPPED",
    )
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="default 600")


def run(args: argparse.Namespace) -> int:
    until = "settled" if args.settled else "serving"
    answer = _follow(args, until)
    if args.json:
        print(json.dumps(answer))
    if answer["state"] == "SERVING" or (args.settled and answer["reached"]):
        return Exit.DONE
    # FAILED is final until someone acts, so there was no waiting.
    waited = "" if answer["state"] == "FAILED" else f" after {args.timeout:.0f} s"
    raise CommandError(
        Exit.NOT_SERVING,
        f"not serving{waited}: {answer['state']} {answer['reason']}".rstrip(),
        "caovanctl status; caovanctl logs",
    )


def _follow(args: argparse.Namespace, until: str) -> Mapping[str, Any]:
    """Wait, also for a daemon that is not listening yet, and return the last status."""
    deadline = time.monotonic() + args.timeout
    shown = args.json
    while True:
        left_s = max(deadline - time.monotonic(), 0.0)
        try:
            with connect(args) as client:
                return follow(client, until, left_s, quiet=args.json)
        except NoDaemon as problem:
            if left_s == 0:
                raise
            if not shown:
                print(f"{problem.message}; waiting for the daemon", file=sys.stderr)
                shown = True
            time.sleep(min(RETRY_S, left_s))


VERB = Verb(
    name="wait",
    help="wait until the engine is serving",
    description="Wait until the engine is serving, or with --settled until it is serving, "
    "FAILED, on HOLD or STOPPED. Also waits for a daemon that is not listening yet. Exit status "
    "3 if the engine is not serving in time, 4 if no daemon listens by then.",
    epilog="example: caovanctl wait --serving --timeout 600 && curl ...",
    arguments=arguments,
    json="print the last status as JSON",
    run=run,
)
