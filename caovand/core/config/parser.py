"""Parse a TOML document into a configuration.

All bad values are refused together, each with file, section, key and remedy.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from caovand.core.config.key import ConfigError, StringPairs, entries_of
from caovand.core.config.rules import Rungs, contradictions, suggest, without_value
from caovand.core.config.schema import Config, hints
from caovand.core.config.text import toml


def parse(
    document: Mapping[str, Any],
    source: str = "configuration",
    kinds: Collection[str] = (),
    rungs: Rungs = lambda _: (),
) -> Config:
    """Convert a parsed TOML document into a configuration.

    Raises ConfigError with all findings at once; `source` names the file in them. `kinds` are the
    known kinds of engines. `rungs` returns the ladder's rungs for a configuration's engine; without
    any, rung names are not checked.
    """
    findings: list[str] = []
    sections: dict[str, Any] = {}
    known = {f.name: f for f in fields(Config)}
    for name, content in document.items():
        if name not in known:
            findings.append(f"{source}: {_explain_misplaced(name, content)}")
        elif isinstance(content, list) and all(isinstance(entry, Mapping) for entry in content):
            findings.append(f"{source}: [[{name}]] must be written [{name}], and only once")
        elif not isinstance(content, Mapping):
            findings.append(
                f"{source}: {name} must be a section: write [{name}] on a line of its own"
            )
        else:
            sections[name] = _section(hints(Config)[name], name, content, source, findings)
    # Refused keys keep their defaults, which contradict nothing.
    config = Config(**sections)
    findings.extend(f"{source}: {text}" for text in contradictions(config, kinds, rungs))
    if findings:
        raise ConfigError(findings)
    return config


def _explain_misplaced(name: str, content: Any) -> str:
    """Explain a top-level name that is not a section."""
    if isinstance(content, Mapping):
        sections = [f.name for f in fields(Config)]
        return f"unknown section [{name}]{_elsewhere(name) or suggest(name, sections)}"
    every = [k.name for f in fields(Config) for k in fields(hints(Config)[f.name])]
    return f'"{name}" is outside any section{_elsewhere(name) or suggest(name, every)}'


def _section(
    kind: type, name: str, content: Mapping[str, Any], source: str, findings: list[str]
) -> Any:
    known = {f.name: f for f in fields(kind)}
    values: dict[str, Any] = {}
    for key_name, value in content.items():
        if key_name not in known:
            hint = suggest(key_name, known) or _elsewhere(key_name)
            findings.append(f'{source}: unknown key "{key_name}" in [{name}]{hint}')
            continue
        if entry := entries_of(hints(kind)[key_name]):
            values[key_name] = _entries(entry, f"{name}.{key_name}", value, source, findings)
            continue
        try:
            values[key_name] = _convert(value, hints(kind)[key_name], known[key_name].metadata)
        except ValueError as problem:
            findings.append(f"{source}: [{name}] {key_name} {problem}")
    return kind(**values)


def _entries(
    kind: type, name: str, content: Any, source: str, findings: list[str]
) -> tuple[tuple[str, Any], ...]:
    """Convert a table of sections, each of this kind."""
    if not isinstance(content, Mapping) or not all(
        isinstance(entry, Mapping) for entry in content.values()
    ):
        section, _, key_name = name.rpartition(".")
        rule = "must be a table of tables, such as { NAME = { temperature = 0.6 } }"
        findings.append(f"{source}: [{section}] {key_name} {rule}, is {_format_value(content)}")
        return ()
    return tuple(
        (entry, _section(kind, f"{name}.{toml(entry)}", content[entry], source, findings))
        for entry in sorted(content)
    )


def _elsewhere(name: str) -> str:
    homes = [
        f.name for f in fields(Config) if any(k.name == name for k in fields(hints(Config)[f.name]))
    ]
    return f"; it belongs in [{homes[0]}]" if homes else ""


def _convert(value: Any, kind: Any, bounds: Mapping[str, Any]) -> Any:
    """Convert a value to `kind`; the ValueError names the expected kind and the value."""
    options = get_args(kind) if get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    optional = type(None) in options
    if optional and value == "auto":
        return None
    kind = next(option for option in options if option is not type(None))
    checked = _typed(value, kind, ' or "auto"' if optional else "", private=bounds["private"])
    if optional and isinstance(checked, str) and not checked.strip():
        raise ValueError('must not be empty; omit the key for "auto"')
    low, high, choices = bounds["low"], bounds["high"], bounds["choices"]
    if low is not None and not low <= checked <= high:
        raise ValueError(f"must be from {toml(float(low))} to {toml(float(high))}, is {value!r}")
    if choices and checked not in choices:
        listed = ", ".join(([] if not optional else ["auto"]) + list(choices))
        raise ValueError(f'must be one of {listed}; is "{value}"{suggest(str(value), choices)}')
    return checked


def _typed(value: Any, kind: Any, auto: str, *, private: bool) -> Any:
    def refuse(rule: str) -> ValueError:
        shown = _kind(value) if private else _format_value(value)
        return ValueError(f"must be {rule}{auto}, is {shown}{_suggest_number(value, kind)}")

    if kind is bool:
        if not isinstance(value, bool):
            raise refuse("true or false")
        return value
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise refuse("a whole number")
        return value
    if kind is float:
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or (isinstance(value, float) and math.isnan(value))
        ):
            raise refuse("a number")
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if kind is str or get_origin(kind) is Literal:
        if not isinstance(value, str) or "\0" in value:
            raise refuse("a string")
        return value
    if kind == StringPairs:
        rule = 'a table of strings, such as { NAME = "value" }'
        if not isinstance(value, Mapping):
            raise refuse(rule)
        for name, entry in value.items():
            if not isinstance(entry, str) or "\0" in entry:
                raise ValueError(f"must be {rule}; {without_value(name)} is {_kind(entry)}")
        return tuple(sorted(value.items()))
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        if not isinstance(value, list):
            raise refuse("a list")
        entries = []
        for number, entry in enumerate(value, 1):
            try:
                entries.append(_typed(entry, item, "", private=private))
            except ValueError as problem:
                raise ValueError(f"entry {number} {problem}") from None
        return tuple(entries)
    raise AssertionError(f"no rule for a key of type {kind}")


def _kind(value: Any) -> str:
    """The kind of a value, without the value itself."""
    if isinstance(value, str):
        return "a string with a NUL in it" if "\0" in value else "a string"
    names = {bool: "true or false", int: "a whole number", float: "a number"}
    if isinstance(value, (Mapping, list)):
        return "a table" if isinstance(value, Mapping) else "a list"
    return names.get(type(value), "a date or time")


def _format_value(value: Any) -> str:
    """A value as findings show it; for tables and lists, which may contain secrets, only the
    kind."""
    if isinstance(value, (Mapping, list)):
        return _kind(value)
    # repr keeps the fraction, which is the error in 8000.0.
    return repr(value) if isinstance(value, float) else toml(value)


def _suggest_number(value: Any, kind: Any) -> str:
    """Suggest the whole number that was probably meant."""
    if kind is not int:
        return ""
    if isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    meant = re.fullmatch(r"([0-9]{1,9})([kKmM]?)", value) if isinstance(value, str) else None
    if meant is None:
        return ""
    number = int(meant[1]) * {"": 1, "k": 1024, "m": 1024**2}[meant[2].lower()]
    return f"; write {number}, without quotes"
