"""`caovanctl status`: show what the daemon and its engine are doing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from caovand.cli.common.client import ask
from caovand.cli.common.console import console
from caovand.cli.common.errors import Exit
from caovand.cli.common.status_lines import lines
from caovand.cli.common.verb import Verb


def run(args: argparse.Namespace) -> int:
    answer = ask(args, "status")
    if args.json:
        print(json.dumps(_without_copies(answer)))
    else:
        out = console()
        for line in lines(answer):
            out.print(line)
    return Exit.DONE if answer["state"] == "SERVING" else Exit.NOT_SERVING


def _without_copies(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The reply with a single slot's document only at the top level; `slots` just names it."""
    slots = answer.get("slots", ())
    return {**answer, "slots": [{"name": slots[0]["name"]}]} if len(slots) == 1 else answer


VERB = Verb(
    name="status",
    help="show state, endpoint, mode and failures",
    description="Show what the daemon and its engine are doing. Exit status 3 if not serving.",
    epilog="example: caovanctl status --json | jq .state",
    json="print it as JSON",
    run=run,
)
