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
        "-n",
        "--count",
        type=int,
        default=20,
        metavar="N",
        help="number of requests (default 20, at most 100)",
    )
    parser.add_argument(
        "--failed", action="store_true", help="only requests without a complete answer"
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
        yield "the gateway has had no such requests since the daemon started"


def _line(row: Mapping[str, Any]) -> str:
    stamp = time.strftime("%H:%M:%S", time.localtime(row["at"]))
    answer = f"{row['status'] or '-'} {row['outcome']}".strip()
    about = "~" if row["estimated"] else ""
    first = "" if row["first_s"] is None else f", first {row['first_s']:.2f} s"
    return (
        f"{stamp}  {answer}  {row['key'] or '-'}  {row['model'] or '-'}  {row['path']}  waited "
        f"{row['waited_s']:.2f} s{first}, total {row['whole_s']:.2f} s, input "
        f"{about}{row['read']:,}, output {about}{row['written']:,}"
        + (f"; {row['prefix']}" if row["prefix"] else "")
    )


VERB = Verb(
    name="requests",
    help="show the latest requests at the gateway",
    description="Print the last finished requests at the gateway: key, model, status and error "
    "of the answer, waiting and total time, tokens (~: estimated), and the message at which a "
    "conversation changed, from which on the engine had to read it again. No texts are kept.",
    epilog="examples: caovanctl requests; caovanctl requests --failed -n 100",
    arguments=arguments,
    json="print it as JSON",
    run=run,
)
