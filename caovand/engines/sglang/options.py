"""The options of SGLang's server that caovan sets, and the operator's verbatim ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from caovand.core.facts.inventory import EngineInfo
from caovand.core.problem import Problem
from caovand.engines.common import options as common
from caovand.engines.common.options import (
    STRAY,
    SecretOptions,
    Typed,
    count,
    is_option,
    parse_value,
)

CONTEXT, SHARE, RANKS = "max_model_len", "mem_fraction_static", "tp_size"
REQUESTS, STEP, CACHE_TYPE = "max_running_requests", "chunked_prefill_size", "kv_cache_dtype"
ATTENTION, DRAFTING = "attention_backend", "speculative_config"
WHOLE_EXPERTS, QUANTIZATION, TEXT_ONLY = "ep_size", "quantization", "language_model_only"
SLOTS = "max_mamba_cache_size"
NO_PREFIXES = "disable_radix_cache"
REPLICAS = "dp_size"
"""Engines side by side, each with its own model and cache, and `tp_size` cards."""
ATTENTION_GROUPS, GROUPED = "attn_dp_size", "enable_dp_attention"
"""Groups of an engine's cards that attend to their own requests, each with its own cache; before
0.5.23 `dp_size` counted them if `enable_dp_attention` was set."""
PARALLEL = frozenset({REPLICAS, ATTENTION_GROUPS, GROUPED})
MAX_GRAPH_OPTION = "cuda_graph_max_bs_decode"
DECODE_GRAPHS, PREFILL_GRAPHS = "cuda_graph_backend_decode", "cuda_graph_backend_prefill"
GRAPHS_OFF = "disabled"
GRAPH_SIZES = frozenset(
    {MAX_GRAPH_OPTION, "cuda_graph_bs_decode", "cuda_graph_bs", "cuda_graph_config"}
)
KEYS = ("api_key", "admin_api_key", "ssl_keyfile_password")
"""Options whose values are never shown."""
REMOVE = "remove it from [engine] extra_args"
_SPELLED = {CONTEXT: "--context-length", DRAFTING: "--speculative-algorithm"}
_NAMES = {
    "context_length": CONTEXT, "tensor_parallel_size": RANKS, "model": "model_path",
    "data_parallel_size": REPLICAS, "attention_data_parallel_size": ATTENTION_GROUPS,
    "expert_parallel_size": WHOLE_EXPERTS, "ep": WHOLE_EXPERTS,
    "cuda_graph_max_bs": MAX_GRAPH_OPTION,
    "speculative_draft_model": "speculative_draft_model_path",
}  # fmt: skip
TYPES: Mapping[str, type] = {
    CONTEXT: int, SHARE: float, RANKS: int, REQUESTS: int, STEP: int, REPLICAS: int,
    ATTENTION_GROUPS: int,
    CACHE_TYPE: str, ATTENTION: str, DECODE_GRAPHS: str, PREFILL_GRAPHS: str,
    "port": int, "host": str,
    "served_model_name": str,
}  # fmt: skip


def option(name: str) -> str:
    """The spelling of an option on the command line."""
    return _SPELLED.get(name, "--" + name.replace("_", "-"))


def read(words: Sequence[str], switches: Collection[str] = ()) -> tuple[Typed, ...]:
    """The options in order; each takes the words up to the next option as its value."""
    typed: list[Typed] = []
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if not is_option(word):
            typed.append(Typed("", word, (word,)))
            continue
        head, equals, value = word.partition("=")
        plain = head.lstrip("-").replace("-", "_")
        name = _NAMES.get(plain, plain)
        if equals:
            typed.append(Typed(name, parse_value(value, TYPES.get(name)), (word,)))
            continue
        first = at
        while at < len(words) and not is_option(words[at]) and head not in switches:
            at += 1
        values = tuple(words[first:at])
        parsed: Any = list(values) or True
        if len(values) == 1:
            parsed = parse_value(values[0], TYPES.get(name))
        typed.append(Typed(name, parsed, (word, *values)))
    return tuple(typed)


def refused(words: Sequence[str], engine: EngineInfo) -> tuple[Problem, ...]:
    """The options that this SGLang refuses; none if its options were not probed."""
    typed = read(words, engine.switches) if engine.flags else ()
    return tuple(problem for one in typed if (problem := _problem(one, engine)))


def _problem(typed: Typed, engine: EngineInfo) -> Problem | None:
    name, sglang, remedy = option(typed.name), f"SGLang {engine.version}", REMOVE
    if not typed.name:
        return STRAY
    if name not in engine.flags:
        return Problem(f"pass {name}", f"{sglang} has no such option", remedy)
    known = dict(engine.choices).get(name)
    if known and not isinstance(typed.value, (list, bool)) and str(typed.value) not in known:
        remedy = f"use one of {', '.join(known)}"
        return Problem(f"pass {name} {typed.value}", f"{sglang} has no such value", remedy)
    return None


def values(words: Sequence[str], switches: Collection[str] = ()) -> dict[str, Any]:
    """Values by name; the last of an option counts."""
    return common.values(read(words, switches))


def attention_groups(value: Callable[[str], Any]) -> int:
    """The number of card groups that attend to their own requests; `value` has options by name."""
    older = count(value(REPLICAS)) if value(GROUPED) else None
    return count(value(ATTENTION_GROUPS)) or older or 1


def replicas(value: Callable[[str], Any]) -> int:
    """The number of engines side by side; `value` has options by name."""
    return 1 if value(GROUPED) else count(value(REPLICAS)) or 1


_SECRETS = SecretOptions(read, KEYS)
redact, secret_values, api_keys = _SECRETS.redact, _SECRETS.values, _SECRETS.api_keys
