"""`caovanctl key add`: create a key for a client of the gateway."""

from __future__ import annotations

import argparse
import json
import sys

from caovand.cli.common.client import connect
from caovand.cli.common.errors import Exit
from caovand.cli.common.verb import Verb
from caovand.core.gateway.keys import BANDS


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="whose key it is, as usage names it")
    parser.add_argument(
        "--models",
        default="",
        metavar="A,B",
        help="the only names this client may ask for; default: all",
    )
    parser.add_argument("--rpm", type=int, metavar="N", help="most requests a minute")
    parser.add_argument(
        "--tokens-per-day", type=int, metavar="N", help="most tokens a day (UTC), read and written"
    )
    parser.add_argument(
        "--band", choices=BANDS, default=BANDS[0], help="background waits for interactive clients"
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(args: argparse.Namespace) -> int:
    """key add."""
    wanted = {
        "models": [name.strip() for name in args.models.split(",") if name.strip()],
        "rpm": args.rpm,
        "tokens_per_day": args.tokens_per_day,
        "band": args.band,
    }
    with connect(args) as client:
        answer = client.ask("key_add", name=args.name, **wanted)
    if args.json:
        print(json.dumps(answer))
        return Exit.DONE
    print(answer["key"])
    print("caovan keeps only its digest: this is the one time it is shown", file=sys.stderr)
    return Exit.DONE


VERB = Verb(
    name="add",
    help="make a key for a client",
    description="Make a key for a client of the gateway, and print it this once. As soon as there"
    " is a key, every client must send one, and that of [server] api_key_file is no longer taken.",
    epilog="example: caovanctl key add alice --models my-model --rpm 60",
    arguments=arguments,
    effects=True,
    run=run,
)
