"""`caovanctl logs | events`: what the engine printed and what the daemon did."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from caovand.cli.client import Exit, connect
from caovand.core.wire import Notice, notice_fields

FOLLOW_S = 0.3


def add_parsers(subparsers: Any) -> None:
    """Add the two verbs."""
    logs = subparsers.add_parser(
        "logs",
        help="the engine's output",
        description="Print the engine's latest lines. Older ones are in the rotated engine.log.",
        epilog="example: caovanctl logs -n 200 -f",
    )
    logs.add_argument("-n", "--lines", type=int, default=50, help="how many lines (default 50)")
    logs.set_defaults(run=run_logs)
    events = subparsers.add_parser(
        "events",
        help="what the daemon did and saw",
        description="Print the daemon's latest events: states, failures, modes, reloads.",
        epilog="example: caovanctl events -f --json",
    )
    events.set_defaults(run=run_events)
    for parser in (logs, events):
        parser.add_argument("-f", "--follow", action="store_true", help="go on with new ones")
        parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run_logs(args: argparse.Namespace) -> int:
    """logs."""
    with connect(args) as client:
        answer = client.ask("logs", lines=max(args.lines, 0))
        end = answer.get("end", answer["last"])  # a daemon from before an upgrade has no `end`
        while True:
            lines, last = answer["lines"], answer["last"]
            if not args.follow:
                # What came since is not asked for, and may come faster than it is printed.
                lines = lines[: max(len(lines) - max(last - end, 0), 0)]
            for line in lines:
                print(json.dumps({"line": line}) if args.json else line, flush=True)
            if not args.follow and (last >= end or not answer["more"]):
                return Exit.DONE
            if not answer["more"]:
                time.sleep(FOLLOW_S)
            answer = client.ask("logs", since=last)


def run_events(args: argparse.Namespace) -> int:
    """events."""
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
