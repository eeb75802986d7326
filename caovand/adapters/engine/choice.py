"""The engine for a configuration: the kind it names, else the one that suits its model."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress

from caovand.core.config.schema import Config
from caovand.core.engine.record import Engine
from caovand.engines import registry

PATIENCE_S = 2.0
"""Seconds a disk may take to list a folder: the daemon lists it before it serves, and must
start."""


def chosen_engine(config: Config) -> Engine:
    """The engine for a configuration. Reads the file names in the model's folder if no kind is set.

    A folder that cannot be listed counts as empty: the default engine then reports what is wrong.
    """
    if config.engine.kind is not None:
        return registry.engine_of(config.engine.kind)
    path = config.model.path
    return registry.engine_for(path, _file_names(path) if path else ())


def _file_names(path: str) -> Sequence[str]:
    found: list[str] = []

    def list_names() -> None:
        with suppress(OSError, ValueError):  # a name on the hub, or a path that cannot be one
            found.extend(os.listdir(os.path.expanduser(path)))

    looking = threading.Thread(target=list_names, name="caovand-names", daemon=True)
    looking.start()
    looking.join(PATIENCE_S)
    return tuple(found)
