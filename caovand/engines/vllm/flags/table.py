"""Every `vllm serve` flag that caovan handles, one row each: how vLLM reads it.

`SUCCESSORS` are the replacements of flags that vLLM once had: commands on the web still use them.
`FOREIGN` are options of other programs, and `LATER` flags that early releases lack.

`planning/decisions.py` says how the policy decides a flag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from caovand.core.document import is_number
from caovand.engines.vllm.flags.spelling import count, is_left_to_vllm


@dataclass(frozen=True)
class Wanted:
    """The values that a verbatim flag may have: what is wrong with others, and what to write
    instead."""

    accepts: Callable[[Any], bool]
    fact: str
    remedy: str


COUNT = Wanted(
    lambda value: count(value) is not None, "not a whole number of 1 or more", "a whole number"
)
LENGTH = Wanted(
    lambda value: count(value) is not None or is_left_to_vllm(value),
    "not a number of tokens",
    "32768, 32k, 32K or auto",
)
PORT = Wanted(
    lambda value: type(value) is int and 0 < value < 65536,
    "not a number from 1 to 65535",
    "such a number",
)
GIB = Wanted(lambda value: is_number(value, 0), "not a size in GiB", "a number from 0")
SECONDS = Wanted(
    lambda value: type(value) is int and value >= 0,
    "not a number of seconds",
    "a whole number of 0 or more",
)
SHARE = Wanted(
    lambda value: is_number(value) and 0 < value <= 1,
    "not a share of a card's memory",
    "0.9 or less, above 0",
)
OBJECT = Wanted(
    lambda value: isinstance(value, Mapping), "not a JSON object", '\'{"key": "value"}\''
)


@dataclass(frozen=True)
class FlagRow:
    """One flag of vLLM.

    `takes` is how many words follow it ("many": all up to the next flag), `short` its short name. A
    flag with a `secret` is never shown: `secret` is the shortest prefix of its name that vLLM
    accepts, and `carrier` the variable that passes it to the engine instead. Values outside
    `wanted` are refused before a start. Values that the planner and the forecast calculate with are
    of `type`, also in a degraded plan. `unforeseen` says how it changes memory if it makes a
    forecast impossible.
    """

    name: str
    takes: Literal["nothing", "one", "many"] = "one"
    short: str = ""
    secret: str = ""
    carrier: str = ""
    wanted: Wanted | None = None
    type: tuple[type, ...] = ()
    unforeseen: str = ""


_INT, _NUMBER, _TEXT, _BOOL, _TABLE = (int,), (int, float), (str,), (bool,), (dict,)
_SPREAD = "the cache is then spread over the ranks"
_KNOWN = (
    FlagRow("host"),
    FlagRow("port", wanted=PORT),
    FlagRow("served_model_name", "many"),
    FlagRow("revision"),
    FlagRow("runner"),
    FlagRow("hf_overrides"),
    FlagRow("trust_remote_code", "nothing"),
    FlagRow("chat_template"),
    FlagRow("model_loader_extra_config", type=_TABLE),
    FlagRow("safetensors_load_strategy"),
    FlagRow("tool_call_parser"),
    FlagRow("enable_auto_tool_choice", "nothing"),
    FlagRow("reasoning_parser"),
    FlagRow("tensor_parallel_size", short="-tp", wanted=COUNT),
    FlagRow("pipeline_parallel_size", short="-pp", wanted=COUNT),
    FlagRow("dtype", type=_TEXT),
    FlagRow("speculative_config", short="-sc", type=_TABLE),
    FlagRow("attention_backend", type=_TEXT),
    FlagRow("kv_cache_dtype", type=_TEXT),
    FlagRow("enable_prefix_caching", "nothing", type=_BOOL),
    FlagRow("mamba_cache_mode"),
    FlagRow("prefix_match_unit", type=_INT, wanted=COUNT),
    FlagRow("gdn_prefill_backend"),
    FlagRow("disable_custom_all_reduce", "nothing", type=_BOOL),
    FlagRow("enable_flashinfer_autotune", "nothing"),
    FlagRow("language_model_only", "nothing"),
    FlagRow("limit_mm_per_prompt", type=_TABLE),
    FlagRow("mm_processor_kwargs", type=_TABLE),
    FlagRow("max_model_len", type=_INT, wanted=LENGTH),
    FlagRow("max_num_seqs", type=_INT, wanted=COUNT),
    FlagRow("async_scheduling", "nothing", type=_BOOL),
    FlagRow("max_num_batched_tokens", type=_INT, wanted=COUNT),
    FlagRow("enforce_eager", "nothing", type=_BOOL),
    FlagRow("compilation_config", short="-cc", type=_TABLE),
    FlagRow("gpu_memory_utilization", type=_NUMBER, wanted=SHARE),
    FlagRow("cpu_offload_gb", type=_NUMBER, wanted=GIB),
    FlagRow("kv_cache_memory_bytes", type=_INT, wanted=COUNT),
    FlagRow("additional_config", type=_TABLE, wanted=OBJECT),
    FlagRow("enable_server_load_tracking", "nothing"),
    FlagRow("disable_access_log_for_endpoints"),
    FlagRow("sse_keep_alive_interval", wanted=SECONDS),
    FlagRow("shutdown_timeout"),
    FlagRow("quantization", short="-q"),
    FlagRow("load_format"),
    FlagRow("attention_config", short="-ac"),
    FlagRow("enable_chunked_prefill", "nothing"),
    FlagRow("data_parallel_size", short="-dp", wanted=COUNT),
    FlagRow("num_gpu_blocks_override", wanted=COUNT),
    FlagRow("block_size", wanted=COUNT),
    FlagRow("enable_lora", "nothing", type=_BOOL),
    FlagRow("max_loras", wanted=COUNT),
    FlagRow("max_lora_rank", wanted=COUNT),
    FlagRow("mamba_cache_dtype", unforeseen="it changes the size of the recurrent states"),
    FlagRow("mamba_block_size", unforeseen="it changes how often recurrent states are kept"),
    FlagRow("kv_cache_dtype_skip_layers", "many",
            unforeseen="layers then keep caches of different sizes"),
    FlagRow("decode_context_parallel_size", short="-dcp", unforeseen=_SPREAD),
    FlagRow("prefill_context_parallel_size", short="-pcp", unforeseen=_SPREAD),
    FlagRow("enable_eplb", "nothing", unforeseen="experts are then stored more than once"),
    FlagRow("offload_group_size", unforeseen="layers then move in and out while the model runs"),
    FlagRow("api_key", "many", secret="api_k", carrier="VLLM_API_KEY"),
    FlagRow("hf_token", secret="hf_t", carrier="HF_TOKEN"),
    FlagRow("node_rank", short="-r"),
    FlagRow("nnodes", short="-n"),
    FlagRow("enable_expert_parallel", "nothing", short="-ep"),
    FlagRow("api_server_count", short="-asc"),
    FlagRow("data_parallel_rank", short="-dpn"),
    FlagRow("data_parallel_start_rank", short="-dpr"),
    FlagRow("data_parallel_size_local", short="-dpl"),
    FlagRow("data_parallel_address", short="-dpa"),
    FlagRow("data_parallel_rpc_port", short="-dpp"),
    FlagRow("data_parallel_backend", short="-dpb"),
    FlagRow("data_parallel_hybrid_lb", "nothing", short="-dph"),
    FlagRow("data_parallel_external_lb", "nothing", short="-dpe"),
    FlagRow("data_parallel_multi_port_external_lb", "nothing", short="-dpm"),
    FlagRow("diffusion_config", short="-dc"),
    FlagRow("optimization_level", short="-O"),
)  # fmt: skip
"""Flags of which caovan knows more than how many words they take."""
_MANY = (
    "middleware", "lora_modules", "cudagraph_capture_sizes", "device_ids", "lora_target_modules",
    "collect_detailed_traces", "numa_bind_nodes", "numa_bind_cpus", "allowed_media_domains",
    "ignore_patterns", "logits_processors", "cpu_offload_params", "offload_params",
    "sleep_preserve_parameter_names",
)  # fmt: skip
_ALONE = (
    "aggregate_engine_logging", "allow_credentials", "allow_deprecated_quantization",
    "cudagraph_metrics", "disable_cascade_attn",
    "disable_chunked_mm_input", "disable_fastapi_docs", "disable_hybrid_kv_cache_manager",
    "disable_log_requests", "disable_log_stats", "disable_nccl_for_dp_synchronization",
    "disable_sliding_window", "disable_uvicorn_access_log", "enable_dbo", "enable_elastic_ep",
    "enable_force_include_usage", "enable_layerwise_nvtx_tracing", "enable_log_deltas",
    "enable_log_outputs", "enable_log_requests", "enable_mfu_metrics", "enable_mm_embeds",
    "enable_offline_docs", "enable_prompt_embeds", "enable_prompt_tokens_details",
    "enable_request_id_headers", "enable_return_routed_experts", "enable_sleep_mode",
    "enable_ssl_refresh", "enable_tokenizer_info_endpoint", "enable_tower_connector_lora",
    "exclude_tools_when_tool_choice_none", "fully_sharded_loras", "grpc", "headless",
    "interleave_mm_strings", "kv_cache_metrics", "kv_sharing_fast_prefill", "log_error_stack",
    "mm_encoder_only", "numa_bind", "ray_workers_use_nsight", "return_tokens_as_token_ids",
    "skip_mm_profiling", "skip_tokenizer_init", "specialize_active_lora", "tokens_only",
    "trust_request_chat_template", "use_tqdm_on_load",
)  # fmt: skip
FLAGS: tuple[FlagRow, ...] = (
    *_KNOWN,
    *(FlagRow(name, "many") for name in _MANY),
    *(FlagRow(name, "nothing") for name in _ALONE),
)
SHORT = {row.short: row.name for row in FLAGS if row.short}
MANY = frozenset(row.name for row in FLAGS if row.takes == "many")
SWITCHES = frozenset(row.name for row in FLAGS if row.takes == "nothing")
"""Flags without a value, for engines whose options were not probed; a model's name may follow."""
SECRETS = {row.name: row.secret for row in FLAGS if row.secret}
CARRIERS = {row.name: row.carrier for row in FLAGS if row.carrier}
WANTED: Mapping[str, Wanted] = {row.name: row.wanted for row in FLAGS if row.wanted}
KINDS: Mapping[str, tuple[type, ...]] = {row.name: row.type for row in FLAGS if row.type}
"""The types that the planner and the forecast calculate with; other values go to vLLM unchanged."""
UNFORESEEN = {row.name: row.unforeseen for row in FLAGS if row.unforeseen}
_NOTHING = "remove it: vLLM no longer has this setting"
_DRAFTS = 'use --speculative-config \'{"model": ..., "num_speculative_tokens": 5}\''
_NGRAM = 'use --speculative-config \'{"method": "ngram", ...}\''
SUCCESSORS: Mapping[str, str] = {
    "enable_reasoning": "remove it: --reasoning-parser alone turns reasoning on",
    "rope_scaling": "use --hf-overrides '{\"rope_parameters\": {\"rope_type\": \"yarn\", ...}}'"
    " (before 0.12 rope_scaling)",
    "rope_theta": "use --hf-overrides '{\"rope_parameters\": {\"rope_theta\": ...}}'",
    "swap_space": "remove it: a preempted request is computed again",
    "task": "use --runner pooling, with --convert embed or --convert classify; for a "
    "generative model, remove it",
    "override_pooler_config": "use --pooler-config",
    "override_neuron_config": "use --additional-config",
    "guided_decoding_backend": "use --structured-outputs-config.backend",
    "ngram_prompt_lookup_max": _NGRAM,
    "ngram_prompt_lookup_min": _NGRAM,
    "num_scheduler_steps": "remove it: steps overlap with --async-scheduling, the default",
    "disable_async_output_proc": "use --no-async-scheduling",
    "worker_use_ray": "use --distributed-executor-backend ray",
    "engine_use_ray": "use --distributed-executor-backend ray",
    "device": "remove it: vLLM's build decides",
    "max_seq_len_to_capture": "use --max-cudagraph-capture-size",
    "max_context_len_to_capture": "use --max-cudagraph-capture-size",
    "cuda_graph_sizes": "use --cudagraph-capture-sizes",
    "disable_mm_preprocessor_cache": "use --mm-processor-cache-gb 0",
    "disable_log_requests": "remove it: vLLM logs requests only with --enable-log-requests",
    "enable_microbatching": "use --enable-dbo",
    "qlora_adapter_name_or_path": "use --lora-modules",
    **dict.fromkeys(
        (
            "multi_step_stream_outputs", "use_v2_block_manager", "num_lookahead_slots",
            "preemption_mode", "scheduler_delay_factor", "tokenizer_pool_size",
            "tokenizer_pool_type", "enable_prompt_adapter", "max_prompt_adapters",
            "max_prompt_adapter_token", "lora_extra_vocab_size", "long_lora_scaling_factors",
            "enable_lora_bias", "max_paddings", "image_input_type", "image_token_id",
            "image_input_shape",
        ),
        _NOTHING,
    ),
    **dict.fromkeys(
        (
            "speculative_model", "num_speculative_tokens", "speculative_max_model_len",
            "speculative_draft_tensor_parallel_size", "speculative_disable_by_batch_size",
            "spec_decoding_acceptance_method",
        ),
        _DRAFTS,
    ),
}  # fmt: skip
"""The remedy for a flag that only earlier releases had; used only if the engine lacks it."""
FOREIGN: Mapping[str, tuple[str, str]] = {
    "model_path": ("SGLang", "the model's name or path right after serve"),
    "mem_fraction_static": ("SGLang", "--gpu-memory-utilization"),
    "context_length": ("SGLang", "--max-model-len"),
    "max_running_requests": ("SGLang", "--max-num-seqs"),
    "chunked_prefill_size": ("SGLang", "--max-num-batched-tokens"),
    "disable_cuda_graph": ("SGLang", "--enforce-eager"),
    "tp_size": ("SGLang", "--tensor-parallel-size"),
    "dp_size": ("SGLang", "--data-parallel-size"),
    "ctx_size": ("llama.cpp", "--max-model-len"),
    "n_gpu_layers": ("llama.cpp", "--cpu-offload-gb for the part that does not fit on the card"),
    "lora_path": ("another program", "--enable-lora --lora-modules NAME=PATH"),
    "lora_paths": ("SGLang", "--enable-lora --lora-modules NAME=PATH"),
    "max_total_tokens": ("TGI", "--max-model-len"),
    "max_input_length": ("TGI", "--max-model-len"),
    "model_id": ("TGI", "the model's name or path right after serve"),
    "num_shard": ("TGI", "--tensor-parallel-size"),
    "omni": ("vllm-omni", "to install it in the release of the installed vLLM"),
}
"""Options of other programs: whose, and what vLLM has in their place."""
LATER = frozenset({
    "additional_config", "async_scheduling", "attention_backend", "compilation_config", "convert",
    "data_parallel_backend", "data_parallel_size", "default_chat_template_kwargs", "enable_eplb",
    "enable_expert_parallel", "enable_prefix_caching", "enable_sleep_mode", "enforce_eager",
    "generation_config", "hf_overrides", "kv_cache_memory_bytes", "kv_offloading_size",
    "kv_transfer_config", "language_model_only", "limit_mm_per_prompt", "logits_processors",
    "logprobs_mode", "mm_encoder_tp_mode", "mm_processor_cache_gb", "mm_processor_kwargs",
    "moe_backend", "override_generation_config", "pooler_config", "ray_workers_use_nsight",
    "reasoning_config", "reasoning_parser", "runner", "speculative_config", "stream_interval",
    "structured_outputs_config", "tool_call_parser", "tool_parser_plugin", "tool_server",
    "worker_extension_cls",
})  # fmt: skip
"""Arguments that only later releases have: an engine without one is older."""


def known_of(captures: Mapping[str, str]) -> Mapping[str, str]:
    """The facts about an argument that a release does not accept: `later`, `gone` and `instead`,
    or `foreign`, `whose` and `ours`."""
    passed = captures.get("unknown") or captures.get("argument", "")
    name = passed.lstrip("-").partition("=")[0].replace("-", "_").removeprefix("no_")
    if name in LATER:
        return {"later": passed}
    if name in FOREIGN:
        whose, ours = FOREIGN[name]
        return {"foreign": passed, "whose": whose, "ours": ours}
    return {"gone": passed, "instead": SUCCESSORS[name]} if name in SUCCESSORS else {}
