"""The configuration: every key with its type, default, bounds and one sentence of help.

This file is the single source: `parser` reads configuration files by it, and `text` generates
`etc/caovan.toml` from it. None is "auto": the policy decides.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from caovand.core.config.key import StringPairs, key
from caovand.core.config.services import (
    ClusterSection,
    ControlSection,
    GatewaySection,
    HistorySection,
    LogSection,
    MetricsSection,
    PageSection,
)
from caovand.core.gateway.naming import MAX_TOKENS

Mode = Literal["auto", "stable", "fast"]
MODES: tuple[Mode, ...] = get_args(Mode)
MAX_DRAFT_DEPTH = 8
AUTO_SPEC = "CAOVAN_AUTO_SPEC"
"""The variable that overrides the configured draft depth: a number or a mode."""


@dataclass(frozen=True)
class ModelSection:
    """The model to serve."""

    path: str = key(
        "",
        "Model folder, or the model's name on the hub or in Ollama.",
        example='"/srv/models/Qwen3.6-27B-AWQ"',
    )
    served_name: str | None = key(
        None, 'Model name that clients request; "auto" is the last part of `path`.'
    )
    revision: str = key("", "Branch, tag or commit of a hub model; empty is its default branch.")
    max_model_len: int | None = key(
        None,
        'Context in tokens; "auto" is the longest that fits, at most the model\'s own.',
        low=1,
        high=MAX_TOKENS,
    )
    chat_template: str = key("", "Chat template file; empty is the model's own.")
    drafter: str = key(
        "",
        "Folder of a DFlash drafter for this model (vLLM on cards); if empty, the model's MTP "
        "head drafts, if it has one.",
    )
    text_only: bool | None = key(None, "Do not load the vision tower of a multimodal model.")
    trust_remote_code: bool = key(False, "Run the Python code in the model's folder.")


@dataclass(frozen=True)
class ServerSection:
    """The address at which clients reach the engine."""

    host: str = key("127.0.0.1", "Address the engine listens on.")
    port: int = key(8000, "TCP port the engine listens on.", low=1, high=65535)
    api_key_file: str = key(
        "",
        "File with the API key that clients must send, closed to other users (mode 640); empty "
        "requires none.",
        private=True,
    )
    tool_call_parser: str | None = key(
        None, 'Tool-call parser of vLLM or SGLang; "none" for no tool calls.'
    )
    reasoning_parser: str | None = key(None, 'Reasoning parser of vLLM or SGLang; "none" for none.')


@dataclass(frozen=True)
class PolicySection:
    """Goals of the planner; the ladder may go below those that `pinned` does not name."""

    mode: Mode = key(
        "auto",
        "auto: MTP 3 on 1 or 2 GPUs, 4 on more, less or none where memory matters more; stable: "
        "MTP 3; fast: MTP 4.",
        choices=MODES,
        replans=False,  # another mode only resets the MTP rungs
    )
    workload: str = key(
        "chat",
        "Workload that plans are optimised for: chat (prompts of 4,000 tokens, answers of 500, "
        "few users), long (prompts of 100,000) or batch (many users).",
        choices=("chat", "long", "batch"),
    )
    mtp: int | None = key(
        None, "Speculative MTP depth in tokens; 0 turns it off.", low=0, high=MAX_DRAFT_DEPTH
    )
    tune: str = key(
        "off",
        "Draft tuner: suggest reports the fastest draft depth in `status`, estimated from measured"
        " step times and acceptance; apply restarts the engine with it, and reverts unless it is"
        " faster.",
        choices=("off", "suggest", "apply"),
        replans=False,
    )
    tune_quiet_s: float = key(
        900.0,
        "Seconds without a request before caovan restarts the engine for a better plan: the "
        "draft tuner's, or the full plan once other programs have freed memory.",
        low=5,
        high=86400,
        replans=False,
    )
    gpu_memory_utilization: float | None = key(
        None, "Share of each GPU's memory for the engine.", low=0.05, high=0.99
    )
    kv_cache_dtype: str | None = key(
        None,
        "KV cache type: a value of vLLM's or SGLang's --kv-cache-dtype or llama.cpp's "
        '--cache-type-k. "fp8" selects the 8-bit format that the cards support.',
    )
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
    activations: str | None = key(
        None,
        "Activation precision for 4-bit weights: half (unchanged) or int8 (quantised; symmetric"
        " GPTQ weights on SM75 to SM89; faster prefill, slower decode, less accurate).",
        choices=("half", "int8"),
    )
    lm_head: str | None = key(
        None,
        "lm_head weights: half (unchanged) or int8 (rounded while loading, half the memory and "
        "faster decode; vLLM on SM75 with caovan's kernels; logits change by about 1 %).",
        choices=("half", "int8"),
    )
    cuda_graphs: str | None = key(
        None,
        "CUDA graph mode.",
        choices=("none", "piecewise", "full", "full_and_piecewise", "full_decode_only"),
    )
    strict: bool = key(False, "Never degrade: fail instead of lowering a setting.")
    pinned: tuple[str, ...] = key(
        (),
        "Keys of [model] and [policy] that the ladder must not lower; a pinned max_model_len is "
        "started regardless of the forecast.",
        example='["mtp"]',
    )
    ladder: tuple[str, ...] | None = key(
        None, 'Rungs that the ladder may use; "auto" is all of them.'
    )


@dataclass(frozen=True)
class EngineSection:
    """The engine to run, and its options."""

    kind: str | None = key(
        None,
        'Kind of engine, vllm, llamacpp, ollama or sglang; "auto" is llamacpp for a model in GGUF'
        " files, else vllm.",
    )
    python: str | None = key(
        None, 'The engine\'s Python; "auto" is the one `caovanctl engine` installed.'
    )
    gpus: tuple[int, ...] | None = key(
        None, 'Indices of the GPUs to use; "auto" is all that are visible.'
    )
    plugin: bool = key(True, "Load the caovan kernels (they act on SM75 cards only).")
    extra_args: tuple[str, ...] = key(
        (),
        "Flags of the engine's server, verbatim; they override every setting. Ollama has none.",
        private=True,
    )
    env: StringPairs = key(
        (),
        "Environment variables of the engine, verbatim.",
        example='{ NCCL_P2P_DISABLE = "1" }',
        private=True,
    )
    confine: bool = key(
        True,
        "Keep the engine away from caovan's files and processes, and let it write only to its "
        "caches (Landlock and seccomp). Takes effect when the engine starts.",
        replans=False,
    )
    writable: tuple[str, ...] = key(
        (),
        "Further folders and devices that a confined engine may write to. Takes effect when the "
        "engine starts.",
        example='["/srv/loras"]',
        replans=False,
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
        30.0,
        "Minimum seconds to wait for that test completion, which refutes the hang.",
        low=1,
        high=86400,
    )
    idle_probe_s: float = key(
        0.0,
        "Seconds between test completions of an idle engine, whose answers are compared with "
        "the first proof's; 0 is never: a fault of an idle engine then shows only at the next "
        "request.",
        low=0,
        high=86400,
    )
    stall_s: float | None = key(
        None,
        'Seconds without progress before a start is abandoned; "auto" is 300 to 1800 by phase.',
        low=10,
        high=86400,
    )
    stable_after_s: float = key(
        600.0, "Seconds of serving after which failures no longer count.", low=1, high=604800
    )
    failures: int = key(
        5, "Consecutive failures of an unchanged plan before caovand gives up.", low=1, high=1000
    )
    recheck_s: float = key(
        15.0,
        "Seconds between checks while the engine waits for something outside, such as a busy port.",
        low=1,
        high=3600,
    )
    shutdown_timeout_s: float = key(
        10.0,
        "Seconds requests may take to finish when the engine is stopped; 2 s later it is killed.",
        low=0,
        high=3600,
    )
    gpu_sample_s: float = key(5.0, "Seconds between GPU samples.", low=0.5, high=3600, once=True)
    log_lines: int = key(
        2000, "Log lines of the engine kept in memory.", low=100, high=100_000, once=True
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
    page: PageSection = field(default_factory=PageSection)
    gateway: GatewaySection = field(default_factory=GatewaySection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    history: HistorySection = field(default_factory=HistorySection)
    log: LogSection = field(default_factory=LogSection)

    def origin(self, section: str, key: str) -> Literal["user", "policy"]:
        """The origin of this value: "policy" if it is the default."""
        default = getattr(getattr(Config(), section), key)
        return "policy" if getattr(getattr(self, section), key) == default else "user"


def hints(section: type) -> Mapping[str, Any]:
    """The types of a section's keys, or of the sections, by name."""
    return typing.get_type_hints(section)


def unapplied(before: Config, after: Config) -> Iterable[str]:
    """Changed keys that need a restart of the daemon, as "[section] key"."""
    for section in fields(Config):
        old, new = getattr(before, section.name), getattr(after, section.name)
        for entry in fields(old):
            changed = getattr(old, entry.name) != getattr(new, entry.name)
            if changed and entry.metadata["once"]:
                yield f"[{section.name}] {entry.name}"


def auto_spec(config: Config, environ: Mapping[str, str]) -> str | None:
    """CAOVAN_AUTO_SPEC from our own environment, else from [engine] env."""
    return environ.get(AUTO_SPEC, dict(config.engine.env).get(AUTO_SPEC))
