"""`caovanctl cluster check`: show what keeps the nodes from serving together, and how to fix it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from caovand.cli.cluster.shared import ask, missing_nodes
from caovand.cli.common import checks
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.verb import Verb
from caovand.core.facts.checks import CheckResult


def run(args: argparse.Namespace) -> int:
    answer = ask(args, probe=True)
    results = tuple(_results(answer))
    if not results:  # a head always has results
        remedy = f"run `caovanctl cluster check` on the head, {answer['head']}"
        text = "cannot check the cluster: nothing was compared here"
        raise CommandError(Exit.FAILED, text, remedy, "not-compared")
    return checks.report(results, as_json=args.json)


def _results(answer: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Missing nodes, then the daemon's checks, grouped by node."""
    remedy = (
        f"on that machine: `sudo caovanctl cluster join {answer['head']}`, `sudo systemctl restart"
        " caovan`; `journalctl -u caovan` there shows the cause"
    )
    for text in missing_nodes(answer):
        yield CheckResult("cluster", "FAIL", text, remedy)
    for check in sorted(answer["checks"], key=lambda check: str(check["node"])):
        group = check["node"] or "cluster"
        yield CheckResult(group, check["verdict"], check["text"], check["remedy"])


VERB = Verb(
    name="check",
    help="find what keeps the cluster's machines from serving together, and the fix",
    description="Compare the cluster's machines, as the head does before each start: engines,"
    " libraries, cards, models, network and clocks. Unless an engine runs, the head and each worker"
    " also connect to each other's ports. Exit status 1 if anything fails.",
    epilog="example: caovanctl cluster check",
    json="print it as JSON",
    run=run,
)
