"""caovanctl: shows and controls caovand. Each verb is a file in this folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from caovand.adapters.privileges import capabilities
from caovand.cli.common.ending import run_to_exit_status
from caovand.cli.common.errors import CommandError
from caovand.cli.parser import parser
from caovand.core.reporting.wire import failure_fields


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit status."""
    capabilities.drop_overrides()  # the unit's overrides, which ExecStop and ExecReload inherit
    words = sys.argv[1:] if argv is None else argv
    effects = False

    def run() -> int:
        nonlocal effects
        args = parser(words).parse_args(words)
        args.own_process = argv is None
        effects = args.effects
        return _run(args)

    return run_to_exit_status("caovanctl", run, lambda: effects)


def _run(args: argparse.Namespace) -> int:
    try:
        return int(args.run(args))
    except CommandError as problem:
        if problem.code and getattr(args, "json", False):
            # The daemon refused, so nothing has been printed yet.
            print(json.dumps(failure_fields(problem.code, problem.message, problem.hint)))
        raise


if __name__ == "__main__":
    sys.exit(main())
