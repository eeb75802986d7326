"""`caovanctl doctor`, also `caovan-sm75-doctor`: find what would keep the engine from running, and
how to fix it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from caovand.cli.common.checks import report
from caovand.cli.common.ending import run_to_exit_status
from caovand.cli.common.survey import add_config
from caovand.cli.common.verb import Group, Verb
from caovand.cli.doctor.examination import examine


def arguments(parser: argparse.ArgumentParser) -> None:
    _add_options(parser)
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="[MODEL] [vLLM flags]",
        help="the model to serve",
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--inventory", type=Path, metavar="FILE", help="a saved inventory")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `caovan-sm75-doctor`."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="caovan-sm75-doctor",
        usage="%(prog)s [--config FILE] [--inventory FILE] [--json] [MODEL] [vLLM flags]",
        description="Find what keeps the engine from running on this machine, and how to fix it.",
        epilog="example: caovan-sm75-doctor /srv/models/Qwen3.6-27B-AWQ --max-model-len 131072",
        allow_abbrev=False,
    )
    _add_options(parser)
    args, rest = parser.parse_known_args(words)
    args.words, args.runtime = rest, None
    return run_to_exit_status("caovan-sm75-doctor", lambda: run(args))


def run(args: argparse.Namespace) -> int:
    """Examine the model and flags in `words`; the doctor's own options may follow the model."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_options(parser)
    parser.set_defaults(config=args.config, inventory=args.inventory, json=args.json)
    options, words = parser.parse_known_args(args.words)
    results = examine(options.config, options.inventory, words, args.runtime)
    return report(results, as_json=options.json)


VERB = Verb(
    name="doctor",
    group=Group.OFFLINE,
    help="find what would stop the engine on this machine, and the fix",
    description="Check system, driver, GPUs, engine, plugin, model, memory, port and caches."
    " Exit status 1 if anything fails.",
    epilog="example: caovanctl doctor /srv/models/Qwen3.6-27B-AWQ --max-model-len 131072",
    arguments=arguments,
    run=run,
)
