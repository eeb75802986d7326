"""`caovanctl check-config`: run the daemon's own check of a file, without a daemon.

Verbatim flags are checked against the engine's options, which are cached after the first query.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from caovand.adapters.engine.choice import chosen_engine
from caovand.adapters.files import config_file
from caovand.cli.common.errors import Exit
from caovand.cli.common.printing import show
from caovand.cli.common.survey import SYSTEM_CONFIG, config_path, inspect, running
from caovand.cli.common.verb import Group, Verb
from caovand.core.config.key import ConfigError
from caovand.core.config.schema import Config

PATIENCE_S = 20.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", type=Path, help=f"default: the running daemon's, else {SYSTEM_CONFIG}"
    )


def run(args: argparse.Namespace) -> int:
    file = config_path(args.file, running(args.runtime))
    findings: tuple[str, ...] = ()
    unchecked = ""
    try:
        config = config_file.load(file)
        config_file.check_secrets(config, file)
    except ConfigError as problem:
        findings = problem.findings
    else:
        findings, unchecked = _flags(config, file)
    document = {
        "file": str(file), "ok": not findings, "findings": findings, "unchecked": unchecked,
    }  # fmt: skip
    text = "\n".join(findings) or f"{file}: valid{unchecked and f', but {unchecked}'}"
    show(args, document, text)
    return Exit.FAILED if findings else Exit.DONE


def _flags(config: Config, file: Path) -> tuple[tuple[str, ...], str]:
    """Verbatim flags that the engine rejects, or why its options are not known yet."""
    words = config.engine.extra_args
    if not words:
        return (), ""
    machine = inspect(config, patience_s=PATIENCE_S, source=file)
    if machine.engine is None or machine.half_asked:
        reason = (
            machine.engine_problem or "the engine is still reporting its options; run this again"
        )
        return (), f"[engine] extra_args are not checked: {reason}"
    refused = chosen_engine(config).arguments.check(words, machine.engine)
    return tuple(f"{file}: [engine] extra_args: {problem}" for problem in refused), ""


VERB = Verb(
    name="check-config",
    group=Group.OFFLINE,
    help="check a configuration file",
    description="Check a configuration file as the daemon would, and [engine] extra_args as the"
    " engine would. Exit status 1 if it is invalid.",
    epilog="example: caovanctl check-config ./caovan.toml",
    arguments=arguments,
    json="print the findings as JSON",
    run=run,
)
