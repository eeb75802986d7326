"""`caovanctl cluster join HOST:PORT`: make this machine a worker of a cluster."""

from __future__ import annotations

import argparse
import os

from caovand.cli.cluster import section
from caovand.cli.cluster.shared import (
    RESTART,
    config_argument,
    copy_command,
    have_key,
    host_of,
    key_argument,
)
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.verb import Verb


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("head", metavar="HOST:PORT", help="where the head listens")
    key_argument(parser)
    config_argument(parser)


def run(args: argparse.Namespace) -> int:
    cannot = f"join the cluster of {args.head}"
    host = host_of(args.head, cannot)
    entry = section.entry(args, "worker", args.head, cannot)
    if not os.path.lexists(entry.key):
        raise CommandError(
            Exit.FAILED,
            f"cannot {cannot}: the cluster's key {entry.key} is missing",
            f"copy it from the head: {copy_command(host, entry.key)}",
        )
    have_key(entry.key, make=False)
    entry.write()
    print(f"this machine is a worker of {args.head}: [cluster] in {args.config}")
    print(f"next: `{RESTART}`, then `caovanctl cluster check` on the head")
    return Exit.DONE


VERB = Verb(
    name="join",
    help="make this machine a worker of a cluster",
    description="Make this machine a worker of a cluster: add the section [cluster] to the"
    " configuration. The cluster's key must have been copied here from the head. Takes effect when"
    " the daemon restarts.",
    epilog="example: sudo caovanctl cluster join 10.0.0.1:7070",
    arguments=arguments,
    run=run,
    effects=True,
)
