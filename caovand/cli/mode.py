"""`caovanctl mode`: show or choose how the draft depth is decided."""

from __future__ import annotations

import argparse
import json

from caovand.cli.common import waiting
from caovand.cli.common.client import DaemonClient, connect
from caovand.cli.common.errors import CommandError, Exit
from caovand.core.config.schema import MODES


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mode", nargs="?", choices=MODES)
    parser.add_argument(
        "--default", action="store_true", help="return to the configuration file's mode"
    )
    parser.add_argument(
        "--defer",
        action="store_true",
        help="do not restart the engine: the mode applies from its next start, whatever causes it",
    )
    waiting.arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.mode and args.default:
        raise CommandError(Exit.USAGE, "cannot use a mode together with --default: choose one")
    mode = "default" if args.default else args.mode
    with connect(args) as client:
        return _show(args, client) if mode is None else _choose(args, client, mode)


def _show(args: argparse.Namespace, client: DaemonClient) -> int:
    answer = client.ask("mode")
    if args.json:
        print(json.dumps(answer))
    else:
        print(f"{answer['mode']} (from {answer['origin']})")
        _show_overruled(answer["mode"], answer["overruled"])
    return Exit.DONE


def _choose(args: argparse.Namespace, client: DaemonClient, chosen: str) -> int:
    answer = client.ask("mode", mode=chosen, defer=args.defer)
    mode, overruled = answer["mode"], answer["overruled"]
    if not args.json:
        _show_overruled(mode, overruled)
    if args.no_wait or args.defer or answer["state"] in waiting.NOT_STARTING:
        return waiting.report(args, answer)
    status = waiting.finish(args, client, overruled=overruled)
    if not args.json and not overruled:
        _show_overruled(mode, _decider(client, mode))
    return status


def _show_overruled(mode: str, by: str) -> None:
    if by:
        print(f"mode {mode} does not decide the MTP depth: {by}")


def _decider(client: DaemonClient, mode: str) -> str:
    """The origin that overrides the mode's depth in the plan: the ladder or the model."""
    setting = client.ask("plan")["settings"].get("speculative_config")
    decided = setting is None or setting["reason"].startswith(f"mode {mode} ")
    return "" if decided else str(setting["reason"])


VERB = waiting.change_verb(
    "mode",
    help="show or choose the mode",
    description="Show or choose how the speculative depth is decided. The choice survives"
    " restarts; --default goes back to the configuration file's. A stopped or stopping engine"
    " stays stopped.",
    epilog="examples: caovanctl mode; caovanctl mode stable; caovanctl mode fast --defer",
    arguments=arguments,
    run=run,
)
