"""The operator's verbatim options, in the way that the parsers of several engines read them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from caovand.core import secrets
from caovand.core.config.schema import Config
from caovand.core.problem import Problem

HIDDEN = "***"
STRAY = Problem("pass a word of [engine] extra_args", "it belongs to no option", "remove it")


@dataclass(frozen=True)
class Typed:
    """One verbatim option; `name` is empty for a word that belongs to none."""

    name: str
    value: Any
    words: tuple[str, ...]

    @property
    def values(self) -> tuple[str, ...]:
        """The option's values as typed, after it or after its equals sign."""
        return self.words[1:] or tuple(word.partition("=")[2] for word in self.words if "=" in word)


def is_option(word: str) -> bool:
    """Whether a word is an option; a negative number is a value."""
    return len(word) > 1 and word[0] == "-" and not (word[1].isdigit() or word[1] == ".")


def parse_value(word: str, kind: type | None) -> Any:
    """The number or truth value that a word spells, unless the option takes a string."""
    if kind is str:
        return word
    try:
        value = json.loads(word)
    except (ValueError, RecursionError):
        return word
    return value if isinstance(value, (int, float, bool)) else word


def count(value: Any) -> int | None:
    """A whole number of one or more; None for anything else."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value > 0 else None


def values(found: Iterable[Typed]) -> dict[str, Any]:
    """Values by name; the last of an option counts."""
    return {one.name: one.value for one in found if one.name}


def redact(found: Iterable[Typed], keys: Collection[str]) -> tuple[str, ...]:
    """The words for display, with the values of `keys` hidden."""
    shown: list[str] = []
    for one in found:
        if not one.name or not (one.name in keys or secrets.is_secret_entry(one.name, one.value)):
            shown += [secrets.hide(word, mark=HIDDEN) for word in one.words]
        elif "=" in one.words[0]:
            shown.append(f"{one.words[0].partition('=')[0]}={HIDDEN}")
        else:
            shown += [one.words[0], *(HIDDEN for _ in one.words[1:])]
    return tuple(shown)


def secret_values(
    found: Iterable[Typed], keys: Collection[str], separator: str = ""
) -> tuple[str, ...]:
    """The values that are shown to nobody: those of `keys`, and strings in others that resemble a
    secret."""
    hidden: list[str] = []
    for one in found:
        if one.name in keys:
            hidden += _split_values(one, separator)
        else:
            hidden += secrets.secrets_in({one.name: one.value})
    return tuple(hidden)


def api_keys(found: Iterable[Typed], separator: str = "") -> tuple[str, ...] | None:
    """The keys of the last --api-key, each of which grants access; None without one."""
    keys = [one for one in found if one.name == "api_key"]
    return tuple(_split_values(keys[-1], separator)) if keys else None


def _split_values(one: Typed, separator: str) -> list[str]:
    """The values of an option whose words may each list several."""
    parts = (text.split(separator) if separator else [text] for text in one.values)
    return [part for listed in parts for part in listed if part]


def chat_template(config: Config, typed: dict[str, Any]) -> str:
    """The engine's chat template: from its options, else from the key; "" for neither."""
    found = typed.get("chat_template", config.model.chat_template)
    return found if isinstance(found, str) else ""
