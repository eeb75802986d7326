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

from caovand.core import secrets

SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-dcp": "decode_context_parallel_size",
    "-pcp": "prefill_context_parallel_size",
    "-q": "quantization",
    "-r": "node_rank",
    "-n": "nnodes",
    "-sc": "speculative_config",
    "-cc": "compilation_config",
    "-ac": "attention_config",
    "-ep": "enable_expert_parallel",
    "-asc": "api_server_count",
    "-dpn": "data_parallel_rank",
    "-dpr": "data_parallel_start_rank",
    "-dpl": "data_parallel_size_local",
    "-dpa": "data_parallel_address",
    "-dpp": "data_parallel_rpc_port",
    "-dpb": "data_parallel_backend",
    "-dph": "data_parallel_hybrid_lb",
    "-dpe": "data_parallel_external_lb",
    "-O": "optimization_level",
}
MANY = frozenset(
    {
        "served_model_name", "middleware", "lora_modules", "cudagraph_capture_sizes", "device_ids",
        "kv_cache_dtype_skip_layers", "lora_target_modules", "collect_detailed_traces",
        "numa_bind_nodes", "numa_bind_cpus", "api_key", "allowed_media_domains", "ignore_patterns",
        "logits_processors", "cpu_offload_params", "offload_params",
        "sleep_preserve_parameter_names",
    }
)  # fmt: skip
"""Flags that take all the words up to the next flag."""
SWITCHES = frozenset(
    {
        "aggregate_engine_logging", "allow_credentials", "allow_deprecated_quantization",
        "async_scheduling", "cudagraph_metrics", "data_parallel_external_lb",
        "data_parallel_hybrid_lb", "data_parallel_multi_port_external_lb", "disable_cascade_attn",
        "disable_chunked_mm_input", "disable_custom_all_reduce", "disable_fastapi_docs",
        "disable_hybrid_kv_cache_manager", "disable_log_requests", "disable_log_stats",
        "disable_nccl_for_dp_synchronization", "disable_sliding_window",
        "disable_uvicorn_access_log", "enable_auto_tool_choice", "enable_chunked_prefill",
        "enable_dbo", "enable_elastic_ep", "enable_eplb", "enable_expert_parallel",
        "enable_flashinfer_autotune", "enable_force_include_usage",
        "enable_layerwise_nvtx_tracing", "enable_log_deltas", "enable_log_outputs",
        "enable_log_requests", "enable_lora", "enable_mfu_metrics", "enable_mm_embeds",
        "enable_offline_docs", "enable_prefix_caching", "enable_prompt_embeds",
        "enable_prompt_tokens_details", "enable_request_id_headers",
        "enable_return_routed_experts", "enable_server_load_tracking", "enable_sleep_mode",
        "enable_ssl_refresh", "enable_tokenizer_info_endpoint", "enable_tower_connector_lora",
        "enforce_eager", "exclude_tools_when_tool_choice_none", "fully_sharded_loras", "grpc",
        "headless", "interleave_mm_strings", "kv_cache_metrics", "kv_sharing_fast_prefill",
        "language_model_only", "log_error_stack", "mm_encoder_only", "numa_bind",
        "ray_workers_use_nsight", "return_tokens_as_token_ids", "skip_mm_profiling",
        "skip_tokenizer_init", "specialize_active_lora", "tokens_only", "trust_remote_code",
        "trust_request_chat_template", "use_tqdm_on_load",
    }
)  # fmt: skip
"""Flags that take no word, for an engine that was not asked; a model's name may follow them."""
SECRETS = {"api_key": "api_k", "hf_token": "hf_t"}
"""Flags whose values are shown to nobody, with the shortest beginning that vLLM takes for each."""
CARRIERS = {"api_key": "VLLM_API_KEY", "hf_token": "HF_TOKEN"}
"""The variable that carries a secret flag's value, out of the sight of the machine's users."""
HIDDEN = "***"
NUMBER = re.compile(r"[+-]?(\d{1,18}\.\d{0,18}|\.\d{1,18})")


