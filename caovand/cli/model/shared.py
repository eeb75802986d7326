"""What the verbs of `caovanctl model` share: --root and --json, how they fail, what they print."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from caovand.adapters.model_pull import folders
from caovand.adapters.model_pull.errors import PullError
from caovand.adapters.model_pull.world import World
from caovand.cli.progress import Screen
from caovand.cli.verb import Verb
from caovand.core.model_source.manifest import Manifest
from caovand.core.problem import Problem
from caovand.core.reporting.wire import failure_fields

GIB = 1 << 30


def model_verb(
    name: str,
    help: str,
    *,
    example: str,
    run: Callable[[argparse.Namespace], int],
    arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None,
    description: str = "",
) -> Verb:
    """A verb of `caovanctl model`. `run` may raise PullError: exit status 1."""

    def all_arguments(parser: argparse.ArgumentParser) -> None:
        default = f"${folders.ROOT_VARIABLE}, else {folders.DEFAULT_ROOT}"
        parser.add_argument("--root", metavar="DIR", help=f"models' folder (default: {default})")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
        arguments(parser)

    return Verb(
        name=name,
        help=help,
        description=description,
        epilog=f"example: {example}",
        arguments=all_arguments,
        run=lambda args: _ended(run, args),
    )


def _ended(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a verb; why it failed goes to stderr, and with --json to stdout too."""
    try:
        return run(args)
    except PullError as error:
        return _failed(args, "model-failed", error.problem)
    except KeyboardInterrupt:
        print(file=sys.stderr)  # the message goes below the ^C
        stopped = Problem("", "stopped", "run the same command again to continue")
        return _failed(args, "interrupted", stopped)
    except BrokenPipeError:
        raise
    except OSError as error:
        failed = Problem("continue", str(error), "run the same command again to continue")
        return _failed(args, "os-error", failed)


def _failed(args: argparse.Namespace, code: str, problem: Problem) -> int:
    if args.json:
        print(json.dumps(failure_fields(code, problem.message, problem.remedy)))
    print(f"caovanctl: {problem}", file=sys.stderr)
    return 1


def world() -> World:
    """Progress goes to stderr."""
    screen = Screen(sys.stderr)
    return World(say=screen.say, progress=screen.progress)


def root_of(args: argparse.Namespace) -> Path:
    """The folder with the models."""
    return folders.root_from(args.root, os.environ)


def model_argument(parser: argparse.ArgumentParser) -> None:
    """The model that a verb is about."""
    parser.add_argument("model", metavar="MODEL", help="OWNER/NAME, or its folder")


def show(args: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    """Print a result, for programs or for people."""
    print(json.dumps(result) if args.json else text)


def facts(folder: Path, made: Manifest) -> dict[str, Any]:
    """A model for programs."""
    document = made.document()
    del document["version"]
    return {**document, "path": str(folder), "size_bytes": made.size_bytes}


def gib(size_bytes: int) -> str:
    """A size for people."""
    return f"{size_bytes / GIB:.2f} GiB" if size_bytes >= GIB else f"{size_bytes / 2**20:.1f} MiB"
