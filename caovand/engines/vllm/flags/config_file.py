"""The file of `vllm serve --config FILE`: where it is named, and the words that it stands for."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from caovand.core.problem import ProblemError

FLAG, ENDINGS = "--config", (".yaml", ".yml")


def named_file(words: Sequence[str]) -> str:
    """The file that a command line names, "" for none; ProblemError if vLLM reads none."""
    count = words.count(FLAG)
    if not count:
        return ""
    at = words.index(FLAG)
    path = words[at + 1] if at + 1 < len(words) else ""
    if count > 1:
        raise _bad(f"several {FLAG}", "vLLM reads one file", "put all keys into one")
    if not path.endswith(ENDINGS):
        fact = "vLLM reads files that end in .yaml or .yml only"
        raise _bad(f"{FLAG} {path}".rstrip(), fact, "name such a file")
    return path


def expand(words: Sequence[str], document: Any, known: Collection[str]) -> list[str]:
    """The command line with the file's keys instead of its name; what is typed wins.

    `known` are the engine's options: a key that is false needs its `--no-` twin.
    """
    at = words.index(FLAG)
    if not isinstance(document, Mapping):
        raise _bad(f"{FLAG} {words[at + 1]}", "it holds no keys", "write lines such as port: 8000")
    before, behind = [*words[:at]], [*words[at + 2 :]]
    model = before[:1] if before and not before[0].startswith("-") else []
    inner = [word for key, value in document.items() for word in _words(str(key), value, known)]
    return [*model, *inner, *before[len(model) :], *behind]


def _words(key: str, value: Any, known: Collection[str]) -> list[str]:
    """One key as vLLM reads it."""
    if isinstance(value, bool):
        twin = f"--no-{key}"
        return [f"--{key}"] if value else [twin] * (twin in known)
    if isinstance(value, list):
        return [f"--{key}", *map(str, value)] if value else []
    return [f"--{key}", json.dumps(value) if isinstance(value, Mapping) else str(value)]


def _bad(what: str, fact: str, remedy: str) -> ProblemError:
    return ProblemError(f"use {what}", fact, remedy)
