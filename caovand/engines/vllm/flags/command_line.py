"""Read a `vllm serve` command line, show it without secrets, and refuse what vLLM would refuse.

The operator's verbatim flags are never corrected: flags that vLLM would refuse after a minute of
imports, or that it would read behind the planner's back, are refused.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caovand.core import secrets
from caovand.core.facts.inventory import EngineInfo
from caovand.core.plan import Unplannable
from caovand.core.problem import Problem
from caovand.engines.vllm.flags import spelling
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.flags.table import (
    CARRIERS,
    MANY,
    SECRETS,
    SHORT,
    SUCCESSORS,
    SWITCHES,
    WANTED,
)

HIDDEN = "***"
NUMBER = re.compile(r"[+-]?(\d{1,18}\.\d{0,18}|\.\d{1,18})")


@dataclass(frozen=True)
class Flag:
    """One flag with its value and the words that it takes up on the command line."""

    name: str
    value: Any
    words: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The values as typed: a key of digits is not a number."""
        head, equals, inline = self.words[0].partition("=")
        if not _is_flag(head):
            return self.words
        return ((inline,) if equals else ()) + self.words[1:]


def read(
    arguments: Sequence[str], known: Iterable[str] = (), switches: Iterable[str] = ()
) -> tuple[Flag, ...]:
    """The flags in order; `known` has the engine's option strings, to complete abbreviations.

    `switches` are those without a value; not every one can be recognised by a `--no-` twin. A word
    that belongs to no flag is a Flag with an empty name.
    """
    options = {_canonical(option) for option in known if option.startswith("--")}
    alone = {_canonical(option) for option in switches if option.startswith("--")} or SWITCHES
    flags: list[Flag] = []
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if not _is_flag(word):
            flags.append(Flag("", word, (word,)))
            at += 1
            continue
        head, equals, inline = word.partition("=")
        values: list[str] = [inline] if equals else []
        if head.startswith("-O") and head != "-O":
            head, values = "-O", [head[2:] or inline]
        name = _name(head, options)
        room = 0 if values or _is_negated(head) or "no_" + name in options else 1
        room = 0 if name in alone and "." not in head else room
        room = len(arguments) if room and name in MANY else room
        end = at + 1
        while end < len(arguments) and end - at <= room and not _is_flag(arguments[end]):
            end += 1
        values += arguments[at + 1 : end]
        flags.append(_flag(name, head, values, tuple(arguments[at:end])))
        at = end
    return tuple(flags)


def is_known(flag: str, known: Iterable[str]) -> bool:
    """Whether the engine's parser accepts a flag as typed, or abbreviated.

    An ambiguous abbreviation is left to vLLM, which lists the candidates.
    """
    options = {_canonical(option) for option in known}
    first = flag.partition(".")[0]
    positive = _canonical(first[5:]) if _is_negated(first) else _canonical(first)
    short = first in SHORT or first.startswith("-O")
    return short or any(option.startswith((_canonical(first), positive)) for option in options)


def values(flags: Iterable[Flag]) -> dict[str, Any]:
    """Values by flag name; a later flag wins, dotted keys are merged into their JSON value."""
    merged: dict[str, Any] = {}
    for flag in flags:
        old = merged.get(flag.name)
        if isinstance(old, dict) and isinstance(flag.value, dict):
            merged[flag.name] = _merge(old, flag.value)
        else:
            merged[flag.name] = flag.value
    merged.pop("", None)
    return merged


def without(flags: Iterable[Flag], name: str | None) -> tuple[str, ...]:
    """The words of all flags except `name`; None excludes no flag."""
    return tuple(word for flag in flags if flag.name != name for word in flag.words)


def api_keys(arguments: Sequence[str]) -> tuple[str, ...] | None:
    """The keys of the last --api-key, each of which grants access; None without such a flag."""
    for flag in reversed(read(arguments)):
        if flag.name == "api_key":
            return tuple(text for text in flag.texts if text)
    return None


