"""Models that an engine stores itself, by name. Part of its record (`core.engine.record`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caovand.core.config.schema import Config
from caovand.core.problem import Problem


@dataclass(frozen=True)
class PullStep:
    """Progress of a download: `text`, bytes if known, or the error that ended it."""

    text: str = ""
    done: int = 0
    total: int = 0
    error: str = ""
    complete: bool = False


@dataclass(frozen=True, kw_only=True)
class NamedPull:
    """Downloads a model with an engine's own server."""

    words: tuple[str, ...]
    """The program's arguments."""
    variables: Callable[[str, str], Mapping[str, str]]
    """The environment for an address and a folder."""
    ready: str
    """Path that answers once the server is up."""
    path: str
    """The path to post `body` to; each line of the response is a table for `read`."""
    body: Callable[[str], Mapping[str, Any]]
    read: Callable[[Mapping[str, Any]], PullStep]
    by_hand: str
    """The command with which an operator does the same."""


@dataclass(frozen=True, kw_only=True)
class NamedModels:
    """Models that an engine stores itself: each name has an entry, a JSON file, and a GGUF file."""

    folders: Callable[[Config, Mapping[str, str]], Sequence[str]]
    """Folders that may hold models, by configuration and environment; the first one with the name
    wins."""
    entry: Callable[[str], str]
    """Path of a name's entry in such a folder; "" if it is no valid name."""
    weights: Callable[[Mapping[str, Any]], str]
    """Path of the GGUF file that an entry refers to; "" without one."""
    missing: Callable[[str], Problem]
    """The problem of a name that no folder has."""
    pull: NamedPull
