"""`caovanctl top`: a live screen of the engine, its requests and its cards."""

from __future__ import annotations

import argparse
import os
import sys

from rich.console import Console

from caovand.cli.common.client import connect
from caovand.cli.common.console import console
from caovand.cli.common.errors import Exit
from caovand.cli.common.printing import takes_unicode
from caovand.cli.common.verb import Verb
from caovand.cli.top import live, screen
from caovand.cli.top.terminal import KEYS
from caovand.cli.top.view import TerminalStyle
from caovand.cli.top.watcher import Watcher


def run(args: argparse.Namespace) -> int:
    out = console()
    look = TerminalStyle(
        unicode=takes_unicode(sys.stdout),
        colour=out.color_system is not None and not out.no_color,
    )
    with connect(args) as client:
        watcher = Watcher(client)
        if _is_screen(out):
            return live.run(out, watcher, look)
        view = watcher.first()
    for line in screen.one_off(view, out.width, look):
        out.print(line)
    return Exit.DONE if view.status["state"] == "SERVING" else Exit.NOT_SERVING


def _is_screen(out: Console) -> bool:
    """Whether input is a keyboard, and output a terminal with a movable cursor."""
    able = out.is_terminal and not out.is_dumb_terminal and os.environ.get("TERM")
    return bool(able and os.isatty(KEYS) and os.isatty(out.file.fileno()))


VERB = Verb(
    name="top",
    help="show engine, requests and cards live",
    description="Show state, speed, requests, cards and their processes, and the daemon's events "
    "on one live screen. Keys: m chooses the mode, l shows the engine's output, i incidents, r "
    f"requests, ? help, q quits. Needs {screen.MIN_WIDTH}x{screen.MIN_HEIGHT} characters. If "
    "output or input is not a terminal, or TERM is dumb, prints one screen as text; exit status "
    "3 if not serving. Inside a container, processes outside it have no name.",
    epilog="example: caovanctl top",
    run=run,
)
