"""The operator's verbatim `vllm serve` flags, read as vLLM's own parser reads them.

They are never rewritten; the planner has to know what they say, so that it neither repeats nor
contradicts them. vLLM takes `--a-b`, `--a_b`, `--a=1`, `--no-a`, unambiguous beginnings of a
name, `--a.b.c 1` for a key inside a JSON value, and a few short names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-q": "quantization",
    "-r": "data_parallel_rank",
    "-n": "nnodes",
    "-sc": "speculative_config",
    "-cc": "compilation_config",
    "-ac": "attention_config",
    "-ep": "enable_expert_parallel",
    "-asc": "async_scheduling",
    "-O": "optimization_level",
}
MANY = frozenset(
    {
        "served_model_name", "middleware", "lora_modules", "cudagraph_capture_sizes", "device_ids",
        "kv_cache_dtype_skip_layers", "lora_target_modules", "collect_detailed_traces",
        "numa_bind_nodes", "numa_bind_cpus",
    }
)  # fmt: skip
"""Flags that take all the words up to the next flag."""
SECRETS = frozenset({"api_key", "hf_token"})
SECRET_NAME = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)", re.I)
"""Names of variables whose values are shown to nobody."""
HIDDEN = "***"


@dataclass(frozen=True)
class Flag:
    """One flag with its value and the words of the command line that it takes up."""

    name: str
    value: Any
    words: tuple[str, ...]


def read(arguments: Sequence[str], known: Iterable[str] = ()) -> tuple[Flag, ...]:
    """The flags in order; `known` are the engine's option strings, to complete beginnings.

    A word that belongs to no flag is a Flag with an empty name.
    """
    options = {_canonical(option) for option in known if option.startswith("--")}
    found: list[Flag] = []
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if not _is_flag(word):
            found.append(Flag("", word, (word,)))
            at += 1
            continue
        head, equals, inline = word.partition("=")
        values: list[str] = [inline] if equals else []
        if head.startswith("-O") and head != "-O":
            head, values = "-O", [head[2:] or inline]
        switch = "no_" + _canonical(head) in options or _is_negated(head)
        room = 0 if values or switch else 1
        room = len(arguments) if room and _canonical(head) in MANY else room
        end = at + 1
        while end < len(arguments) and end - at <= room and not _is_flag(arguments[end]):
            end += 1
        values += arguments[at + 1 : end]
        found.append(_flag(head, values, tuple(arguments[at:end]), options))
        at = end
    return tuple(found)


def values(flags: Iterable[Flag]) -> dict[str, Any]:
    """Flag name to value; a later flag wins, dotted keys are merged into their JSON value."""
    merged: dict[str, Any] = {}
    for flag in flags:
        old = merged.get(flag.name)
        if isinstance(old, dict) and isinstance(flag.value, dict):
            merged[flag.name] = _merge(old, flag.value)
        else:
            merged[flag.name] = flag.value
    merged.pop("", None)
    return merged


def without(flags: Iterable[Flag], name: str) -> tuple[str, ...]:
    """The words of all flags but those of this name."""
    return tuple(word for flag in flags if flag.name != name for word in flag.words)


def redact(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command line as it may be shown: values of secret flags are hidden."""
    shown: list[str] = []
    for flag in read(arguments):
        if flag.name in SECRETS:
            shown += [flag.words[0].partition("=")[0], "***"]
        else:
            shown += flag.words
    return tuple(shown)


def _flag(head: str, values: list[str], words: tuple[str, ...], options: set[str]) -> Flag:
    first, *path = head.split(".")
    negated = _is_negated(first)
    name = SHORT.get(first) or _canonical(first[5:] if negated else first)
    if options and name not in options:
        begun = [option for option in options if option.startswith(name)]
        name = begun[0] if len(begun) == 1 else name
    value: Any = not negated if not values else _value(values)
    for key in reversed(path):
        value = {key: value}
    return Flag(name, value, words)


def whole_number(value: Any) -> int | None:
    """A count as vLLM reads it: 8192, "8k" (thousands) or "8K" (of 1024); None where it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", str(value))
    if not match:
        return None
    number, unit = match.groups()
    power = "kmgt".index(unit.lower()) + 1
    return int(float(number) * (1000 if unit.islower() else 1024) ** power)


def _value(words: list[str]) -> Any:
    if len(words) > 1:
        return words
    try:
        value = json.loads(words[0])
    except (ValueError, RecursionError):
        return words[0]
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


def shown_value(variable: str, value: Any) -> Any:
    """The value of an environment variable as it may be shown."""
    return HIDDEN if SECRET_NAME.search(variable) and value else value
