"""What the verbs of `caovanctl engine` share: --root and --json, how they fail, what they print."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from caovand.adapters.engine_install import commands, places
from caovand.adapters.engine_install.commands import World
from caovand.adapters.engine_install.errors import EngineError
from caovand.cli.progress import Screen
from caovand.cli.verb import Verb
from caovand.core.problem import Problem
from caovand.core.reporting.wire import failure_fields

ENGINE = "NAME"
"""What an argument is called that is an engine's name; shells complete it."""


def engine_verb(
    name: str,
    help: str,
    *,
    example: str,
    run: Callable[[argparse.Namespace], int],
    arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None,
) -> Verb:
    """A verb of `caovanctl engine`. `run` may raise EngineError: exit status 1."""

    def all_arguments(parser: argparse.ArgumentParser) -> None:
        default = f"${places.ROOT_VARIABLE}, else {places.DEFAULT_ROOT}"
        parser.add_argument("--root", metavar="DIR", help=f"engines' folder (default: {default})")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
        arguments(parser)

    return Verb(
        name=name,
        help=help,
        epilog=f"example: {example}",
        arguments=all_arguments,
        run=lambda args: _ended(run, args),
    )


def _ended(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a verb; why it failed goes to stderr, and with --json to stdout too."""
    try:
        return run(args)
    except EngineError as error:
        return _failed(args, "engine-failed", error.problem)
    except KeyboardInterrupt:
        print(file=sys.stderr)  # the message goes below the ^C
        stopped = Problem("", "stopped", "run the same command again to continue")
        return _failed(args, "interrupted", stopped)
    except OSError as error:
        failed = Problem("continue", str(error), "the engine in use is unchanged")
        return _failed(args, "os-error", failed)


def _failed(args: argparse.Namespace, code: str, problem: Problem) -> int:
    if args.json:
        print(json.dumps(failure_fields(code, problem.message, problem.remedy)))
    print(f"caovanctl: {problem}", file=sys.stderr)
    return 1


def root_of(args: argparse.Namespace) -> Path:
    """The folder with the engines."""
    return places.root_from(args.root, os.environ)


def world_of(screen: Screen) -> World:
    """What an installation touches, as it really is."""
    return World(
        run=commands.run,
        free_bytes=lambda path: shutil.disk_usage(path).free,
        now=lambda: datetime.now(timezone.utc),
        environ=os.environ,
        say=screen.say,
        progress=screen.progress,
    )


def name_argument(parser: argparse.ArgumentParser) -> None:
    """The engine that a verb is about."""
    parser.add_argument("name", metavar=ENGINE)


def show(args: argparse.Namespace, result: dict[str, object], text: str) -> None:
    """Print a result, for programs or for people."""
    print(json.dumps(result, default=str) if args.json else text)


def facts(engine: places.Engine) -> dict[str, object]:
    """An engine for programs."""
    return {**asdict(engine), "path": str(engine.path), "interpreter": str(engine.interpreter)}
