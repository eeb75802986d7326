"""`caovanctl version`: show the versions of caovanctl and of the daemon."""

from __future__ import annotations

import argparse

from caovand import __version__
from caovand.cli.common.client import ask
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.printing import show
from caovand.cli.common.verb import Verb


def run(args: argparse.Namespace) -> int:
    """Show our version, and the daemon's if one runs."""
    try:
        daemon = ask(args, "version", answer_s=2.0)["version"]
    except CommandError:
        daemon = None
    document = {"caovanctl": __version__, "caovand": daemon}
    show(args, document, f"caovanctl {__version__}\ncaovand {daemon or 'not running'}")
    return Exit.DONE


VERB = Verb(
    name="version",
    help="show the versions of caovanctl and caovand",
    description="Show the versions of caovanctl and of the running caovand, if there is one.",
    epilog="example: caovanctl version --json | jq -r .caovand",
    json="print them as JSON",
    run=run,
)
