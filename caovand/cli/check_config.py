"""`caovanctl check-config`: the daemon's own check of a file, with no daemon."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from caovand.adapters import config_file
from caovand.cli.errors import Exit
from caovand.cli.survey import SYSTEM_CONFIG, daemon_config, running
from caovand.cli.verb import Group, Verb
from caovand.core.config import ConfigError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=Path, help=f"default: that of the daemon, else {SYSTEM_CONFIG}"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """check-config."""
    file = args.file or daemon_config(running(args.runtime)) or SYSTEM_CONFIG
    findings: tuple[str, ...] = ()
    try:
        config_file.check_secrets(config_file.load(file), file)
    except ConfigError as problem:
        findings = problem.findings
    if args.json:
        print(json.dumps({"file": str(file), "ok": not findings, "findings": findings}))
    else:
        print("\n".join(findings) or f"{file}: valid")
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
