"""The llama-server options that caovan sets, and the operator's verbatim ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from caovand.core.facts.inventory import EngineInfo
from caovand.core.problem import Problem
from caovand.engines.common.options import STRAY, SecretOptions, Typed, is_option, parse_value

CONTEXT, SHARED = "max_model_len", "unified"
"""The context of one request, of which llama-server takes the total over all its slots; and whether
they share one cache, so that the total is each slot's context."""


@dataclass(frozen=True)
class LlamaCppOption:
    """One option: its setting, its spellings (the first is written), the type of its value.

    If every engine has the setting, it has vLLM's name for it in `Plan`.
    """

    name: str
    spellings: tuple[str, ...]
    type: type | None = None


OPTIONS = (
    LlamaCppOption("host", ("--host",), str),
    LlamaCppOption("port", ("--port",), int),
    LlamaCppOption("served_model_name", ("--alias", "-a"), str),
    LlamaCppOption(CONTEXT, ("--ctx-size", "-c"), int),
    LlamaCppOption("parallel", ("--parallel", "-np"), int),
    LlamaCppOption("batch_size", ("--batch-size", "-b"), int),
    LlamaCppOption("ubatch_size", ("--ubatch-size", "-ub"), int),
    LlamaCppOption("flash_attn", ("--flash-attn", "-fa"), str),
    LlamaCppOption("cache_type_k", ("--cache-type-k", "-ctk"), str),
    LlamaCppOption("cache_type_v", ("--cache-type-v", "-ctv"), str),
    LlamaCppOption("gpu_layers", ("--gpu-layers", "-ngl", "--n-gpu-layers"), int),
    LlamaCppOption("split_mode", ("--split-mode", "-sm"), str),
    LlamaCppOption("tensor_split", ("--tensor-split", "-ts"), str),
    LlamaCppOption("n_cpu_moe", ("--n-cpu-moe", "-ncmoe"), int),
    LlamaCppOption("threads", ("--threads", "-t"), int),
    LlamaCppOption("threads_batch", ("--threads-batch", "-tb"), int),
    LlamaCppOption("numa", ("--numa",), str),
    LlamaCppOption("load_mode", ("--load-mode", "-lm"), str),
    LlamaCppOption("cache_ram", ("--cache-ram", "-cram"), int),
    LlamaCppOption("chat_template", ("--chat-template-file",), str),
    LlamaCppOption("cors_origins", ("--cors-origins",), str),
    LlamaCppOption("fit", ("--fit", "-fit"), str),
    LlamaCppOption("metrics", ("--metrics",), bool),
    LlamaCppOption("log_verbosity", ("--verbosity", "-lv", "--log-verbosity"), int),
    LlamaCppOption("log_colors", ("--log-colors",), str),
    LlamaCppOption("offline", ("--offline",), bool),
    LlamaCppOption("spec_type", ("--spec-type",), str),
    LlamaCppOption("spec_draft_n_max", ("--spec-draft-n-max",), int),
    LlamaCppOption("spec_ngram_simple_size_m", ("--spec-ngram-simple-size-m",), int),
    LlamaCppOption("ssl_certfile", ("--ssl-cert-file",), str),
    LlamaCppOption("ssl_keyfile", ("--ssl-key-file",), str),
    LlamaCppOption("api_key", ("--api-key",), str),
    LlamaCppOption("hf_token", ("--hf-token", "-hft"), str),
    LlamaCppOption("embeddings", ("--embeddings", "--embedding"), bool),
    LlamaCppOption("reranking", ("--reranking", "--rerank"), bool),
    LlamaCppOption(SHARED, ("--kv-unified", "-kvu"), bool),
)
_NAMES: Mapping[str, str] = {word: row.name for row in OPTIONS for word in row.spellings}
_SPELLINGS: Mapping[str, str] = {row.name: row.spellings[0] for row in OPTIONS}
TYPES: Mapping[str, type] = {row.name: row.type for row in OPTIONS if row.type}
CARRIERS: Mapping[str, str] = {"api_key": "LLAMA_API_KEY", "hf_token": "HF_TOKEN"}
"""Secret options, and the variable that passes each to the engine instead."""
SWITCHES = frozenset({
    "metrics", "offline", "unified", "mlock", "no_mmap", "swa_full", "no_webui", "no_ui", "jinja",
    "no_jinja", "embeddings", "embedding", "reranking", "rerank", "slots", "no_slots", "props",
    "verbose", "v", "no_warmup", "warmup", "cpu_moe", "cmoe", "no_kv_offload", "nkvo", "no_repack",
    "nr", "check_tensors", "context_shift", "no_context_shift", "no_cont_batching", "nocb",
    "cont_batching", "cb", "no_kv_unified", "no_kvu", "log_disable", "log_prefix", "ignore_eos",
    "log_timestamps", "no_perf", "perf", "special", "sp", "reuse_port", "no_mmproj", "webui", "ui",
    "mmproj_auto", "no_mmproj_auto", "no_cache_prompt", "cache_prompt", "no_host", "agent", "ag",
})  # fmt: skip
"""Options without a value, for engines whose option list is unknown."""


def option(name: str) -> str:
    """The spelling of an option on the command line."""
    return _SPELLINGS.get(name, "--" + name.replace("_", "-"))


def read(
    words: Sequence[str], known: Collection[str] = (), switches: Collection[str] = ()
) -> tuple[Typed, ...]:
    """The options in order; `known` and `switches` are the engine's, if its options were probed."""
    typed: list[Typed] = []
    at = 0
    while at < len(words):
        word = words[at]
        if not is_option(word):
            typed.append(Typed("", word, (word,)))
            at += 1
            continue
        name = _name(word)
        alone = word in switches if known and word in known else name in SWITCHES
        if alone or at + 1 >= len(words) or is_option(words[at + 1]):
            typed.append(Typed(name, True, (word,)))
            at += 1
        else:
            value = words[at + 1]
            typed.append(Typed(name, parse_value(value, TYPES.get(name)), (word, value)))
            at += 2
    return tuple(typed)


def refused(words: Sequence[str], engine: EngineInfo) -> tuple[Problem, ...]:
    """The options that this llama-server refuses; none if its options were not probed.

    It accepts underscores in place of dashes in a long option.
    """
    typed = read(words, engine.flags, engine.switches) if engine.flags else ()
    named = (option.words[0] for option in typed if option.name)
    fact = f"llama.cpp {engine.version} has no such option"
    problems = [
        Problem(f"pass {word}", fact, "remove it from [engine] extra_args")
        for word in named
        if _with_dashes(word) not in engine.flags
    ]
    return (*problems, *(STRAY for option in typed if not option.name))


def carry_secrets(typed: Iterable[Typed]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Secrets by the variable that carries them, and the words of all other options."""
    env: dict[str, str] = {}
    words: list[str] = []
    for option in typed:
        if option.name in CARRIERS and len(option.words) == 2:
            env[CARRIERS[option.name]] = option.words[1]
        else:
            words += option.words
    return env, tuple(words)


def _name(word: str) -> str:
    return _NAMES.get(_with_dashes(word)) or word.lstrip("-").replace("-", "_")


def _with_dashes(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word


_SECRETS = SecretOptions(read, CARRIERS, separator=",")
redact, secret_values, api_keys = _SECRETS.redact, _SECRETS.values, _SECRETS.api_keys
