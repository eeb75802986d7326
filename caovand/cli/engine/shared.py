"""Parts shared by the verbs of `caovanctl engine`."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from caovand.adapters.engine_install import commands, places
from caovand.adapters.engine_install.commands import InstallWorld
from caovand.adapters.engine_install.errors import EngineError
from caovand.cli.common.family import VerbFamily
from caovand.cli.common.progress import Screen
from caovand.engines import registry

ENGINE = "NAME"
"""Metavar of an argument that is an engine's name; shells complete it."""
FAMILY = VerbFamily(
    things="engines",
    variable=places.ROOT_VARIABLE,
    root=places.DEFAULT_ROOT,
    error=EngineError,
    code="engine-failed",
    after_os_error="the engine in use is unchanged",
)
engine_verb = FAMILY.verb


def root_of(args: argparse.Namespace) -> Path:
    """The engines' folder."""
    return places.root_from(args.root, os.environ)


def world_of(screen: Screen) -> InstallWorld:
    """The real environment of an installation, which reports progress during long commands."""

    def run(
        command: Sequence[str], env: Mapping[str, str], tick: Callable[[], None]
    ) -> commands.Finished:
        def alive() -> None:
            tick()
            screen.alive()

        return commands.run(command, env, alive)

    return InstallWorld(
        run=run,
        free_bytes=lambda path: shutil.disk_usage(path).free,
        now=lambda: datetime.now(timezone.utc),
        environ=os.environ,
        say=screen.say,
        progress=screen.progress,
    )


def name_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names an engine."""
    parser.add_argument("name", metavar=ENGINE)


def describe_engine(engine: places.InstalledEngine, *, aligned: bool = False) -> str:
    """Describe an engine for people; `aligned` in a list of several lines."""
    title = registry.engine_of(engine.kind).title
    parts = [(title, engine.version, 12), ("torch", engine.torch, 14)]
    parts += [("Python", engine.python, 8)]
    words = [f"{n} {v:{w}}" if aligned else f"{n} {v}" for n, v, w in parts if v]
    if aligned and registry.engine_of(engine.kind).install.takes_plugin:
        words.append(f"plugin {engine.plugin}" if engine.plugin else "no plugin")
    return " ".join(words).rstrip() if aligned else ", ".join(words)


def engine_document(engine: places.InstalledEngine) -> dict[str, object]:
    """Describe an engine for programs."""
    return {**asdict(engine), "path": str(engine.path), "interpreter": str(engine.interpreter)}
