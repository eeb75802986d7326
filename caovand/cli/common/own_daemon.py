"""A command's private caovan daemon: its configuration, folders and command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from caovand import HOME
from caovand.adapters.files import trust
from caovand.adapters.files.directories import Directories
from caovand.core.config.schema import Config
from caovand.core.config.text import render

"""The folder of this installation of caovan."""


def code(before: str = "") -> str:
    """The daemon as a program for `python -c`; `before` are statements to run first.

    Not `-m`: that would first search for modules in the current folder, which may be untrusted.
    """
    return (
        f"{before}import runpy, sys; sys.path[0] = {HOME!r}; "
        "runpy.run_module('caovand', run_name='__main__', alter_sys=True)"
    )


def environ(places: Directories) -> dict[str, str]:
    """Our environment, adapted to a daemon with these folders."""
    return {
        **trust.own_environ(os.environ),
        "RUNTIME_DIRECTORY": str(places.runtime),
        "STATE_DIRECTORY": str(places.state),
        "LOGS_DIRECTORY": str(places.logs),
        "CACHE_DIRECTORY": str(places.cache),
    }


def write(folder: Path, config: Config, more: Mapping[str, str] | None = None) -> Path:
    """Write a configuration and further files, readable only by us; return the configuration's
    path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {**(more or {}), "caovan.toml": render(config)}.items():
        path = folder / name
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    return folder / "caovan.toml"
