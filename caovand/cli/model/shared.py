"""Parts shared by the verbs of `caovanctl model`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from caovand.adapters.model_pull import folders
from caovand.adapters.model_pull.errors import PullError
from caovand.adapters.model_pull.world import World
from caovand.cli.common.family import VerbFamily
from caovand.cli.common.progress import Screen
from caovand.core.model_source.manifest import Manifest
from caovand.core.units import GIB

FAMILY = VerbFamily(
    things="models",
    variable=folders.ROOT_VARIABLE,
    root=folders.DEFAULT_ROOT,
    error=PullError,
    code="model-failed",
)
model_verb = FAMILY.verb


def world() -> World:
    """The environment of a pull; its progress goes to stderr."""
    screen = Screen(sys.stderr)
    return World(say=screen.say, progress=screen.progress)


def root_of(args: argparse.Namespace) -> Path:
    """The models' folder."""
    return folders.root_from(args.root, os.environ)


def model_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a model."""
    parser.add_argument("model", metavar="MODEL", help="OWNER/NAME[:TYPE], or its folder")


def model_document(folder: Path, made: Manifest) -> dict[str, Any]:
    """Describe a model for programs."""
    document = made.document()
    del document["version"]
    return {**document, "path": str(folder), "size_bytes": made.size_bytes}


def gib(size_bytes: int) -> str:
    """Format a size for people."""
    return f"{size_bytes / GIB:.2f} GiB" if size_bytes >= GIB else f"{size_bytes / 2**20:.1f} MiB"
