"""`caovanctl key revoke`: revoke a client's key."""

from __future__ import annotations

import argparse

from caovand.cli.common.client import ask
from caovand.cli.common.errors import Exit
from caovand.cli.common.printing import show
from caovand.cli.common.verb import Verb


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a name in `caovanctl key list`")


def run(args: argparse.Namespace) -> int:
    answer = ask(args, "key_revoke", name=args.name)
    left = f"{len(answer['keys'])} left"
    nobody = "no key is left: no client can use the gateway"
    show(args, answer, f"revoked {args.name}; {left if answer['keys'] else nobody}")
    return Exit.DONE


VERB = Verb(
    name="revoke",
    help="revoke a client's key",
    description="Revoke a client's key at once. Waiting and running requests finish. Once no key "
    "is left, no client can use the gateway.",
    epilog="example: caovanctl key revoke alice",
    arguments=arguments,
    json="print the keys left as JSON",
    effects=True,
    run=run,
)
