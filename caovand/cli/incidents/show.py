"""`caovanctl incidents show N`: show one incident for people, or its report as JSON."""

from __future__ import annotations

import argparse
import json

from caovand.cli.common.client import connect
from caovand.cli.common.errors import Exit
from caovand.cli.common.verb import Verb
from caovand.cli.incidents.files import fetch
from caovand.core.reporting.incident_text import REPORT, lines, node_files


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", type=int)
    # The default must not override a --json that precedes `show`.
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print it as JSON"
    )


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        files, report = fetch(client, args.number, REPORT)
        if args.json:
            print(report.decode("utf-8", "replace"), end="")
            return Exit.DONE
        document = json.loads(report)
        nodes = {
            name: json.loads(fetch(client, args.number, name)[1])
            for name in node_files(document, files)
        }
    print("\n".join(lines(document, files, nodes)))
    return Exit.DONE


VERB = Verb(
    name="show",
    help="show one incident",
    epilog="example: caovanctl incidents show 3",
    arguments=arguments,
    run=run,
)
