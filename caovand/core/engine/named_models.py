"""Models that an engine keeps itself, under names. Part of its record (`core.engine.record`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.problem import Problem


@dataclass(frozen=True)
class PullStep:
    """How far a download is: `text`, bytes if they are known, or the error that ended it."""

    text: str = ""
    done: int = 0
    total: int = 0
    error: str = ""
    complete: bool = False


@dataclass(frozen=True, kw_only=True)
class NamedPull:
    """How an engine's own server downloads a model."""

    words: tuple[str, ...]
    """The program's arguments."""
    variables: Callable[[str, str], Mapping[str, str]]
    """The environment for an address and a folder."""
    ready: str
    """The path that answers once the server is up."""
    path: str
    """Where `body` is posted; each line of the answer is a table for `read`."""
    body: Callable[[str], Mapping[str, Any]]
    read: Callable[[Mapping[str, Any]], PullStep]
    by_hand: str
    """The command that does the same."""


@dataclass(frozen=True, kw_only=True)
class NamedModels:
    """Models that an engine keeps itself: each name has an entry, a JSON file, and a GGUF file."""

    folders: Callable[[Config, Mapping[str, str]], Sequence[str]]
    """Where models may be, by configuration and environment; the first that has the name counts."""
    entry: Callable[[str], str]
    """The path of a name's entry in such a folder, "" if it cannot be a name."""
    weights: Callable[[Mapping[str, Any]], str]
    """The path of the GGUF file that an entry names, "" if it names none."""
    missing: Callable[[str], Problem]
    """The problem of a name that is in no folder."""
    pull: NamedPull
