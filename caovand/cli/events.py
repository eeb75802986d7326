"""`caovanctl events`: show the daemon's actions and observations."""

from __future__ import annotations

import argparse
import json
import time

from caovand.cli.common.client import connect
from caovand.cli.common.errors import Exit
from caovand.cli.common.verb import Verb
from caovand.core.reporting.wire import Notice, notice_fields


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new events")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        if args.follow:
            for notice in client.notices(0):
                _print(notice, args.json)
        since = 0
        while entries := client.ask("events", since=since)["events"]:
            for entry in entries:
                since = entry["seq"]
                _print(
                    Notice(since, entry["at"], entry["kind"], entry["text"], entry["data"]),
                    args.json,
                )
    return Exit.DONE


def _print(notice: Notice, as_json: bool) -> None:
    if as_json:
        print(json.dumps(notice_fields(notice)), flush=True)
    else:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(notice.at))
        print(f"{stamp}  {notice.kind:<8} {notice.text}", flush=True)


VERB = Verb(
    name="events",
    help="show the daemon's actions and observations",
    description="Print the daemon's latest events: states, starts, failures, rungs, modes, tuning,"
    " reloads.",
    epilog="example: caovanctl events -f --json",
    arguments=arguments,
    json="print one JSON object per line",
    run=run,
)
