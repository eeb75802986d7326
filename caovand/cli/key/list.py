"""`caovanctl key list`: list the keys of the gateway's clients, and the use of each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from caovand.cli.common.client import ask
from caovand.cli.common.console import console
from caovand.cli.common.errors import Exit
from caovand.cli.common.verb import Verb

NO_KEY = NO_DEFAULTS = "-"
DEFAULTS = {"temperature": "temperature", "max_tokens": "tokens", "reasoning_effort": "effort"}


def run(args: argparse.Namespace) -> int:
    answer = ask(args, "keys")
    if args.json:
        print(json.dumps(answer))
    else:
        show(answer)
    return Exit.DONE


def show(answer: Mapping[str, Any]) -> None:
    """Print the keys and their use."""
    out = console()
    if not answer["required"]:
        out.print("no keys: clients need only the key in [server] api_key_file, if there is one")
    elif not answer["keys"]:
        out.print("no keys: nobody can use the gateway; `caovanctl key add NAME` makes one")
    else:
        table = Table("key", "models", "requests a minute", "tokens a day", "band", "defaults")
        for key in answer["keys"]:
            limits = (_number(key[name]) for name in ("rpm", "tokens_per_day"))
            models = ", ".join(key["models"]) or "all"
            table.add_row(key["name"], models, *limits, key["band"], _defaults(key))
        out.print(table)
    if answer["usage"]:
        table = Table("day (UTC)", "key", "requests", "tokens read", "tokens written")
        for row in answer["usage"]:
            numbers = (_number(row[name]) for name in ("requests", "read", "written"))
            table.add_row(row["day"], row["key"] or NO_KEY, *numbers)
        out.print(table)


def _defaults(key: Mapping[str, Any]) -> str:
    defaults = (f"{title} {key[name]}" for name, title in DEFAULTS.items() if key[name] is not None)
    return "\n".join(defaults) or NO_DEFAULTS


def _number(value: int | None) -> str:
    return "any" if value is None else f"{value:,}"


VERB = Verb(
    name="list",
    help="list the keys and the daily usage of each",
    epilog="example: caovanctl key list --json",
    json="print it as JSON",
    run=run,
)
