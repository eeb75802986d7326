"""A parsed TOML document as a configuration.

A bad value is refused, naming file, section, key and a remedy, and every one of them at once.
"""

from __future__ import annotations

import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from caovand.core import addresses
from caovand.core.config import Config, ConfigError, ModelSection, Pairs, PolicySection, hints
from caovand.core.config_text import toml

Rungs = Callable[[Config], Collection[str]]


def parse(
    document: Mapping[str, Any],
    source: str = "configuration",
    kinds: Collection[str] = (),
    rungs: Rungs = lambda _: (),
) -> Config:
    """The configuration in a parsed TOML document.

    Raises ConfigError with every finding at once; `source` names the file in them. `kinds` are the
    kinds of engines, `rungs` are those of the ladder of a configuration's engine; without any,
    their names are not checked.
    """
    findings: list[str] = []
    sections: dict[str, Any] = {}
    known = {f.name: f for f in fields(Config)}
    for name, content in document.items():
        if name not in known:
            findings.append(f"{source}: {_misplaced(name, content)}")
        elif isinstance(content, list) and all(isinstance(entry, Mapping) for entry in content):
            findings.append(f"{source}: [[{name}]] must be written [{name}], and only once")
        elif not isinstance(content, Mapping):
            findings.append(
                f"{source}: {name} must be a section: write [{name}] on a line of its own"
            )
        else:
            sections[name] = _section(hints(Config)[name], name, content, source, findings)
    # A refused key has its default here, which contradicts nothing.
    config = Config(**sections)
    findings.extend(f"{source}: {text}" for text in _contradictions(config, kinds, rungs))
    if findings:
        raise ConfigError(findings)
    return config


def _misplaced(name: str, content: Any) -> str:
    """What is wrong with a name at the top level that is not a section."""
    if isinstance(content, Mapping):
        sections = [f.name for f in fields(Config)]
        return f"unknown section [{name}]{_elsewhere(name) or _suggest(name, sections)}"
    every = [k.name for f in fields(Config) for k in fields(hints(Config)[f.name])]
    return f'"{name}" is outside any section{_elsewhere(name) or _suggest(name, every)}'


def _section(
    kind: type, name: str, content: Mapping[str, Any], source: str, findings: list[str]
) -> Any:
    known = {f.name: f for f in fields(kind)}
    values: dict[str, Any] = {}
    for key_name, value in content.items():
        if key_name not in known:
            hint = _suggest(key_name, known) or _elsewhere(key_name)
            findings.append(f'{source}: unknown key "{key_name}" in [{name}]{hint}')
            continue
        try:
            values[key_name] = _convert(value, hints(kind)[key_name], known[key_name].metadata)
        except ValueError as problem:
            findings.append(f"{source}: [{name}] {key_name} {problem}")
    return kind(**values)


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""


def _elsewhere(name: str) -> str:
    homes = [
        f.name for f in fields(Config) if any(k.name == name for k in fields(hints(Config)[f.name]))
    ]
    return f"; it belongs in [{homes[0]}]" if homes else ""


def _convert(value: Any, kind: Any, bounds: Mapping[str, Any]) -> Any:
    """The value as `kind`, or ValueError that names the wanted kind and the value."""
    options = get_args(kind) if get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    optional = type(None) in options
    if optional and value == "auto":
        return None
    kind = next(option for option in options if option is not type(None))
    checked = _typed(value, kind, ' or "auto"' if optional else "", private=bounds["private"])
    if optional and isinstance(checked, str) and not checked.strip():
        raise ValueError('must not be empty; leave the key out for "auto"')
    low, high, choices = bounds["low"], bounds["high"], bounds["choices"]
    if low is not None and not low <= checked <= high:
        raise ValueError(f"must be from {toml(float(low))} to {toml(float(high))}, is {value!r}")
    if choices and checked not in choices:
        listed = ", ".join(([] if not optional else ["auto"]) + list(choices))
        raise ValueError(f'must be one of {listed}; is "{value}"{_suggest(str(value), choices)}')
    return checked


def _typed(value: Any, kind: Any, auto: str, *, private: bool) -> Any:
    def refuse(wanted: str) -> ValueError:
        shown = _kind(value) if private else _shown(value)
        return ValueError(f"must be {wanted}{auto}, is {shown}{_unquoted(value, kind)}")

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
    if kind == Pairs:
        wanted = 'a table of strings, such as { NAME = "value" }'
        if not isinstance(value, Mapping):
            raise refuse(wanted)
        for name, entry in value.items():
            if not isinstance(entry, str) or "\0" in entry:
                raise ValueError(f"must be {wanted}; {_word(name)} is {_kind(entry)}")
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
    """The kind of a value, without the value."""
    if isinstance(value, str):
        return "a string with a NUL in it" if "\0" in value else "a string"
    names = {bool: "true or false", int: "a whole number", float: "a number"}
    if isinstance(value, (Mapping, list)):
        return "a table" if isinstance(value, Mapping) else "a list"
    return names.get(type(value), "a date or time")


def _shown(value: Any) -> str:
    """A value as findings show it; of tables and lists, which may contain anything, the kind."""
    if isinstance(value, (Mapping, list)):
        return _kind(value)
    # repr keeps the fraction, which is what is wrong with 8000.0.
    return repr(value) if isinstance(value, float) else toml(value)


