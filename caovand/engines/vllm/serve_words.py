"""How `caovan-vllm-serve` translates the words of `vllm serve`.

A file of `--config` is expanded to words. For a GGUF file vLLM's flags become keys of caovan.toml,
which mean the same for every engine. A flag for something that the file itself decides is dropped,
with a warning; any other flag is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from caovand.core.config.schema import (
    Config,
    EngineSection,
    ModelSection,
    PolicySection,
    ServerSection,
)
from caovand.core.engine.serve_words import ServeRequest, ServeWords
from caovand.core.problem import ProblemError
from caovand.engines.vllm.command import SERVE
from caovand.engines.vllm.flags import command_line
from caovand.engines.vllm.flags.spelling import option, whole_number

_SUFFIX, _KIND = ".gguf", "llamacpp"
"""The GGUF files, and the engine that serves them."""
_ALL_ADDRESSES = "0.0.0.0"
"""The default address of `vllm serve`."""
_CACHES = {"auto": None, "fp8": "q8_0", "fp8_e4m3": "q8_0", "fp8_e5m2": "q8_0"}
"""vLLM's cache types, and llama.cpp's with as many bits."""
_BY_THE_FILE = frozenset({
    "chat_template_content_format", "config_format", "dtype", "enable_auto_tool_choice",
    "enable_prefix_caching", "hf_config_path", "load_format", "quantization", "reasoning_parser",
    "tokenizer", "tokenizer_mode", "tool_call_parser", "trust_remote_code",
})  # fmt: skip
"""Flags that the file, its chat template or llama.cpp itself decides."""
_ELSEWHERE = frozenset({"api_key", "host", "port"})
"""Flags that the caller reads."""


def _read(
    words: Sequence[str], engine: EngineSection, known: Collection[str], switches: Collection[str]
) -> ServeRequest:
    typed = command_line.read(words, known, switches)
    command_line.check_values(command_line.values(typed))
    model, rest = _split_model(typed)
    flags = command_line.values(rest)
    port = flags.get("port", ServerSection().port)
    server = ServerSection(host=str(flags.get("host", _ALL_ADDRESSES)), port=port)
    secrets, open_flags = command_line.carry_secrets(rest)
    if model.endswith(_SUFFIX):
        return ServeRequest(_configuration(model, flags, server), secrets, _left_out(flags))
    kept = tuple(word for flag in open_flags for word in flag.words)
    config = Config(
        model=ModelSection(path=model, served_name=model),  # the name that `vllm serve` would use
        server=server,
        engine=replace(engine, extra_args=kept),
    )
    return ServeRequest(config, secrets)


def _split_model(
    flags: tuple[command_line.Flag, ...],
) -> tuple[str, tuple[command_line.Flag, ...]]:
    """The model, and the flags without it: the first word, `--model`, or any word that belongs to
    no flag."""
    for name in ("", "model"):
        for flag in flags:
            if flag.name == name:
                return "".join(flag.texts), tuple(other for other in flags if other is not flag)
    remedy = "caovan-vllm-serve MODEL [vLLM flags]"
    raise ProblemError("tell which model to serve", "none is named", remedy)


def _configuration(path: str, flags: Mapping[str, Any], server: ServerSection) -> Config:
    """The configuration for this file; raises ProblemError for a flag that llama.cpp lacks."""
    task = _task(flags)
    more = {"runner", "convert"} if task else set()
    used = {
        "served_model_name", "max_model_len", "gpu_memory_utilization", "kv_cache_dtype",
        "chat_template", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size",
        *_BY_THE_FILE, *_ELSEWHERE, *more,
    }  # fmt: skip
    for name in flags:
        if name not in used:
            _refuse(path, option(name), "llama.cpp, which serves GGUF files, has no equivalent")
    names = flags.get("served_model_name", path)
    cache = str(flags.get("kv_cache_dtype", "auto"))
    if cache not in _CACHES:
        _refuse(path, f"--kv-cache-dtype {cache}", "llama.cpp has no such cache")
    share = flags.get("gpu_memory_utilization")
    return Config(
        model=ModelSection(
            path=path,
            served_name=str(names[0] if isinstance(names, list) else names),
            max_model_len=whole_number(flags.get("max_model_len")),
            chat_template=str(flags.get("chat_template", "")),
        ),
        server=server,
        engine=EngineSection(kind=_KIND, extra_args=(task,) if task else ()),
        policy=PolicySection(
            kv_cache_dtype=_CACHES[cache],
            gpu_memory_utilization=None if share is None else float(share),
            max_num_seqs=whole_number(flags.get("max_num_seqs")),
            max_num_batched_tokens=whole_number(flags.get("max_num_batched_tokens")),
            tensor_parallel_size=whole_number(flags.get("tensor_parallel_size")),
        ),
    )


def _left_out(flags: Mapping[str, Any]) -> str:
    """The warning about dropped flags; "" without one."""
    names = ", ".join(option(name) for name in flags if name in _BY_THE_FILE)
    return f"ignored: {names}; the file, its chat template or llama.cpp decides that" * bool(names)


def _task(flags: Mapping[str, Any]) -> str:
    """llama.cpp's option for a pooling model; "" without one."""
    pools = flags.get("runner") == "pooling" or flags.get("convert") in ("embed", "classify")
    if not pools:
        return ""
    return "--reranking" if flags.get("convert") == "classify" else "--embeddings"


