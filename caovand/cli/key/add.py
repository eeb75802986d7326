"""`caovanctl key add`: create a key for a client of the gateway."""

from __future__ import annotations

import argparse
import sys

from caovand.cli.common.client import ask
from caovand.cli.common.errors import Exit
from caovand.cli.common.printing import show
from caovand.cli.common.verb import Verb
from caovand.core.gateway.fair import BANDS
from caovand.core.gateway.naming import EFFORTS


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the client's name, shown in usage reports")
    parser.add_argument(
        "--models",
        default="",
        metavar="A,B",
        help="the only models that this client may use; default: all",
    )
    parser.add_argument("--rpm", type=int, metavar="N", help="maximum requests per minute")
    parser.add_argument(
        "--tokens-per-day",
        type=int,
        metavar="N",
        help="maximum tokens per day (UTC), input and output",
    )
    parser.add_argument(
        "--band", choices=BANDS, default=BANDS[0], help="background waits for interactive clients"
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="temperature of requests that set none"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="limit of generated tokens in requests that set none",
    )
    parser.add_argument(
        "--reasoning-effort", choices=EFFORTS, help="reasoning effort of requests that set none"
    )


def run(args: argparse.Namespace) -> int:
    limits = {
        "models": [name.strip() for name in args.models.split(",") if name.strip()],
        "rpm": args.rpm,
        "tokens_per_day": args.tokens_per_day,
        "band": args.band,
        "temperature": args.temperature,
        "max_tokens": args.max_tokens,
        "reasoning_effort": args.reasoning_effort,
    }
    answer = ask(args, "key_add", name=args.name, **limits)
    show(args, answer, answer["key"])
    if not args.json:
        print("caovan keeps only the key's digest and cannot show the key again", file=sys.stderr)
    return Exit.DONE


VERB = Verb(
    name="add",
    help="create a key for a client",
    description="Create a key for a client of the gateway, and print it; it is never shown again."
    " As soon as there is a key, every client must send one, and the key in [server] api_key_file"
    " is no longer accepted.",
    epilog="example: caovanctl key add alice --models my-model --rpm 60",
    arguments=arguments,
    json="print it as JSON",
    effects=True,
    run=run,
)
