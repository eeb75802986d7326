"""The inventory as JSON: printed by `caovanctl inventory --json`, read by `--inventory FILE`.

The model is not part of it and always comes from its folder.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from types import MappingProxyType
from typing import Any, TypeVar

from caovand.core.document import is_number
from caovand.core.facts.inventory import EngineInfo, Gpu, Host

T = TypeVar("T", Gpu, Host, EngineInfo)
MAX_VALUE = 1 << 40
"""Far beyond any real count or size in MiB."""
FORMER_VERSION = "vllm"
"""The engine version's key in files of earlier releases."""
UNNAMED = ""
"""The engine's kind in files that name none: earlier releases' and hand-written ones."""
CAPABILITY = re.compile(r"(?:sm)?_?(?:([0-9]{1,2})\.([0-9])|([0-9]{1,2}?)([0-9]?))")


class BadInventory(Exception):
    """The document is not an inventory."""


def render(
    gpus: tuple[Gpu, ...],
    host: Host,
    engine: EngineInfo | None,
    kind: str = UNNAMED,
    others: Mapping[str, EngineInfo] = MappingProxyType({}),
) -> dict[str, Any]:
    """Encode the inventory as plain JSON values, including engines of other kinds."""
    named: dict[str, Any] = {"kind": kind} if engine and kind else {}
    if others:
        named["others"] = {name: _plain(other) for name, other in others.items()}
    return {
        "gpus": [
            {**_plain(gpu), "compute_capability": "{}.{}".format(*gpu.compute_capability)}
            for gpu in gpus
        ],
        "host": _plain(host),
        "engine": _plain(engine) if engine else None,
        **named,
    }


def parse(document: Any) -> tuple[tuple[Gpu, ...], Host, EngineInfo | None]:
    """Cards, host and engine (None if the document has none); BadInventory names the invalid
    key."""
    if not isinstance(document, Mapping):
        raise BadInventory("it is not a table with gpus, host and engine")
    listed = document.get("gpus", [])
    if not isinstance(listed, list):
        raise BadInventory('"gpus" is not a list')
    gpus = tuple(_gpu(entry, f"gpus[{at}]") for at, entry in enumerate(listed))
    indices = [gpu.index for gpu in gpus]
    if len(set(indices)) < len(indices):
        raise BadInventory(f"two cards have the same index: {indices}")
    if "host" not in document:
        raise BadInventory('it has no "host"')
    engine = document.get("engine")
    return gpus, _host(document["host"]), _engine(engine) if engine is not None else None


def engines_in(document: Mapping[str, Any]) -> dict[str, EngineInfo]:
    """The inventory's engines by kind; BadInventory names the invalid key."""
    engines: dict[str, EngineInfo] = {}
    if document.get("engine") is not None:
        kind = document.get("kind", UNNAMED)
        _check(isinstance(kind, str), "kind", kind, "a kind of engine")
        engines[kind] = _engine(document["engine"])
    for kind, entry in _table(document.get("others", {}), "others").items():
        engines[str(kind)] = _engine(entry)
    return engines


def _gpu(entry: Any, where: str) -> Gpu:
    table = _table(entry, where)
    if "total_mib" in table:
        table = {"free_mib": table["total_mib"], **table}
    capability = _capability(table.get("compute_capability"), where)
    gpu = _read(Gpu, {**table, "compute_capability": capability}, where)
    _check(gpu.total_mib > 0, f"{where}.total_mib", gpu.total_mib, "the memory of a card")
    within = gpu.free_mib <= gpu.total_mib
    _check(within, f"{where}.free_mib", gpu.free_mib, f"at most total_mib, {gpu.total_mib}")
    return gpu


def _host(entry: Any) -> Host:
    table = _table(entry, "host")
    host = _read(Host, {"available_mib": table.get("ram_mib"), **table}, "host")
    _check(host.ram_mib > 0, "host.ram_mib", host.ram_mib, "the memory of a machine")
    _check(host.cpus > 0, "host.cpus", host.cpus, "a number of cores")
    speed = host.memory_gb_s
    _check(speed is None or speed > 0, "host.memory_gb_s", speed, "a number of GB/s")
    return host


