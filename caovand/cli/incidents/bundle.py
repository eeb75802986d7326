"""`caovanctl incidents bundle N FILE`: pack one incident for support."""

from __future__ import annotations

import argparse
from pathlib import Path

from caovand.cli.common import archive
from caovand.cli.common.client import connect
from caovand.cli.common.errors import Exit
from caovand.cli.common.verb import Verb
from caovand.cli.incidents.files import fetch_all


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", type=int)
    parser.add_argument("file", type=Path)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        contents = fetch_all(client, args.number)
    archive.write(args.file, f"incident-{args.number}", contents)
    print(f"{args.file}: {', '.join(contents)}")
    return Exit.DONE


VERB = Verb(
    name="bundle",
    help="pack one incident",
    description="Pack one incident as a .tar.gz file.",
    epilog="example: caovanctl incidents bundle 3 incident.tar.gz",
    arguments=arguments,
    run=run,
    effects=True,
)
