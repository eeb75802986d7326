"""`caovanctl stop`: stop the engine; the daemon keeps running."""

from __future__ import annotations

import argparse
import json

from caovand.cli.common import waiting
from caovand.cli.common.client import connect
from caovand.cli.common.errors import CommandError, Exit


def run(args: argparse.Namespace) -> int:
    """Succeed once the engine and all its processes have exited."""
    with connect(args) as client:
        answer = client.ask("stop")
        if args.no_wait:
            return waiting.report(args, answer)
        answer = waiting.follow(client, "stopped", args.timeout, quiet=args.json)
        if answer["state"] != "STOPPED":
            raise CommandError(
                Exit.FAILED, f"the engine did not stop: its state is {answer['state']}"
            )
        if answer["reason"] in ("", "stopped"):
            return waiting.report(args, answer)
        if args.json:
            print(json.dumps(answer))
        raise CommandError(
            Exit.FAILED,
            f"STOPPED, but some engine processes could not be killed: {answer['reason']}",
        )


VERB = waiting.change_verb(
    "stop",
    help="stop the engine; the daemon keeps running",
    epilog="example: caovanctl stop --no-wait",
    run=run,
)
