"""The configuration: every key with its type, default, bounds and one sentence of help.

This file is their only source. `parse` refuses a bad value, naming file, section,
key and a remedy; `render` writes `etc/caovan.toml`, which lists every key with its default. A
key whose default is "auto" is None here: the policy decides it.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin

Mode = Literal["auto", "stable", "fast"]
MODES: tuple[Mode, ...] = get_args(Mode)
AUTO_SPEC = "CAOVAN_AUTO_SPEC"
"""The variable that overrides the file's drafting depth: a number, or a mode."""
Pairs = tuple[tuple[str, str], ...]
"""A table of strings, frozen: ((name, value), ...) sorted by name."""


class ConfigError(Exception):
    """The configuration cannot be used; `findings` has one sentence for each reason."""

    def __init__(self, findings: Iterable[str]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(self.findings))


def key(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Iterable[str] = (),
    example: str = "",
    private: bool = False,
) -> Any:
    """A configuration key: its default (None is "auto"), help text, inclusive bounds, choices.

    `example` is shown commented out where the default alone says too little. The value of a
    `private` key may be a password: findings never repeat it.
    """
    bounds = {"low": low, "high": high, "choices": tuple(choices), "private": private}
    return field(default=default, metadata={"help": help, "example": example, **bounds})


@dataclass(frozen=True)
class ModelSection:
    """The model to serve."""

    path: str = key(
        "", "Folder of the model, or its name on the hub.", example='"/srv/models/Qwen3.6-27B-AWQ"'
    )
    served_name: str | None = key(None, 'Name clients ask for; "auto" is the last part of `path`.')
    revision: str = key("", "Branch, tag or commit of a hub model; empty is its default branch.")
    max_model_len: int | None = key(
        None,
        'Context in tokens; "auto" is the longest that fits, at most the model\'s own.',
        low=1,
        high=16_777_216,
    )
    chat_template: str = key("", "Chat template file; empty is the model's own.")
    text_only: bool | None = key(None, "Do not load the vision tower of a multimodal model.")
    trust_remote_code: bool = key(False, "Run the Python code in the model's folder.")


@dataclass(frozen=True)
class ServerSection:
    """Where clients reach the engine."""

    host: str = key("127.0.0.1", "Address the engine listens on.")
    port: int = key(8000, "TCP port the engine listens on.", low=1, high=65535)
    api_key_file: str = key(
        "", "File with the API key clients must send; empty asks for none.", private=True
    )
    tool_call_parser: str | None = key(None, 'vLLM tool-call parser; "none" for no tool calls.')
    reasoning_parser: str | None = key(None, 'vLLM reasoning parser; "none" for none.')


@dataclass(frozen=True)
class PolicySection:
    """Goals of the planner; the ladder may go below those that `pinned` does not name."""

    mode: Mode = key(
        "auto", "auto: MTP 3 on 1-2 GPUs, 4 on more; stable: MTP 3; fast: MTP 4.", choices=MODES
    )
    workload: str = key(
        "chat",
        "What plans are fast for: chat (prompts of 4,000 tokens, answers of 500, few users), long"
        " (prompts of 100,000) or batch (many users).",
        choices=("chat", "long", "batch"),
    )
    mtp: int | None = key(None, "Speculative MTP depth in tokens; 0 turns it off.", low=0, high=8)
    gpu_memory_utilization: float | None = key(
        None, "Share of each GPU's memory for the engine.", low=0.05, high=0.99
    )
    kv_cache_dtype: str | None = key(None, "KV cache type, as vLLM's --kv-cache-dtype.")
    max_num_seqs: int | None = key(None, "Maximum concurrent sequences.", low=1, high=4096)
    max_num_batched_tokens: int | None = key(
        None, "Token budget per engine step.", low=16, high=1_048_576
    )
    tensor_parallel_size: int | None = key(
        None, "Number of GPUs the model is split over.", low=1, high=64
    )
    dtype: str | None = key(
        None, "Activation type.", choices=("half", "float16", "bfloat16", "float32", "float")
    )
    cuda_graphs: str | None = key(
        None,
        "CUDA graph mode.",
        choices=("none", "piecewise", "full", "full_and_piecewise", "full_decode_only"),
    )
    strict: bool = key(False, "Never degrade: fail instead of lowering a setting.")
    pinned: tuple[str, ...] = key(
        (), "Keys of [model] and [policy] that must not be lowered.", example='["mtp"]'
    )
    ladder: tuple[str, ...] | None = key(
        None, 'Fallback rungs that may be used; "auto" is all of them.'
    )


