"""The engines that caovan can run: the only module that imports them."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping

from caovand.core.engine.record import Engine

DEFAULT = "vllm"
MODULES: Mapping[str, str] = {
    "vllm": "caovand.engines.vllm.engine",
    "llamacpp": "caovand.engines.llamacpp.engine",
    "ollama": "caovand.engines.ollama.engine",
    "sglang": "caovand.engines.sglang.engine",
}
"""The module of each kind's record; if several prefer a model, the first is chosen."""


def engine_of(kind: str = DEFAULT) -> Engine:
    """The engine of a kind."""
    return load(MODULES[kind])


def engine_for(path: str, files: Collection[str]) -> Engine:
    """The engine for a model: the first that prefers it, else the default one.

    `files` are the file names in the folder `path`; none if it is not a folder.
    """
    return next((one for one in engines() if one.prefers(path, files)), engine_of())


def engines() -> list[Engine]:
    """Every engine."""
    return [engine_of(kind) for kind in MODULES]


def load(module: str) -> Engine:
    """The record named `ENGINE` in a module."""
    found = importlib.import_module(module).ENGINE
    assert isinstance(found, Engine)
    return found
