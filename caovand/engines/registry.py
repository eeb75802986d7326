"""The engines caovan can run: the only place that names one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from caovand.core.config import Config
from caovand.core.engine import Engine

DEFAULT = "vllm"
MODULES: Mapping[str, str] = {"vllm": "caovand.engines.vllm.engine"}


def engine_of(config: Config | None = None) -> Engine:
    """The engine of a configuration; there is only one so far."""
    return load(MODULES[DEFAULT])


def load(module: str) -> Engine:
    """The record named `ENGINE` in a module."""
    found = importlib.import_module(module).ENGINE
    assert isinstance(found, Engine)
    return found
