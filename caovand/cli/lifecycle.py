"""`caovanctl start | stop | restart | retry | ...`: what changes the engine, and waits."""

from __future__ import annotations

import argparse
import json
from typing import Any

from caovand.cli.client import Client, Exit, Problem, connect, follow, outcome
from caovand.core.config import MODES

# A first start compiles kernels and reads weights from a disk.
PATIENCE_S = 3600.0
# A new file or mode starts no engine here: there is no outcome to wait for.
STILL = ("STOPPED", "STOPPING")


def add_parsers(subparsers: Any) -> None:
    """Add the verbs."""
    for name, text, example in (
        ("start", "start the engine (also out of FAILED or HOLD)", "start --timeout 900"),
        ("stop", "stop the engine; the daemon stays", "stop --no-wait"),
        ("restart", "stop the engine and start it again", "restart && curl ..."),
        ("reset", "forget the lowered plan that served, and plan anew", "reset && caovanctl plan"),
    ):
        parser = subparsers.add_parser(
            name,
            help=text,
            description=f"caovanctl {name}: {text}.",
            epilog=f"example: caovanctl {example}",
        )
        _waiting(parser)
        parser.set_defaults(run=run_lifecycle, verb=name)
    retry = subparsers.add_parser(
        "retry",
        help="try again now; --full: without what the ladder lowered",
        description="Try again now, out of FAILED, HOLD or BACKOFF. With --full the plan is tried"
        " once without the ladder's steps; if it fails, the plan that served comes back.",
        epilog="example: caovanctl retry --full",
    )
    retry.add_argument("--full", action="store_true", help="try the plan that was not lowered")
    _waiting(retry)
    retry.set_defaults(run=run_lifecycle, verb="retry")
    reload = subparsers.add_parser(
        "reload",
        help="read the configuration again; only a changed plan restarts the engine",
        description="Read the configuration again. A broken file changes nothing. The engine is"
        " restarted only if its plan changes; one that is stopped, or being stopped, stays so and"
        " takes the file at its next start. Exit status: 0 it serves or is stopped, 1 the file or"
        " the plan was refused, 3 it does not serve.",
        epilog="example: sudoedit /etc/caovan.toml && caovanctl reload",
    )
    _waiting(reload)
    reload.set_defaults(run=run_reload)
    mode = subparsers.add_parser(
        "mode",
        help="show or choose the mode",
        description="Show or choose how the speculative depth is decided. The choice is"
        " remembered over restarts; --default goes back to the configuration file's. An engine"
        " that is stopped, or being stopped, stays so.",
        epilog="examples: caovanctl mode; caovanctl mode stable; caovanctl mode fast --defer",
    )
    mode.add_argument("mode", nargs="?", choices=MODES)
    mode.add_argument("--default", action="store_true", help="forget the chosen mode")
    mode.add_argument(
        "--defer",
        action="store_true",
        help="leave the engine alone: the mode counts from its next start on, whatever causes it",
    )
    _waiting(mode)
    mode.set_defaults(run=run_mode)


def _waiting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the outcome")
    parser.add_argument(
        "--timeout", type=float, default=PATIENCE_S, metavar="S", help="seconds to wait at most"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run_lifecycle(args: argparse.Namespace) -> int:
    """start, stop, restart, reset, retry."""
    with connect(args) as client:
        more = {"full": True} if args.verb == "retry" and args.full else {}
        answer = client.ask(args.verb, **more)
        if args.no_wait:
            return _tell(args, answer)
        if args.verb != "stop":
            return _finish(args, client)
        answer = follow(client, "stopped", args.timeout, quiet=args.json)
        if answer["state"] != "STOPPED":
            raise Problem(Exit.FAILED, f"the engine did not stop: it is {answer['state']}")
        if answer["reason"] in ("", "stopped"):
            return _tell(args, answer)
        if args.json:
            print(json.dumps(answer))
        raise Problem(Exit.FAILED, f"STOPPED, but not clean: {answer['reason']}")


def run_reload(args: argparse.Namespace) -> int:
    """reload."""
    with connect(args) as client:
        before = client.ask("status")
        answer = client.ask("reload")
        if args.no_wait or answer["state"] in STILL:
            return _tell(args, answer)
        status = _finish(args, client)
        if not args.json and client.ask("status")["generation"] == before["generation"]:
            print("the plan is the same: the engine was not restarted")
        return status


def run_mode(args: argparse.Namespace) -> int:
    """mode."""
    if args.mode and args.default:
        raise Problem(Exit.USAGE, "cannot use a mode and --default together: give one of them")
    with connect(args) as client:
        wanted = "default" if args.default else args.mode
        if wanted is None:
            answer = client.ask("mode")
            if args.json:
                print(json.dumps(answer))
            else:
                print(f"{answer['mode']} (from {answer['origin']})")
                _tell_overruled(answer["mode"], answer["overruled"])
            return Exit.DONE
        answer = client.ask("mode", mode=wanted, defer=args.defer)
        mode, overruled = answer["mode"], answer["overruled"]
        if not args.json:
            _tell_overruled(mode, overruled)
        if args.no_wait or args.defer or answer["state"] in STILL:
            return _tell(args, answer)
        status = _finish(args, client, overruled=overruled)
        if not args.json and not overruled:
            _tell_overruled(mode, _decider(client, mode))
        return status


def _tell_overruled(mode: str, by: str) -> None:
    if by:
        print(f"mode {mode} does not decide the MTP depth: {by}")


def _decider(client: Client, mode: str) -> str:
    """What a plan says sets the depth where the mode does not: the ladder, the model."""
    setting = client.ask("plan")["settings"].get("speculative_config")
    decided = setting is None or setting["reason"].startswith(f"mode {mode} ")
    return "" if decided else str(setting["reason"])


def _finish(args: argparse.Namespace, client: Client, **more: Any) -> int:
    answer = follow(client, "settled", args.timeout, quiet=args.json)
    if args.json:
        print(json.dumps({**answer, **more}))
    return outcome(answer, quiet=args.json)


def _tell(args: argparse.Namespace, answer: Any) -> int:
    print(json.dumps(answer) if args.json else answer["state"])
    return Exit.DONE
