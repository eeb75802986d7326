"""`caovanctl key revoke`: revoke a client's key."""

from __future__ import annotations

import argparse
import json

from caovand.cli.common.client import connect
from caovand.cli.common.errors import Exit
from caovand.cli.common.verb import Verb


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a name in `caovanctl key list`")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        answer = client.ask("key_revoke", name=args.name)
    if args.json:
        print(json.dumps(answer))
        return Exit.DONE
    left = len(answer["keys"])
    print(f"revoked {args.name}; {left} left" if left else f"revoked {args.name}; no key is left:"
          " nobody can use the gateway")  # fmt: skip
    return Exit.DONE


VERB = Verb(
    name="revoke",
    help="revoke a client's key",
    description="Revoke a client's key at once. Waiting and running requests finish. Once no"
    " key is left, nobody can use the gateway.",
    epilog="example: caovanctl key revoke alice",
    arguments=arguments,
    json="print the keys left as JSON",
    effects=True,
    run=run,
)