def _unquoted(value: Any, kind: Any) -> str:
    """A hint with the whole number that was probably meant."""
    if kind is not int:
        return ""
    if isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    meant = re.fullmatch(r"([0-9]{1,9})([kKmM]?)", value) if isinstance(value, str) else None
    if meant is None:
        return ""
    number = int(meant[1]) * {"": 1, "k": 1024, "m": 1024**2}[meant[2].lower()]
    return f"; write {number}, without quotes"


def _word(name: str) -> str:
    """A table's key as findings show it: anything after a "=" in it may be a password."""
    head, sign, _ = name.partition("=")
    return f'"{head}{sign}..."' if sign else f'"{name}"'


def _contradictions(config: Config, kinds: Collection[str], rungs: Rungs) -> Iterable[str]:
    """Contradictions between keys, and values that are wrong for other reasons than their type."""
    lowerable = [f.name for section in (ModelSection, PolicySection) for f in fields(section)]
    for name in config.policy.pinned:
        if name not in lowerable:
            hint = _suggest(name, lowerable)
            yield f'[policy] pinned names "{name}", which is not a key of [model] or [policy]{hint}'
    kind = config.engine.kind
    if kinds and kind is not None and kind not in kinds:
        hint = _suggest(kind, kinds) or f"; kinds are {', '.join(kinds)}"
        yield f'[engine] kind is "{kind}", which is no kind of engine{hint}'
    elif config.policy.ladder:
        known = rungs(config)
        for name in config.policy.ladder:
            if known and name not in known:
                hint = _suggest(name, known) or f"; rungs are {', '.join(known)}"
                yield f'[policy] ladder names "{name}", which is not a rung{hint}'
    if config.engine.gpus == ():
        yield '[engine] gpus must not be empty; leave the key out for "auto"'
    if config.engine.gpus is not None and len(set(config.engine.gpus)) != len(config.engine.gpus):
        yield f"[engine] gpus names a card twice: {list(config.engine.gpus)}"
    if any(index < 0 for index in config.engine.gpus or ()):
        yield f"[engine] gpus must be card indices from 0, is {list(config.engine.gpus or ())}"
    yield from _of_listeners(config)
    head = config.cluster.head
    if (config.cluster.role != "off" or head) and not addresses.is_endpoint(head):
        wanted = 'must be HOST:PORT of the head, such as "10.0.0.1:7070"'
        yield f"[cluster] head {wanted}, is {toml(head)}"
    elif head and not addresses.is_host(addresses.split(head)[0]):
        yield f"[cluster] head must be a host's name or address with a port, is {toml(head)}"
    elif head and config.server.port in (addresses.split(head)[1], addresses.split(head)[1] + 1):
        port = config.server.port
        yield f"[cluster] head must leave {port}, [server] port, to clients, and so must the next"
    elif head and addresses.split(head)[1] == 65535:
        yield "[cluster] head must leave the port after its own for vLLM: use one below 65535"
    least, nodes = config.cluster.min_nodes, config.cluster.nodes
    if config.cluster.role == "head" and least is not None and least > nodes:
        yield f"[cluster] min_nodes must be at most nodes, which is {nodes}, is {least}"
    for name, _ in config.engine.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield (
                f"[engine] env: {_word(name)} is not a valid name of a variable; use letters,"
                " digits and _"
            )
    host = config.server.host
    if with_port := re.fullmatch(r"([A-Za-z0-9._-]+):([0-9]+)", host):
        yield (
            f"[server] host must be an address without a port, is {toml(host)}; write host ="
            f" {toml(with_port[1])} and port = {with_port[2]}"
        )
    elif not re.fullmatch(r"[A-Za-z0-9:][A-Za-z0-9.:%_-]*", host):
        everywhere = "" if host.strip() else '; "0.0.0.0" is every address'
        yield (
            '[server] host must be an address or a name, such as "127.0.0.1" or "::1", is'
            f" {toml(host)}{everywhere}"
        )


def _of_listeners(config: Config) -> Iterable[str]:
    """Contradictions about the addresses of what caovan itself serves."""
    metrics, page, gateway = (
        section.listen for section in (config.metrics, config.page, config.gateway)
    )
    for section, listen, port in (
        ("metrics", metrics, 9400), ("page", page, 9480), ("gateway", gateway, 8080),
    ):  # fmt: skip
        if listen and not addresses.is_endpoint(listen):
            wanted = f'must be ADDRESS:PORT, such as "127.0.0.1:{port}"'
            yield f"[{section}] listen {wanted}, is {toml(listen)}"
    if page and addresses.is_endpoint(page) and not config.page.token_file:
        host, _ = addresses.split(page)
        if not addresses.is_loopback(host):
            yield (
                f"[page] listen is {toml(page)}, which other machines can reach, and there is no"
                " token_file; write a token to a file and name it there, or listen on 127.0.0.1"
            )
    if gateway and addresses.is_endpoint(gateway):
        if addresses.split(gateway)[1] == config.server.port:
            yield f"[gateway] listen must leave {config.server.port}, [server] port, to the engine"
        if config.cluster.role == "worker":
            yield "[gateway] listen is for the head: a worker answers no clients"
    for alias, name in config.gateway.aliases:
        if not alias.strip() or not name.strip():
            yield "[gateway] aliases must not be empty, nor stand for an empty name"
