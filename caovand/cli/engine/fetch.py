"""`caovanctl engine fetch`: fill a folder from which `install --wheels` works offline."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from caovand.adapters.engine_install import commands, places, pythons
from caovand.adapters.engine_install import wheels as wheel_files
from caovand.adapters.files import safe_files
from caovand.cli.common.printing import show
from caovand.cli.common.progress import Screen
from caovand.cli.engine import choice
from caovand.cli.engine.shared import engine_verb


def arguments(parser: argparse.ArgumentParser) -> None:
    choice.arguments(parser)
    parser.add_argument("--wheels", metavar="DIR", required=True, help="the folder to fill")
    parser.add_argument(
        "--with-python",
        action="store_true",
        help="include the engine's Python, for a machine without that version",
    )


def run(args: argparse.Namespace) -> int:
    screen = Screen(sys.stderr)
    chosen = choice.chosen_lock(args, screen)
    folder = wheel_files.Folder(Path(args.wheels).absolute())
    with safe_files.readable_by_all(), places.locked(folder.path, f"fetch {chosen.name}"):
        # A Python that uv installs goes there too, because fetching needs no root.
        if args.with_python and not pythons.find_archives(chosen.python, folder.path):
            screen.say(f"downloading Python {chosen.python} into {folder.path}")
            uv_python = pythons.UvPython(chosen.python, folder.path, commands.run)
            uv_python.download(os.environ, keep_archive=True)
        python = pythons.find(chosen.python, args.python, folder.path, os.environ, commands.run)
        wheel_files.download(chosen, python.path, folder, commands.run, screen.progress)
    result = {"wheels": str(folder.path), "count": len(chosen.pins)}
    show(args, result, f"{folder.path} has all {len(chosen.pins)} files of {chosen.name}")
    return 0


VERB = engine_verb(
    "fetch",
    "download an engine's wheels into a folder, for an offline machine",
    example="caovanctl engine fetch --build cuda --wheels ./wheels",
    arguments=arguments,
    run=run,
    effects=True,
)
