"""`caovanctl incidents`: list the failures whose evidence was kept; each subcommand is a file
here."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from caovand.cli.common.client import ask
from caovand.cli.common.errors import Exit
from caovand.cli.common.printing import show
from caovand.cli.common.verb import Verb


def run(args: argparse.Namespace) -> int:
    rows = ask(args, "incidents")["incidents"]
    show(args, rows, "\n".join(lines(rows)))
    return Exit.DONE


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Format the incidents for people."""
    if not rows:
        yield "no incidents"
    for row in rows:
        action = f" -> {row['action']}" if row["action"] else ""
        phase = f" in phase {row['phase']}" if row["phase"] else ""
        yield f"{row['number']:>4}  {row['at'][:19]}  {row['failure']}{phase}{action}"
        yield f"      {row['text']}"


VERB = Verb(
    name="incidents",
    help="show the evidence of each failure",
    description="List the recorded failures, show one, or pack one for a bug report. Keys and"
    " tokens are removed; the engine's log is included.",
    epilog="examples: caovanctl incidents; caovanctl incidents show 3;"
    " caovanctl incidents bundle 3 incident.tar.gz",
    json="print it as JSON",
    run=run,
    package=__name__,
)