@dataclass(frozen=True)
class EngineSection:
    """How the engine is run."""

    python: str | None = key(
        None, 'The engine\'s Python; "auto" is the one `caovanctl engine` installed.'
    )
    gpus: tuple[int, ...] | None = key(
        None, 'Indices of the GPUs to use; "auto" is all that are visible.'
    )
    plugin: bool = key(True, "Load the caovan kernels (they act on SM75 cards only).")
    extra_args: tuple[str, ...] = key(
        (), "Flags for `vllm serve`, verbatim; they win over every setting.", private=True
    )
    env: Pairs = key(
        (),
        "Environment variables of the engine, verbatim.",
        example='{ NCCL_P2P_DISABLE = "1" }',
        private=True,
    )


@dataclass(frozen=True)
class WatchSection:
    """When the engine counts as hung, stalled, stable or hopeless."""

    hang_s: float = key(
        60.0,
        "Seconds with work pending and no progress before the engine counts as hung; a test"
        " completion is sent after a third of it.",
        low=5,
        high=86400,
    )
    confirm_s: float = key(
        30.0, "Seconds that test completion has, at least, to refute the hang.", low=1, high=86400
    )
    idle_probe_s: float = key(
        0.0, "Seconds between test completions of an idle engine; 0 is never.", low=0, high=86400
    )
    stall_s: float | None = key(
        None,
        'Seconds without progress before a start is abandoned; "auto" is 300 to 1800 by phase.',
        low=10,
        high=86400,
    )
    stable_after_s: float = key(
        600.0, "Seconds of serving after which failures are forgotten.", low=1, high=604800
    )
    failures: int = key(
        5, "Failures in a row of one unchanged plan before caovand gives up.", low=1, high=1000
    )
    recheck_s: float = key(
        15.0,
        "Seconds between checks while the engine waits for something outside, such as a busy port.",
        low=1,
        high=3600,
    )
    shutdown_timeout_s: float = key(
        10.0, "Seconds requests may take to finish when the engine is stopped.", low=0, high=3600
    )
    gpu_sample_s: float = key(5.0, "Seconds between GPU samples.", low=0.5, high=3600)
    log_lines: int = key(2000, "Log lines of the engine kept in memory.", low=100, high=100_000)


@dataclass(frozen=True)
class ControlSection:
    """Who may control the daemon."""

    group: str = key("caovan", "Group whose members may use every caovanctl verb.")


@dataclass(frozen=True)
class MetricsSection:
    """Prometheus metrics of the daemon."""

    listen: str = key(
        "", "ADDRESS:PORT to serve metrics on; empty is off.", example='"127.0.0.1:9400"'
    )


@dataclass(frozen=True)
class LogSection:
    """The daemon's own log."""

    level: str = key(
        "info",
        "Least severe message of caovand's own to log; the engine's lines are always logged.",
        choices=("debug", "info", "warning", "error"),
    )
    format: str | None = key(
        None,
        'Format; "auto" is console on a terminal, journald under systemd, else json.',
        choices=("console", "json", "journald"),
    )


