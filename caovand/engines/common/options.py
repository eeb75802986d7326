"""The operator's verbatim options, in the way that the parsers of several engines read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from caovand.core import secrets
from caovand.core.config.schema import Config
from caovand.core.problem import Problem

HIDDEN = "***"
STRAY = Problem(
    "pass a word of [engine] extra_args", "it does not belong to any option", "remove it"
)


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


def values(typed: Iterable[Typed]) -> dict[str, Any]:
    """Values by name; the last of an option counts."""
    return {option.name: option.value for option in typed if option.name}


@dataclass(frozen=True)
class SecretOptions:
    """The secrets among the options that `read` finds: the values of `keys`, and those in others
    that resemble a secret.

    With a `separator`, an option of `keys` may list several.
    """

    read: Callable[[Sequence[str]], Iterable[Typed]]
    keys: Collection[str]
    separator: str = ""

    def redact(self, words: Sequence[str]) -> tuple[str, ...]:
        """The words for display, with their secrets hidden."""
        shown: list[str] = []
        for option in self.read(words):
            if not option.name or not (
                option.name in self.keys or secrets.is_secret_entry(option.name, option.value)
            ):
                shown += [secrets.hide(word, mark=HIDDEN) for word in option.words]
            elif "=" in option.words[0]:
                shown.append(f"{option.words[0].partition('=')[0]}={HIDDEN}")
            else:
                shown += [option.words[0], *(HIDDEN for _ in option.words[1:])]
        return tuple(shown)

    def values(self, words: Sequence[str]) -> tuple[str, ...]:
        """The values that are never shown."""
        hidden: list[str] = []
        for option in self.read(words):
            if option.name in self.keys:
                hidden += self._split(option)
            else:
                hidden += secrets.secrets_in({option.name: option.value})
        return tuple(hidden)

    def api_keys(self, words: Sequence[str]) -> tuple[str, ...] | None:
        """The keys of the last --api-key, each of which grants access; None without one."""
        keys = [option for option in self.read(words) if option.name == "api_key"]
        return tuple(self._split(keys[-1])) if keys else None

    def _split(self, option: Typed) -> list[str]:
        """The values of an option whose words may each list several."""
        separator = self.separator
        parts = (value.split(separator) if separator else [value] for value in option.values)
        return [part for listed in parts for part in listed if part]


def chat_template(config: Config, typed: dict[str, Any]) -> str:
    """The engine's chat template: from its options, else from the key; "" for neither."""
    template = typed.get("chat_template", config.model.chat_template)
    return template if isinstance(template, str) else ""
