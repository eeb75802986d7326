"""An inventory as JSON: what `caovanctl inventory --json` prints and `--inventory FILE` reads.

The model is never part of it: it always comes from its folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from caovand.core.inventory import EngineInfo, Gpu, Host

T = TypeVar("T", Gpu, Host, EngineInfo)


class BadInventory(Exception):
    """Why this document is no inventory."""


def render(gpus: tuple[Gpu, ...], host: Host, engine: EngineInfo | None) -> dict[str, Any]:
    """The inventory as plain values for JSON."""
    return {
        "gpus": [
            {**_plain(gpu), "compute_capability": "{}.{}".format(*gpu.compute_capability)}
            for gpu in gpus
        ],
        "host": _plain(host),
        "engine": _plain(engine) if engine else None,
    }


def parse(document: Any) -> tuple[tuple[Gpu, ...], Host, EngineInfo | None]:
    """Cards, host and engine (None where the document has none); BadInventory names the key."""
    if not isinstance(document, Mapping):
        raise BadInventory("it is no table with gpus, host and engine")
    listed = document.get("gpus", [])
    if not isinstance(listed, list):
        raise BadInventory('"gpus" is no list')
    gpus = tuple(_gpu(entry, f"gpus[{at}]") for at, entry in enumerate(listed))
    if "host" not in document:
        raise BadInventory('it has no "host"')
    engine = document.get("engine")
    return (
        gpus,
        _read(
            Host,
            {"available_mib": _ram(document["host"]), **_table(document["host"], "host")},
            "host",
        ),
        _engine(engine) if engine is not None else None,
    )


def _ram(host: Any) -> Any:
    return host.get("ram_mib", 0) if isinstance(host, Mapping) else 0


def _gpu(entry: Any, where: str) -> Gpu:
    table = _table(entry, where)
    if "total_mib" in table:
        table = {"free_mib": table["total_mib"], **table}
    capability = _capability(table.get("compute_capability"), where)
    return _read(Gpu, {**table, "compute_capability": capability}, where)


def _engine(entry: Any) -> EngineInfo:
    table = {"torch": "", **_table(entry, "engine")}
    if "build" not in table:
        table["build"] = "cpu" if "+cpu" in str(table.get("vllm")) else "cuda"
    if table["build"] not in ("cuda", "cpu"):
        raise BadInventory('engine.build is neither "cuda" nor "cpu"')
    choices = table.get("choices", ())
    if isinstance(choices, Mapping):
        table["choices"] = list(choices.items())
    return _read(EngineInfo, table, "engine")


def _capability(value: Any, where: str) -> tuple[int, int]:
    """7.5, "7.5", "sm75", 75 or [7, 5]."""
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return int(value[0]), int(value[1])
    text = str(value).lower().removeprefix("sm").lstrip("_")
    major, dot, minor = text.partition(".")
    if not dot and text.isdigit() and len(text) > 1:
        major, minor = text[:-1], text[-1]
    if not major.isdigit() or not (minor or "0").isdigit():
        raise BadInventory(f'{where}.compute_capability is {value!r}, not such as "7.5"')
    return int(major), int(minor or 0)


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInventory(f'"{where}" is no table')
    return dict(value)


def _read(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """The dataclass of these values; unknown keys are left alone: files outlive releases."""
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
    """A JSON value as the field's type; lists become tuples and sets."""
    if value is None and "None" in kind:
        return None
    if kind.startswith("frozenset"):
        return frozenset(map(str, value)) if isinstance(value, (list, tuple)) else frozenset()
    if kind.startswith("tuple"):
        return _tuples(value)
    if kind.startswith("bool"):
        return bool(value)
    if kind.startswith("int"):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise BadInventory(f"{where} is {value!r}, not a number")
        return int(value)
    return str(value)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def _plain(value: Gpu | Host | EngineInfo) -> dict[str, Any]:
    table = asdict(value)
    return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in table.items()}