def _engine(entry: Any) -> EngineInfo:
    table = _table(entry, "engine")
    if FORMER_VERSION in table:
        table = {"version": table[FORMER_VERSION], **table}
    table["torch"] = table.get("torch") or ""
    if "build" not in table:
        table["build"] = "cpu" if "+cpu" in str(table.get("version")) else "cuda"
    _check(table["build"] in ("cuda", "cpu"), "engine.build", table["build"], '"cuda" or "cpu"')
    choices = table.get("choices") or {}
    if isinstance(choices, Mapping):
        table["choices"] = list(choices.items())
    return _read(EngineInfo, table, "engine")


def _capability(value: Any, where: str) -> tuple[int, int]:
    """7.5, "7.5", "sm75", 75 or [7, 5]."""
    text = ""
    if isinstance(value, (list, tuple)) and [type(number) for number in value] == [int, int]:
        text = ".".join(map(str, value))
    elif type(value) in (int, float, str):
        text = str(value).lower()
    match = CAPABILITY.fullmatch(text)
    major, minor = [part for part in match.groups() if part is not None] if match else ("", "")
    _check(major not in ("", "0", "00"), f"{where}.compute_capability", value, 'such as "7.5"')
    return int(major), int(minor or 0)


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInventory(f'"{where}" is not a table')
    return dict(value)


def _read(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """Build the dataclass from these values; unknown keys are ignored, because files outlive
    releases."""
    values: dict[str, Any] = {}
    for entry in fields(kind):
        if entry.name in table:
            values[entry.name] = _value(table[entry.name], str(entry.type), f"{where}.{entry.name}")
    try:
        return kind(**values)
    except TypeError as problem:
        lacking = str(problem).rpartition(": ")[2]
        raise BadInventory(f"{where} lacks {lacking}") from None


def _value(value: Any, kind: str, where: str) -> Any:
    """Convert a JSON value to the field's type, which is named as in the dataclass."""
    kind, _, none = kind.partition(" | ")
    if value is None and none:
        return None
    outer, _, inner = kind.partition("[")
    if outer in ("tuple", "frozenset"):
        return _to_sequence(value, outer, inner[:-1], where)
    if outer == "bool":
        _check(isinstance(value, bool), where, value, "true or false")
        return value
    if outer == "int":
        return _to_count(value, where)
    if outer == "float":
        _check(is_number(value, 0, MAX_VALUE), where, value, "a number from 0")
        return float(value)
    _check(isinstance(value, str), where, value, "a text")
    return value


def _to_sequence(value: Any, outer: str, inner: str, where: str) -> Any:
    """Convert a list to `tuple[X, ...]`, `frozenset[X]`, or to `tuple[X, Y]` of that length."""
    _check(isinstance(value, (list, tuple)), where, value, "a list")
    if outer == "frozenset":
        return frozenset(_value(entry, inner, where) for entry in value)
    if inner.endswith(", ..."):
        kinds = [inner.removesuffix(", ...")] * len(value)
    else:
        kinds = _parts(inner)
        _check(len(value) == len(kinds), where, value, f"a list of {len(kinds)}")
    return tuple(
        _value(entry, kind, f"{where}[{at}]")
        for at, (entry, kind) in enumerate(zip(value, kinds, strict=True))
    )


def _parts(inner: str) -> list[str]:
    """Split `str, tuple[str, ...]` into its two types."""
    return re.findall(r"\w+(?:\[[^\]]{0,60}\])?", inner)


def _to_count(value: Any, where: str) -> int:
    """A count; fractions, which sizes in MiB may have, are dropped."""
    _check(is_number(value, 0, MAX_VALUE), where, value, "a number from 0")
    _check(value == int(value) or where.endswith("_mib"), where, value, "a whole number")
    return int(value)


def _check(right: bool, where: str, value: Any, expected: str) -> None:
    if not right:
        raise BadInventory(f"{where} is {reprlib.repr(value)}, not {expected}")


def _plain(value: Gpu | Host | EngineInfo) -> dict[str, Any]:
    table = asdict(value)
    return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in table.items()}
