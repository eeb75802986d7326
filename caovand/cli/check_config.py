"""`caovanctl check-config`: the daemon's own check of a file, with no daemon."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from caovand.adapters import config_file
from caovand.cli.errors import Exit
from caovand.cli.verb import Group, Verb
from caovand.core.config import ConfigError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, default=Path("/etc/caovan.toml"))
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """check-config."""
    findings: tuple[str, ...] = ()
    try:
        config_file.check_secrets(config_file.load(args.file), args.file)
    except ConfigError as problem:
        findings = problem.findings
    if args.json:
        print(json.dumps({"file": str(args.file), "ok": not findings, "findings": findings}))
    else:
        print("\n".join(findings) or f"{args.file}: valid")
    return Exit.FAILED if findings else Exit.DONE


VERB = Verb(
    name="check-config",
    group=Group.OFFLINE,
    help="check a configuration file",
    description="Check a configuration file as the daemon would. Exit status 1 if it is invalid.",
    epilog="example: caovanctl check-config ./caovan.toml",
    arguments=arguments,
    run=run,
)
