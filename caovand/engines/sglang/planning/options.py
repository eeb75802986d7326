"""The options of SGLang's server that caovan knows, and the operator's verbatim ones."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caovand.core import secrets
from caovand.core.facts.inventory import EngineInfo
from caovand.core.problem import Problem

HIDDEN = "***"
CONTEXT, SHARE, RANKS = "max_model_len", "mem_fraction_static", "tp_size"
REQUESTS, STEP, CACHE_TYPE = "max_running_requests", "chunked_prefill_size", "kv_cache_dtype"
ATTENTION, DRAFTING = "attention_backend", "speculative_config"
DECODE_GRAPHS, PREFILL_GRAPHS = "cuda_graph_backend_decode", "cuda_graph_backend_prefill"
GRAPHS_OFF = "disabled"
KEYS = ("api_key", "admin_api_key", "ssl_keyfile_password")
"""Options whose values are shown to nobody."""
REMOVE = "remove it from [engine] extra_args"
STRAY = Problem("pass a word of [engine] extra_args", "it belongs to no option", "remove it")
_SPELLED = {CONTEXT: "--context-length", DRAFTING: "--speculative-algorithm"}
_NAMES = {
    "context_length": CONTEXT, "tensor_parallel_size": RANKS, "model": "model_path",
    "speculative_draft_model": "speculative_draft_model_path",
}  # fmt: skip
TYPES: Mapping[str, type] = {
    CONTEXT: int, SHARE: float, RANKS: int, REQUESTS: int, STEP: int, CACHE_TYPE: str,
    ATTENTION: str, DECODE_GRAPHS: str, PREFILL_GRAPHS: str, "port": int, "host": str,
    "served_model_name": str,
}  # fmt: skip


@dataclass(frozen=True)
class Typed:
    """One verbatim option; `name` is empty for a word that belongs to none."""

    name: str
    value: Any
    words: tuple[str, ...]


def option(name: str) -> str:
    """How an option is written."""
    return _SPELLED.get(name, "--" + name.replace("_", "-"))


def read(words: Sequence[str], switches: Collection[str] = ()) -> tuple[Typed, ...]:
    """The options in order; each takes the words up to the next one as its value."""
    found: list[Typed] = []
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if not _is_option(word):
            found.append(Typed("", word, (word,)))
            continue
        head, equals, value = word.partition("=")
        plain = head.lstrip("-").replace("-", "_")
        name = _NAMES.get(plain, plain)
        if equals:
            found.append(Typed(name, _value(name, value), (word,)))
            continue
        first = at
        while at < len(words) and not _is_option(words[at]) and head not in switches:
            at += 1
        values = tuple(words[first:at])
        read_as = _value(name, values[0]) if len(values) == 1 else (list(values) or True)
        found.append(Typed(name, read_as, (word, *values)))
    return tuple(found)


def refused(words: Sequence[str], engine: EngineInfo) -> tuple[Problem, ...]:
    """The options that this SGLang refuses; none if it was not asked."""
    found = read(words, engine.switches) if engine.flags else ()
    return tuple(problem for one in found if (problem := _problem(one, engine)))


def _problem(one: Typed, engine: EngineInfo) -> Problem | None:
    name, sglang, remedy = option(one.name), f"SGLang {engine.version}", REMOVE
    if not one.name:
        return STRAY
    if name not in engine.flags:
        return Problem(f"pass {name}", f"{sglang} has no such option", remedy)
    known = dict(engine.choices).get(name)
    if known and not isinstance(one.value, (list, bool)) and str(one.value) not in known:
        remedy = f"use one of {', '.join(known)}"
        return Problem(f"pass {name} {one.value}", f"{sglang} has no such value", remedy)
    return None


def values(words: Sequence[str], switches: Collection[str] = ()) -> dict[str, Any]:
    """Values by name; the last of an option counts."""
    return {one.name: one.value for one in read(words, switches) if one.name}


def secret_values(words: Sequence[str]) -> tuple[str, ...]:
    """The values that are shown to nobody."""
    found = []
    for one in read(words):
        if one.name in KEYS:
            found += [word.partition("=")[2] or word for word in _spoken(one)]
        else:
            found += secrets.secrets_in({one.name: one.value})
    return tuple(found)


def redact(words: Sequence[str]) -> tuple[str, ...]:
    """The words as they may be shown."""
    shown: list[str] = []
    for one in read(words):
        if not (one.name in KEYS or (one.name and secrets.is_secret_entry(one.name, one.value))):
            shown += [secrets.hide(word, mark=HIDDEN) for word in one.words]
        elif "=" in one.words[0]:
            shown.append(f"{one.words[0].partition('=')[0]}={HIDDEN}")
        else:
            shown += [one.words[0], *(HIDDEN for _ in one.words[1:])]
    return tuple(shown)


def api_keys(words: Sequence[str]) -> tuple[str, ...] | None:
    """The key of the last --api-key; None without one."""
    keys = [one for one in read(words) if one.name == "api_key"]
    return tuple(word.partition("=")[2] or word for word in _spoken(keys[-1])) if keys else None


def count(value: Any) -> int | None:
    """A whole number of one or more, None for anything else."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value > 0 else None


def _spoken(one: Typed) -> tuple[str, ...]:
    """The words that hold an option's value."""
    return one.words[1:] or tuple(word for word in one.words if "=" in word)


def _value(name: str, word: str) -> Any:
    if TYPES.get(name) is str:
        return word
    try:
        value = json.loads(word)
    except (ValueError, RecursionError):
        return word
    return value if isinstance(value, (int, float, bool)) else word


def _is_option(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not (word[1].isdigit() or word[1] == ".")
