"""`caovanctl cluster leave`: serve alone again."""

from __future__ import annotations

import argparse

from caovand.cli.cluster import section
from caovand.cli.cluster.shared import RESTART, config_argument
from caovand.cli.common.errors import Exit
from caovand.cli.common.verb import Verb

CANNOT = "leave the cluster"


def run(args: argparse.Namespace) -> int:
    before = section.read(args.config, CANNOT)
    section.write(before, section.without_section(before, CANNOT), CANNOT)
    print(f"this machine serves alone: [cluster] was removed from {args.config}")
    print(f"the key stays: {before.cluster.key_file}")
    print(f"next: `{RESTART}`")
    return Exit.DONE


VERB = Verb(
    name="leave",
    help="take this machine out of its cluster",
    description="Take this machine out of its cluster: remove the section that `init` or `join`"
    " wrote. Takes effect when the daemon restarts.",
    epilog="example: sudo caovanctl cluster leave && sudo systemctl restart caovan",
    arguments=config_argument,
    run=run,
    effects=True,
)
