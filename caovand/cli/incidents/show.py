"""`caovanctl incidents show N`: one incident for people, or its report as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from caovand.cli.client import connect
from caovand.cli.errors import Exit
from caovand.cli.incidents.files import REPORT, fetch
from caovand.cli.verb import Verb


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", type=int)
    # Its default must not overwrite a --json that stands before `show`.
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print it as JSON"
    )


def run(args: argparse.Namespace) -> int:
    """incidents show."""
    with connect(args) as client:
        files, report = fetch(client, args.number, REPORT)
    if args.json:
        print(report.decode("utf-8", "replace"), end="")
    else:
        print("\n".join(lines(json.loads(report), files)))
    return Exit.DONE


def lines(report: Mapping[str, Any], files: Mapping[str, int]) -> Iterator[str]:
    """An incident for people."""
    finding = report["finding"]
    yield f"incident {report['number']}, {report['at']}: {report['failure']}"
    yield f"  phase     {finding['phase'] or '-'}"
    yield f"  what      {finding['text']}"
    decision = report["decision"]
    if decision:
        yield f"  action    {decision['text'] or decision['verdict']}"
        for obstacle in decision["obstacles"]:
            yield f"            {obstacle}"
    plan = report["plan"]
    if plan:
        yield f"  plan      {plan['model']}, rungs: {', '.join(plan['rungs']) or 'none'}"
    for process in report["processes"]:
        yield f"  process   {process['name']} (pid {process['pid']}) {process.get('State', '')}"
    cause = report["cause"]
    if cause:
        yield "  log"
        yield from (f"    {line}" for line in cause["before"][-5:])
        yield f"  > {cause['line']}"
        yield from (f"    {line}" for line in cause["after"][:5])
    yield f"  files     {', '.join(f'{name} ({size} B)' for name, size in files.items())}"


VERB = Verb(
    name="show",
    help="show one incident",
    epilog="example: caovanctl incidents show 3",
    arguments=arguments,
    run=run,
)
