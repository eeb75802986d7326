"""`caovanctl cluster init`: make this machine the head of a cluster."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from caovand.adapters.network import own_address
from caovand.cli.cluster import section
from caovand.cli.cluster.shared import (
    DEFAULT_PORT,
    RESTART,
    config_argument,
    copy_command,
    have_key,
    host_of,
    key_argument,
)
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.verb import Verb
from caovand.core.addresses import is_loopback, join_address

CANNOT = "make this machine the head of a cluster"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="the address that workers connect to (default: that of the default route's interface,"
        f" port {DEFAULT_PORT})",
    )
    key_argument(parser)
    config_argument(parser)


def run(args: argparse.Namespace) -> int:
    listen = args.listen or _own_address()
    host = host_of(listen, CANNOT)
    entry = section.entry(args, "head", listen, CANNOT)
    made = have_key(entry.key, make=True)
    entry.write()
    option = _option(args.key_file, entry.key)
    print(f"this machine is the head of a cluster, at {listen}: [cluster] in {args.config}")
    print(f"key: {entry.key}, {'new' if made else 'which was there already'}")
    print("next:")
    print(f"  on each worker  {copy_command(host, entry.key)}")
    print(f"  on each worker  sudo caovanctl cluster join {listen}{option}")
    print(f"  there and here  {RESTART}")
    return Exit.DONE


def _own_address() -> str:
    """Address of the default route's interface, with caovan's port."""
    host = own_address.of_default_route()
    if host is None or is_loopback(host):
        raise CommandError(
            Exit.FAILED,
            f"cannot {CANNOT}: without a default route, caovan cannot tell which of its "
            "addresses others can reach",
            f"name one: caovanctl cluster init --listen HOST:{DEFAULT_PORT}",
        )
    return join_address(host, DEFAULT_PORT)


def _option(named: Path | None, key: Path) -> str:
    return f" --key-file {shlex.quote(str(key))}" if named else ""


VERB = Verb(
    name="init",
    help="make this machine the head of a cluster",
    description="Make this machine the head of a cluster: create the cluster's key, unless it "
    "exists, and add the section [cluster] to the configuration. Takes effect when the daemon "
    "restarts.",
    epilog="example: sudo caovanctl cluster init --listen 10.0.0.1:7070",
    arguments=arguments,
    run=run,
    effects=True,
)
