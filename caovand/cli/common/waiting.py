"""Verbs that change the engine: request the change, wait for the outcome, and report it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from caovand.cli.common.client import DaemonClient, connect
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.printing import show
from caovand.cli.common.verb import Group, Verb

PATIENCE_S = 3600.0
"""A first start compiles kernels and reads weights from disk."""
NOT_STARTING = ("STOPPED", "STOPPING")
"""States in which a new file or mode starts no engine: there is no outcome to wait for."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of all such verbs."""
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the outcome")
    parser.add_argument(
        "--timeout", type=float, default=PATIENCE_S, metavar="S", help="longest wait, in seconds"
    )


def change_verb(
    name: str,
    *,
    help: str,
    epilog: str,
    description: str = "",
    arguments: Callable[[argparse.ArgumentParser], None] = arguments,
    run: Callable[[argparse.Namespace], int] | None = None,
) -> Verb:
    """Define a verb that changes the engine; by default it requests `name` and waits."""
    return Verb(
        name=name,
        group=Group.CHANGE,
        effects=True,
        help=help,
        description=description,
        epilog=epilog,
        arguments=arguments,
        json="print the answer as JSON",
        run=run or (lambda args: change(args, name)),
    )


def change(args: argparse.Namespace, op: str, **more: Any) -> int:
    """Request a change that ends with a serving engine; return the exit status."""
    with connect(args) as client:
        answer = client.ask(op, **more)
        note = {"note": answer["note"]} if "note" in answer else {}
        if note and not args.json:
            print(note["note"], file=sys.stderr)
        return report(args, answer) if args.no_wait else finish(args, client, **note)


def finish(args: argparse.Namespace, client: DaemonClient, **more: Any) -> int:
    """Wait until the engine has settled, and report it; `more` goes into the JSON."""
    answer = follow(client, "settled", args.timeout, quiet=args.json)
    if args.json:
        print(json.dumps({**answer, **more}))
    return _outcome(answer, quiet=args.json)


def report(args: argparse.Namespace, answer: Mapping[str, Any]) -> int:
    """Print a reply without waiting for its outcome."""
    show(args, answer, answer["state"])
    return Exit.DONE


def follow(client: DaemonClient, until: str, timeout_s: float, *, quiet: bool) -> Mapping[str, Any]:
    """Wait until the daemon reaches `until`, printing each new phase on stderr; return the last
    status."""
    deadline = time.monotonic() + timeout_s
    shown = ""
    while True:
        left_s = max(deadline - time.monotonic(), 0)
        answer = client.ask("wait", until=until, timeout_s=min(1.0, left_s))
        text = answer["state"] + (f", {answer['phase']}" if answer["phase"] else "")
        text += f": {answer['detail']}" if answer["detail"] else ""
        reported = answer["reached"] and until == "stopped"  # the verb itself prints it
        if text != shown and not quiet and not reported:
            print(text, file=sys.stderr)
            shown = text
        if answer["reached"] or left_s == 0 or answer["state"] == "FAILED":
            return answer


def _outcome(answer: Mapping[str, Any], *, quiet: bool) -> int:
    if answer["refusal"] and answer["state"] == "SERVING":
        hint = "correct it and reload, or try it again with `caovanctl retry`"
        raise CommandError(Exit.FAILED, f"nothing changed: {answer['refusal']['text']}", hint)
    if answer["state"] == "SERVING":
        if not quiet:
            served = answer["served"]
            print(f"serving {served['name']} on {served['url']}, MTP {answer['mtp']}")
        return Exit.DONE
    raise CommandError(
        Exit.NOT_SERVING, f"not serving: {answer['state']}: {answer['reason']}", "caovanctl status"
    )
