"""`caovanctl requests`: show the gateway's latest requests."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from caovand.cli.common.client import ask
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.printing import show
from caovand.cli.common.verb import Verb


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--count", type=int, default=20, metavar="N", help="how many (default 20, of 100)"
    )
    parser.add_argument(
        "--failed", action="store_true", help="only those without a complete answer"
    )


def run(args: argparse.Namespace) -> int:
    if args.count < 1:
        raise CommandError(Exit.USAGE, f"cannot show {args.count} requests: use 1 or more")
    rows = ask(args, "requests")["requests"]
    if args.failed:
        rows = [row for row in rows if row["outcome"] or row["status"] >= 400]
    rows = rows[-args.count :]
    show(args, rows, "\n".join(lines(rows)))
    return Exit.DONE


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each request."""
    yield from map(_line, rows)
    if not rows:
        yield "no such requests at the gateway since the daemon started"


def _line(row: Mapping[str, Any]) -> str:
    stamp = time.strftime("%H:%M:%S", time.localtime(row["at"]))
    answer = f"{row['status'] or '-'} {row['outcome']}".strip()
    about = "~" if row["estimated"] else ""
    first = "" if row["first_s"] is None else f", first {row['first_s']:.2f} s"
    return (
        f"{stamp}  {answer}  {row['key'] or '-'}  {row['model'] or '-'}  {row['path']}"
        f"  waited {row['waited_s']:.2f} s{first}, whole {row['whole_s']:.2f} s,"
        f" read {about}{row['read']:,}, written {about}{row['written']:,}"
        + (f"; {row['prefix']}" if row["prefix"] else "")
    )


VERB = Verb(
    name="requests",
    help="show the latest requests at the gateway",
    description="Print the last finished requests at the gateway: key, model, status and error of"
    " the answer, waiting and total time, tokens (~: estimated), and the message of a"
    " conversation that changed, after which everything was read again. No texts are"
    " kept.",
    epilog="examples: caovanctl requests; caovanctl requests --failed -n 100",
    arguments=arguments,
    json="print it as JSON",
    run=run,
)
