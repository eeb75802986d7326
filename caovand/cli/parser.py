"""The complete command line of caovanctl, built from its verbs' records."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from caovand.cli.common.verb import Parser, Verb, fill

EPILOG = """examples: caovanctl status; sudo caovanctl reload; caovanctl plan. Each verb has its own
under `caovanctl VERB --help`. Exit status: 0 done, 1 failed, 2 wrong usage, 3 not serving, 4 daemon
not reachable, 5 not permitted."""
PACKAGE = "caovand.cli"


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser for this command line; with every verb if `words` name none.

    Importing every verb takes longer than running most of them.
    """
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--runtime",
        type=Path,
        metavar="DIR",
        help="folder of the daemon's sockets (default: RUNTIME_DIRECTORY, else your own daemon's,"
        " else /run/caovan)",
    )
    top = Parser(
        prog="caovanctl", description="Show and control caovand.", epilog=EPILOG, parents=[common]
    )
    whole = Verb(name="caovanctl", help="", epilog="", run=None, package=PACKAGE)
    fill(top, whole, only=_verb_in(words, common))
    return top


def _verb_in(words: Sequence[str], common: argparse.ArgumentParser) -> str:
    """The word in the verb's position, if any."""
    first = argparse.ArgumentParser(add_help=False, parents=[common], exit_on_error=False)
    first.add_argument("words", nargs=argparse.REMAINDER)
    try:
        rest = first.parse_known_args(words)[0].words
    except argparse.ArgumentError:
        return ""
    return rest[0] if rest else ""
