"""The words of an engine's own command that serves a model. Part of its record
(`core.engine.record`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caovand.core.config.schema import Config, EngineSection


@dataclass(frozen=True)
class ServeRequest:
    """What the words ask for; `secrets` by the variable that carries them, and a `note` for
    people, "" without one."""

    config: Config
    secrets: Mapping[str, str]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ServeWords:
    """Interprets the words of `python -m MODULE ...`."""

    module: str
    other_kind: Callable[[Sequence[str]], str]
    """The kind of engine that serves the model that they name; "" for this one."""
    named_file: Callable[[Sequence[str]], str]
    """The file with more words; "" without one. Raises ProblemError."""
    expand: Callable[[Sequence[str], Any, Collection[str]], list[str]]
    """Replaces the named file with its document's keys, by the engine's options; raises
    ProblemError."""
    read: Callable[[Sequence[str], EngineSection, Collection[str], Collection[str]], ServeRequest]
    """Reads the words as a configuration of this engine section, by the engine's options and
    switches. Raises ProblemError, or Unplannable for a value that no plan can have."""