def secret_values(arguments: Sequence[str]) -> tuple[str, ...]:
    """The values that are never shown, including those inside JSON."""
    values: list[str] = []
    for flag in read(arguments):
        if is_secret(flag.name):
            values += flag.texts
        else:
            values += secrets.secrets_in({flag.name: flag.value})
    return tuple(filter(None, values))


def carry_secrets(flags: Iterable[Flag]) -> tuple[dict[str, str], tuple[Flag, ...]]:
    """The secrets by the variable that can carry them, and the other flags.

    A variable has room for one value: of several keys all stay flags.
    """
    flags = tuple(flags)
    typed = {name: [f.texts for f in flags if f.name == name][-1:] for name in CARRIERS}
    moved = {name: texts[0][0] for name, texts in typed.items() if texts and len(texts[0]) == 1}
    rest = tuple(flag for flag in flags if flag.name not in moved)
    return {CARRIERS[name]: value for name, value in moved.items()}, rest


def redact(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command line with the values of secret flags hidden."""
    return tuple(word for flag in public(read(arguments)) for word in flag.words)


def public(flags: Iterable[Flag]) -> tuple[Flag, ...]:
    """The flags with their secrets hidden.

    A word after a secret that belongs to no flag is hidden too: it is a second, mistyped key.
    """
    shown: list[Flag] = []
    behind = False
    for flag in flags:
        behind = behind if not flag.name else is_hidden(flag)
        if behind and flag.texts:
            head = (flag.words[0].partition("=")[0],) if flag.name else ()
            shown.append(Flag(flag.name, HIDDEN, (*head, HIDDEN)))
        else:
            shown.append(_without_secrets(flag))
    return tuple(shown)


def _without_secrets(flag: Flag) -> Flag:
    """The flag without secrets inside its value, in JSON or in an address."""
    words = list(flag.words)
    for place, word in enumerate(words):
        head, equals, value = word.partition("=") if _is_flag(word) else ("", "", word)
        words[place] = head + equals + shown_text(value)
    return Flag(flag.name, shown_value(flag.name, flag.value), tuple(words))


def shown_value(name: str, value: Any) -> Any:
    """A flag's value, hidden if it is secret."""
    if is_secret(name) or secrets.is_secret_entry(name, value):
        return HIDDEN
    return shown_text(value) if isinstance(value, str) else secrets.hide_in(value, mark=HIDDEN)


def shown_text(word: str) -> str:
    """A word of a command line without its secrets; JSON is parsed, as the engine parses it."""
    if word[:1] in ("{", "["):
        try:
            value = json.loads(word)
        except (ValueError, RecursionError):
            pass
        else:
            public = secrets.hide_in(value, mark=HIDDEN)
            return word if public == value else json.dumps(public)
    return secrets.hide(word, mark=HIDDEN)


def is_hidden(flag: Flag) -> bool:
    """Whether a flag's whole value is hidden: its name, or the last part of a dotted name, is
    secret."""
    last = flag.words[0].partition("=")[0].rpartition(".")[2]
    value = _value(list(flag.texts)) if flag.texts else ""
    return is_secret(flag.name) or secrets.is_secret_entry(last, value)


def is_secret(name: str) -> bool:
    """Whether a flag's value is hidden; also if its name is too short for vLLM to accept."""
    return bool(name) and any(secret.startswith(name) for secret in SECRETS)


def _name(head: str, options: set[str]) -> str:
    """The flag's full name; an engine that was not probed is assumed to have the secret ones."""
    first = head.partition(".")[0]
    name = SHORT.get(first) or _canonical(first[5:] if _is_negated(first) else first)
    if name in options:
        return name
    begun = [option for option in options if option.startswith(name)]
    if not options:
        begun = [s for s, least in SECRETS.items() if s.startswith(name) and name.startswith(least)]
    return begun[0] if len(begun) == 1 else name


def _flag(name: str, head: str, values: list[str], words: tuple[str, ...]) -> Flag:
    first, *path = head.split(".")
    value: Any = not _is_negated(first) if not values else _value(values)
    for key in reversed(path):
        value = {key: value}
    return Flag(name, value, words)


def _value(words: list[str]) -> Any:
    if len(words) > 1:
        return words
    try:
        value = json.loads(words[0])
    except (ValueError, RecursionError):
        # Numbers that are not JSON but that vLLM's float() reads: ".9", "1.", "+0.5".
        return float(words[0]) if NUMBER.fullmatch(words[0]) else words[0]
    return words[0] if isinstance(value, float) and not math.isfinite(value) else value


def _canonical(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _is_negated(option: str) -> bool:
    return option.startswith(("--no-", "--no_"))


def _is_flag(word: str) -> bool:
    """Whether a word begins a flag; "-1" and "-0.5" are values."""
    return len(word) > 1 and word[0] == "-" and not (word[1].isdigit() or word[1] == ".")


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    both = {k for k in new if isinstance(new[k], dict) and isinstance(old.get(k), dict)}
    return {**old, **new, **{k: _merge(old[k], new[k]) for k in both}}


EXTRA_ARGS_KEY = "[engine] extra_args"


def argument_problems(
    words: Sequence[str], engine: EngineInfo, *, strays: bool = True
) -> tuple[Problem, ...]:
    """The flags among these words that this engine refuses; none if its options were not probed.

    With `strays`, also words that belong to no flag.
    """
    if not engine.flags:
        return ()
    typed = public(read(words, engine.flags, engine.switches))
    judged = (flag for flag in typed if strays or flag.name)
    return tuple(problem for flag in judged for problem in _problem(flag, engine))


def unknown_flag(flag: Flag, engine: EngineInfo) -> str:
    """The flag as typed if this engine has no such flag, else ""."""
    typed = flag.words[0].partition("=")[0]
    known = not engine.flags or not flag.name or is_known(typed, engine.flags)
    return "" if known else typed


def _problem(flag: Flag, engine: EngineInfo) -> Sequence[Problem]:
    vllm, option = f"vLLM {engine.version}", spelling.option(flag.name)
    if not flag.name:
        return (
            Problem(
                f'pass "{flag.value}"',
                "it does not belong to any flag",
                f"remove it from {EXTRA_ARGS_KEY}",
            ),
        )
    if word := unknown_flag(flag, engine):
        close = difflib.get_close_matches(word, sorted(engine.flags), n=1)
        remedy = f"use {close[0]}" if close else f"remove it from {EXTRA_ARGS_KEY}"
        remedy = SUCCESSORS.get(flag.name, remedy)
        return (Problem(f"pass {word}", f"{vllm} has no such flag", remedy),)
    choices, texts = dict(engine.choices).get(option), flag.texts
    if choices and len(texts) == 1 and texts[0] not in choices:
        remedy = f"use one of {', '.join(choices)}"
        return (Problem(f"pass {option} {texts[0]}", f"{vllm} has no such value", remedy),)
    return ()


def check_values(verbatim: Mapping[str, Any]) -> None:
    """Raise Unplannable for the first flag that cannot be used."""
    if "config" in verbatim:
        raise Unplannable(
            f"cannot plan with --config {verbatim['config']}: only vLLM reads that file, so the "
            "plan would silently override it; write its keys as flags in [engine] extra_args "
            "(`port: 8000` is --port 8000), or pass the file to caovan-vllm-serve as a separate "
            "word (--config FILE)"
        )
    for name, wanted in WANTED.items():
        if name in verbatim and not wanted.accepts(verbatim[name]):
            raise Unplannable(
                f"cannot use {option(name)} {verbatim[name]!r}: it is {wanted.fact}; write "
                f"{wanted.remedy}, or remove it"
            )
