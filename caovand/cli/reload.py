"""`caovanctl reload`: reread the configuration."""

from __future__ import annotations

import argparse
import sys

from caovand.cli.common import waiting
from caovand.cli.common.client import connect


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        before = client.ask("status")
        answer = client.ask("reload")
        unapplied = answer.get("unapplied", [])
        if unapplied and not args.json:
            names, restart = ", ".join(unapplied), "sudo systemctl restart caovan"
            print(f"not applied until caovan restarts ({restart}): {names}", file=sys.stderr)
        if args.no_wait or answer["state"] in waiting.NOT_STARTING:
            return waiting.report(args, answer)
        status = waiting.finish(args, client, unapplied=unapplied)
        if not args.json and client.ask("status")["generation"] == before["generation"]:
            print("plan unchanged: the engine was not restarted")
        return status


VERB = waiting.change_verb(
    "reload",
    help="reload the configuration; the engine restarts only if its plan changes",
    description="Read the configuration again. An invalid file changes nothing. The engine "
    "restarts only if its plan changes. If the new plan cannot start, the running engine keeps "
    "serving; if the new plan fails while starting, the daemon starts the previous plan again. "
    "A stopped or stopping engine stays stopped and uses the new file at its next start. Exit "
    "status: 0 serving or stopped, 1 file or plan refused, 3 not serving.",
    epilog="example: sudoedit /etc/caovan.toml && sudo caovanctl reload",
    run=run,
)
