"""`caovanctl logs`: show the engine's output."""

from __future__ import annotations

import argparse
import json
import time

from caovand.cli.common.client import connect
from caovand.cli.common.errors import Exit
from caovand.cli.common.verb import Verb

FOLLOW_S = 0.3


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--lines", type=int, default=50, help="number of lines (default 50)")
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new lines")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        answer = client.ask("logs", lines=max(args.lines, 0))
        end = answer.get("end", answer["last"])  # daemons from earlier releases send no `end`
        while True:
            lines, last = answer["lines"], answer["last"]
            if not args.follow:
                # Skip newer lines: they may arrive faster than they can be printed.
                lines = lines[: max(len(lines) - max(last - end, 0), 0)]
            for line in lines:
                print(json.dumps({"line": line}) if args.json else line, flush=True)
            if not args.follow and (last >= end or not answer["more"]):
                return Exit.DONE
            if not answer["more"]:
                time.sleep(FOLLOW_S)
            answer = client.ask("logs", since=last)


VERB = Verb(
    name="logs",
    help="show the engine's output",
    description="Print the engine's latest lines. Older ones are in the rotated engine.log.",
    epilog="example: caovanctl logs -n 200 -f",
    arguments=arguments,
    json="print one JSON object per line",
    run=run,
)