@dataclass(frozen=True)
class Config:
    """A whole, valid configuration."""

    model: ModelSection = field(default_factory=ModelSection)
    server: ServerSection = field(default_factory=ServerSection)
    policy: PolicySection = field(default_factory=PolicySection)
    engine: EngineSection = field(default_factory=EngineSection)
    watch: WatchSection = field(default_factory=WatchSection)
    control: ControlSection = field(default_factory=ControlSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    log: LogSection = field(default_factory=LogSection)


def _hints(section: type) -> Mapping[str, Any]:
    return typing.get_type_hints(section)


def parse(
    document: Mapping[str, Any], source: str = "configuration", rungs: Collection[str] = ()
) -> Config:
    """The configuration in a parsed TOML document.

    Raises ConfigError with every finding at once; `source` names the file in them. `rungs` are
    those of the engine's ladder; without any, their names are not checked.
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
            sections[name] = _section(_hints(Config)[name], name, content, source, findings)
    # A refused key has its default here, which contradicts nothing.
    config = Config(**sections)
    findings.extend(f"{source}: {text}" for text in _contradictions(config, rungs))
    if findings:
        raise ConfigError(findings)
    return config


def _misplaced(name: str, content: Any) -> str:
    """What is wrong with a name at the top level that is not a section."""
    if isinstance(content, Mapping):
        sections = [f.name for f in fields(Config)]
        return f"unknown section [{name}]{_elsewhere(name) or _suggest(name, sections)}"
    every = [k.name for f in fields(Config) for k in fields(_hints(Config)[f.name])]
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
            values[key_name] = _convert(value, _hints(kind)[key_name], known[key_name].metadata)
        except ValueError as problem:
            findings.append(f"{source}: [{name}] {key_name} {problem}")
    return kind(**values)


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""


def _elsewhere(name: str) -> str:
    homes = [
        f.name
        for f in fields(Config)
        if any(k.name == name for k in fields(_hints(Config)[f.name]))
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
        raise ValueError(f"must be from {_toml(float(low))} to {_toml(float(high))}, is {value!r}")
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
    return repr(value) if isinstance(value, float) else _toml(value)


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


def _contradictions(config: Config, rungs: Collection[str]) -> Iterable[str]:
    """Contradictions between keys, and values that are wrong for other reasons than their type."""
    lowerable = [f.name for section in (ModelSection, PolicySection) for f in fields(section)]
    for name in config.policy.pinned:
        if name not in lowerable:
            hint = _suggest(name, lowerable)
            yield f'[policy] pinned names "{name}", which is not a key of [model] or [policy]{hint}'
    for name in config.policy.ladder or ():
        if rungs and name not in rungs:
            hint = _suggest(name, rungs) or f"; rungs are {', '.join(rungs)}"
            yield f'[policy] ladder names "{name}", which is not a rung{hint}'
    if config.engine.gpus == ():
        yield '[engine] gpus must not be empty; leave the key out for "auto"'
    if config.engine.gpus is not None and len(set(config.engine.gpus)) != len(config.engine.gpus):
        yield f"[engine] gpus names a card twice: {list(config.engine.gpus)}"
    if any(index < 0 for index in config.engine.gpus or ()):
        yield f"[engine] gpus must be card indices from 0, is {list(config.engine.gpus or ())}"
    listen = config.metrics.listen
    if listen and not _is_endpoint(listen):
        yield f'[metrics] listen must be ADDRESS:PORT, such as "127.0.0.1:9400", is "{listen}"'
    for name, _ in config.engine.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield (
                f"[engine] env: {_word(name)} is not a valid name of a variable; use letters,"
                " digits and _"
            )
    host = config.server.host
    if not re.fullmatch(r"[A-Za-z0-9:][A-Za-z0-9.:%_-]*", host):
        everywhere = "" if host.strip() else '; "0.0.0.0" is every address'
        yield (
            '[server] host must be an address or a name, such as "127.0.0.1" or "::1", is'
            f" {_toml(host)}{everywhere}"
        )


def _is_endpoint(text: str) -> bool:
    host, _, port = text.rpartition(":")
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    return bool(host) and digits and 0 < int(port) < 65536


def _toml(value: Any) -> str:
    if value is None:
        return '"auto"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return "{ " + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(k)} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, str):
        # JSON's escapes are TOML's too, except that it leaves DEL unescaped, which TOML forbids.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)


def render(config: Config = Config()) -> str:
    """`config` as a commented TOML file with every key; `parse` reads the same back."""
    lines = [
        "# caovan: which model to serve, where, and how far caovand may go to keep it served.",
        '# Every key is here with its default; "auto" lets caovand decide (see `caovanctl plan`).',
        "# Check an edit with `caovanctl check-config`, apply it with `caovanctl reload`.",
    ]
    for section in fields(Config):
        content = getattr(config, section.name)
        lines += ["", f"# {type(content).__doc__}", f"[{section.name}]"]
        for entry in fields(content):
            meta = entry.metadata
            limits = (
                f" From {_toml(float(meta['low']))} to {_toml(float(meta['high']))}."
                if meta["low"] is not None
                else ""
            )
            allowed = (
                f" One of {', '.join(meta['choices'])}."
                if meta["choices"] and entry.name != "mode"
                else ""
            )
            example = f" Example: {meta['example']}" if meta["example"] else ""
            lines.append(f"# {meta['help']}{limits}{allowed}{example}")
            value = getattr(content, entry.name)
            empty_table = _hints(type(content))[entry.name] == Pairs and not value
            lines.append(f"{entry.name} = {'{}' if empty_table else _toml(value)}")
    return "\n".join(lines) + "\n"