@dataclass(frozen=True)
class Flag:
    """One flag with its value and the words of the command line that it takes up."""

    name: str
    value: Any
    words: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The values as they were typed: a key of digits is no number."""
        head, equals, inline = self.words[0].partition("=")
        if not _is_flag(head):
            return self.words
        return ((inline,) if equals else ()) + self.words[1:]


def read(
    arguments: Sequence[str], known: Iterable[str] = (), switches: Iterable[str] = ()
) -> tuple[Flag, ...]:
    """The flags in order; `known` are the engine's option strings, to complete beginnings.

    `switches` are those that take no value; not every one has a `--no-` twin to tell by.
    A word that belongs to no flag is a Flag with an empty name.
    """
    options = {_canonical(option) for option in known if option.startswith("--")}
    alone = {_canonical(option) for option in switches if option.startswith("--")} or SWITCHES
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
        name = _name(head, options)
        room = 0 if values or _is_negated(head) or "no_" + name in options else 1
        room = 0 if name in alone and "." not in head else room
        room = len(arguments) if room and name in MANY else room
        end = at + 1
        while end < len(arguments) and end - at <= room and not _is_flag(arguments[end]):
            end += 1
        values += arguments[at + 1 : end]
        found.append(_flag(name, head, values, tuple(arguments[at:end])))
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


def without(flags: Iterable[Flag], name: str | None) -> tuple[str, ...]:
    """The words of all flags but those of this name, if one is given."""
    return tuple(word for flag in flags if flag.name != name for word in flag.words)


def secret_values(arguments: Sequence[str]) -> tuple[str, ...]:
    """The values that are shown to nobody, those inside of JSON too."""
    found: list[str] = []
    for flag in read(arguments):
        if is_secret(flag.name):
            found += flag.texts
        else:
            found += secrets.secrets_in({flag.name: flag.value})
    return tuple(filter(None, found))


def carried(found: Iterable[Flag]) -> tuple[dict[str, str], tuple[Flag, ...]]:
    """Secrets by the variable that can carry them, and the flags without those.

    A variable has room for one value: of several keys all stay flags.
    """
    flags = tuple(found)
    typed = {name: [f.texts for f in flags if f.name == name][-1:] for name in CARRIERS}
    moved = {name: texts[0][0] for name, texts in typed.items() if texts and len(texts[0]) == 1}
    rest = tuple(flag for flag in flags if flag.name not in moved)
    return {CARRIERS[name]: value for name, value in moved.items()}, rest


def redact(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command line as it may be shown: values of secret flags are hidden."""
    return tuple(word for flag in public(read(arguments)) for word in flag.words)


def public(found: Iterable[Flag]) -> tuple[Flag, ...]:
    """The flags as they may be shown.

    A word behind a secret that belongs to no flag is hidden too: it is a second key mistyped.
    """
    shown: list[Flag] = []
    behind = False
    for flag in found:
        behind = behind if not flag.name else is_hidden(flag)
        if behind and flag.texts:
            head = (flag.words[0].partition("=")[0],) if flag.name else ()
            shown.append(Flag(flag.name, HIDDEN, (*head, HIDDEN)))
        else:
            shown.append(_without_secrets(flag))
    return tuple(shown)


def _without_secrets(flag: Flag) -> Flag:
    """The flag without what its value names as secret, in JSON or in an address."""
    words = list(flag.words)
    for place, word in enumerate(words):
        head, equals, value = word.partition("=") if _is_flag(word) else ("", "", word)
        words[place] = head + equals + shown_text(value)
    return Flag(flag.name, shown_value(flag.name, flag.value), tuple(words))


def shown_value(name: str, value: Any) -> Any:
    """A flag's value as it may be shown."""
    if is_secret(name) or secrets.is_secret_entry(name, value):
        return HIDDEN
    return shown_text(value) if isinstance(value, str) else secrets.hide_in(value, mark=HIDDEN)


def shown_text(word: str) -> str:
    """A word of a command line as it may be shown; JSON is read, as the engine reads it."""
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
    """Whether nothing of a flag's value is shown: its name says so, or the last of a dotted one."""
    last = flag.words[0].partition("=")[0].rpartition(".")[2]
    value = _value(list(flag.texts)) if flag.texts else ""
    return is_secret(flag.name) or secrets.is_secret_entry(last, value)


def is_secret(name: str) -> bool:
    """Whether a flag's value is hidden; so is that of a beginning too short for vLLM to take."""
    return bool(name) and any(secret.startswith(name) for secret in SECRETS)


def _name(head: str, options: set[str]) -> str:
    """The flag's full name; an engine that was not asked is taken to have the secret ones."""
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


LARGEST_COUNT = 1 << 53  # beyond it floats, in which memory is counted, are no longer exact


def whole_number(value: Any) -> int | None:
    """A count as vLLM reads it: 8192, "8.5k" (thousands) or "8K" (of 1024); None where it is none.

    A broken number of 1024s is none: vLLM refuses it. Nor is one that no memory can be counted by.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < LARGEST_COUNT else None
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)([kmgt])|(\d{1,12})([KMGT])", str(value))
    if not match:
        return None
    number, unit = [part for part in match.groups() if part is not None]
    power = "kmgt".index(unit.lower()) + 1
    if unit.islower():
        return int(float(number) * 10 ** (3 * power))
    return int(number) << 10 * power


def count(value: Any) -> int | None:
    """A count of one or more; None for -1, "auto" and the like, which leave it to vLLM."""
    number = whole_number(value)
    return number if number is not None and number > 0 else None


def is_left_to_vllm(context: Any) -> bool:
    """Whether --max-model-len asks vLLM itself for the longest context that fits."""
    return context == -1 or (isinstance(context, str) and context.strip().lower() == "auto")


def _value(words: list[str]) -> Any:
    if len(words) > 1:
        return words
    try:
        value = json.loads(words[0])
    except (ValueError, RecursionError):
        # Numbers that JSON does not know and vLLM's float() does: ".9", "1.", "+0.5".
        return float(words[0]) if NUMBER.fullmatch(words[0]) else words[0]
    return words[0] if isinstance(value, float) and not math.isfinite(value) else value


def option(name: str) -> str:
    """How a flag of this name is written on a command line."""
    return "--" + name.replace("_", "-")


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
