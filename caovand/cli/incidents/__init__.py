"""`caovanctl incidents`: the failures whose evidence was kept; its own verbs are files here."""

from __future__ import annotations

import argparse
import json

from caovand.cli.client import connect
from caovand.cli.errors import Exit
from caovand.cli.verb import Verb


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(args: argparse.Namespace) -> int:
    """incidents."""
    with connect(args) as client:
        rows = client.ask("incidents")["incidents"]
    if args.json:
        print(json.dumps(rows))
    elif not rows:
        print("no incidents")
    for row in () if args.json else rows:
        action = f" -> {row['action']}" if row["action"] else ""
        phase = f" in phase {row['phase']}" if row["phase"] else ""
        print(f"{row['number']:>4}  {row['at'][:19]}  {row['failure']}{phase}{action}")
        print(f"      {row['text']}")
    return Exit.DONE


VERB = Verb(
    name="incidents",
    help="show the evidence of each failure",
    description="List the failures whose evidence was kept, show one, or pack one for a bug"
    " report. Keys and tokens are removed; the engine's log is included.",
    epilog="examples: caovanctl incidents; caovanctl incidents show 3;"
    " caovanctl incidents bundle 3 incident.tar.gz",
    arguments=arguments,
    run=run,
    package=__name__,
)
