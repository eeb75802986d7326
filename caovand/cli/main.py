"""caovanctl: steers and shows caovand. One verb a file; this one puts them together."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from caovand.cli import (
    check_config,
    completion,
    doctor,
    engine,
    explain,
    incidents,
    inventory,
    lifecycle,
    output,
    plan,
    serve,
    status,
)
from caovand.cli.ending import ended

EPILOG = """exit status: 0 done, 1 failed, 2 wrong usage, 3 not serving, 4 daemon not reachable,
5 not permitted. `caovanctl VERB --help` shows examples."""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="caovanctl", description="Steers and shows caovand.", epilog=EPILOG
    )
    top.add_argument(
        "--runtime",
        type=Path,
        metavar="DIR",
        help="folder of the daemon's sockets (default: RUNTIME_DIRECTORY, else /run/caovan)",
    )
    verbs = top.add_subparsers(metavar="VERB", required=True)
    status.add_parsers(verbs)
    lifecycle.add_parsers(verbs)
    output.add_parsers(verbs)
    check_config.add_parser(verbs)
    explain.add_parser(verbs)
    incidents.add_parser(verbs)
    engine.add_parser(verbs)
    plan.add_parser(verbs)
    inventory.add_parser(verbs)
    doctor.add_parser(verbs)
    serve.add_parser(verbs)
    completion.add_parser(verbs)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; its exit status."""
    args = parser().parse_args(argv)
    return ended("caovanctl", lambda: args.run(args))


if __name__ == "__main__":
    sys.exit(main())