def _refuse(path: str, words: str, fact: str) -> None:
    raise ProblemError(f"serve {path} with {words}", fact, "remove it")


_FLAG, _ENDINGS = "--config", (".yaml", ".yml")


def _named_file(words: Sequence[str]) -> str:
    """The file that a command line names, or ""; raises ProblemError if vLLM cannot read it."""
    count = words.count(_FLAG)
    if not count:
        return ""
    at = words.index(_FLAG)
    path = words[at + 1] if at + 1 < len(words) else ""
    if count > 1:
        raise _bad(f"several {_FLAG}", "vLLM reads only one file", "put all keys into one file")
    if not path.endswith(_ENDINGS):
        fact = "vLLM reads only files whose names end in .yaml or .yml"
        raise _bad(f"{_FLAG} {path}".rstrip(), fact, "rename or convert the file")
    return path


def _expand(words: Sequence[str], document: Any, known: Collection[str]) -> list[str]:
    """Replace `--config FILE` in the command line with the file's keys; typed flags win.

    `known` are the engine's options: a key that is false needs its `--no-` twin.
    """
    at = words.index(_FLAG)
    if not isinstance(document, Mapping):
        raise _bad(
            f"{_FLAG} {words[at + 1]}", "the file has no keys", "write lines such as port: 8000"
        )
    before, behind = [*words[:at]], [*words[at + 2 :]]
    model = before[:1] if before and not before[0].startswith("-") else []
    inner = [word for key, value in document.items() for word in _words(str(key), value, known)]
    return [*model, *inner, *before[len(model) :], *behind]


def _words(key: str, value: Any, known: Collection[str]) -> list[str]:
    """One key as vLLM reads it."""
    if isinstance(value, bool):
        twin = f"--no-{key}"
        return [f"--{key}"] if value else [twin] * (twin in known)
    if isinstance(value, list):
        return [f"--{key}", *map(str, value)] if value else []
    return [f"--{key}", json.dumps(value) if isinstance(value, Mapping) else str(value)]


def _bad(what: str, fact: str, remedy: str) -> ProblemError:
    return ProblemError(f"use {what}", fact, remedy)


def _other_kind(words: Sequence[str]) -> str:
    return _KIND if any(word.endswith(_SUFFIX) for word in words) else ""


SERVE_WORDS = ServeWords(
    module=SERVE[1], other_kind=_other_kind, named_file=_named_file, expand=_expand, read=_read
)
