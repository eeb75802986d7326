"""The whole command line of caovanctl, made from the records of its verbs."""

from __future__ import annotations

import argparse
from pathlib import Path

from caovand.cli.verb import Verb, fill

EPILOG = """examples: caovanctl status; sudo caovanctl reload; caovanctl plan. Each verb has its own
under `caovanctl VERB --help`. Exit status: 0 done, 1 failed, 2 wrong usage, 3 not serving, 4 daemon
not reachable, 5 not permitted."""


def parser() -> argparse.ArgumentParser:
    """The parser with every verb."""
    top = argparse.ArgumentParser(
        prog="caovanctl", description="Show and control caovand.", epilog=EPILOG
    )
    top.add_argument(
        "--runtime",
        type=Path,
        metavar="DIR",
        help="folder of the daemon's sockets (default: RUNTIME_DIRECTORY, else /run/caovan)",
    )
    whole = Verb(name="caovanctl", help="", epilog="", run=None, package="caovand.cli")
    fill(top, whole)
    return top
