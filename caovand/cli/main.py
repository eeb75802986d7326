"""caovanctl: steers and shows caovand. One verb a file; this one puts them together."""

from __future__ import annotations

import argparse
import json
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
from caovand.cli.client import Problem
from caovand.cli.ending import ended
from caovand.core.wire import failure_fields

EPILOG = """examples: caovanctl status; sudo caovanctl reload; caovanctl plan; each verb has its own
under `caovanctl VERB --help`. Exit status: 0 done, 1 failed, 2 wrong usage, 3 not serving, 4 daemon
not reachable, 5 not permitted."""


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
    completion.add_parser(verbs, top)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; its exit status."""
    return ended("caovanctl", lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    args = parser().parse_args(argv)
    try:
        return int(args.run(args))
    except Problem as problem:
        if problem.code and getattr(args, "json", False):
            # The daemon refused, so nothing was printed yet.
            print(json.dumps(failure_fields(problem.code, problem.message, problem.hint)))
        raise


if __name__ == "__main__":
    sys.exit(main())
