"""Which engine a configuration is for: the kind it names, else the one its model is for."""

from __future__ import annotations

import os
from contextlib import suppress

from caovand.core.config import Config
from caovand.core.engine import Engine
from caovand.engines import registry


def chosen_engine(config: Config) -> Engine:
    """The engine of a configuration (reads the names in the model's folder)."""
    if config.engine.kind is not None:
        return registry.engine_of(config.engine.kind)
    path, files = config.model.path, list[str]()
    with suppress(OSError, ValueError):  # a name on the hub, or a path that cannot be one
        files = os.listdir(os.path.expanduser(path)) if path else []
    return registry.engine_for(path, files)
