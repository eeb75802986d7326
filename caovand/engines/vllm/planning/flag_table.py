"""Every flag of `vllm serve` that caovan knows, one row each; what else asks for flags is derived.

Rules run in the order of the rows: one may read what was decided before it. A new flag is a row
here, with its rule in `rules` and its obstacle in `obstacles` if it has any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caovand.core.plan import Plan
from caovand.engines.vllm.planning import cpu, families, obstacles, pipeline, rules, turing
from caovand.engines.vllm.planning.flag_row import (
    COUNT,
    FREE,
    GIB,
    KEEP,
    LENGTH,
    OBJECT,
    PORT,
    SHARE,
    FlagRow,
    Goal,
    Wanted,
)
from caovand.engines.vllm.planning.speculation import async_scheduling, speculative_config
from caovand.engines.vllm.planning.spelling import PARTS_OF_SPECULATION


def _graphs(plan: Plan) -> Any:
    """The plan's CUDA graphs in the words of the key."""
    config = plan.value("compilation_config")
    mode = config.get("cudagraph_mode") if isinstance(config, dict) else None
    return "none" if plan.value("enforce_eager") else str(mode).lower()


_INT, _NUMBER, _TEXT, _BOOL, _TABLE = (int,), (int, float), (str,), (bool,), (dict,)
_SPREAD = "the cache is then spread over the ranks"

_DECIDED = (
    FlagRow("host", rule=rules.host),
    FlagRow("port", rule=rules.port, wanted=PORT),
    FlagRow("served_model_name", "many", rule=rules.served_model_name,
            goal=Goal("model", "served_name")),
    FlagRow("revision", rule=rules.revision, goal=Goal("model", "revision")),
    FlagRow("trust_remote_code", "nothing", rule=rules.trust_remote_code,
            goal=Goal("model", "trust_remote_code")),
    FlagRow("chat_template", rule=rules.chat_template, goal=Goal("model", "chat_template")),
    FlagRow("tool_call_parser", rule=families.tool_call_parser,
            goal=Goal("server", "tool_call_parser")),
    FlagRow("enable_auto_tool_choice", "nothing", rule=families.enable_auto_tool_choice),
    FlagRow("reasoning_parser", rule=families.reasoning_parser,
            goal=Goal("server", "reasoning_parser")),
    FlagRow("tensor_parallel_size", short="-tp", rule=pipeline.tensor_parallel_size, wanted=COUNT,
            goal=Goal("policy", "tensor_parallel_size"),
            obstacles=(obstacles.cards, obstacles.split), eases=6),
    FlagRow("pipeline_parallel_size", short="-pp", rule=pipeline.pipeline_parallel_size,
            wanted=COUNT, obstacles=(obstacles.stages, obstacles.uncompiled), hinders=7),
    FlagRow("dtype", rule=rules.dtype, type=_TEXT, goal=Goal("policy", "dtype"),
            obstacles=(obstacles.dtype,), hinders=1),
    FlagRow("speculative_config", short="-sc", rule=speculative_config, type=_TABLE,
            goal=Goal("policy", "mtp", flags=PARTS_OF_SPECULATION, value=lambda plan: plan.mtp),
            obstacles=(obstacles.drafting,), hinders=4),
    FlagRow("attention_backend", rule=turing.attention_backend, type=_TEXT,
            obstacles=(obstacles.attention,), hinders=2),
    FlagRow("kv_cache_dtype", rule=rules.kv_cache_dtype, type=_TEXT,
            goal=Goal("policy", "kv_cache_dtype"), obstacles=(obstacles.cache_type,), eases=5),
    FlagRow("enable_prefix_caching", "nothing", rule=rules.enable_prefix_caching, type=_BOOL),
    FlagRow("mamba_cache_mode", rule=rules.mamba_cache_mode),
    FlagRow("gdn_prefill_backend", rule=rules.gdn_prefill_backend),
    FlagRow("disable_custom_all_reduce", "nothing", rule=rules.disable_custom_all_reduce,
            type=_BOOL),
    FlagRow("enable_flashinfer_autotune", "nothing", rule=rules.enable_flashinfer_autotune),
    FlagRow("language_model_only", "nothing", rule=rules.language_model_only, sized=True,
            goal=Goal("model", "text_only")),
    FlagRow("max_model_len", rule=rules.max_model_len, sized=True, type=_INT, wanted=LENGTH,
            goal=Goal("model", "max_model_len"), obstacles=(obstacles.length,), eases=1),
    FlagRow("max_num_seqs", rule=rules.max_num_seqs, sized=True, type=_INT, wanted=COUNT,
            goal=Goal("policy", "max_num_seqs"), obstacles=(obstacles.step,), eases=2),
    FlagRow("async_scheduling", "nothing", rule=async_scheduling, sized=True, type=_BOOL),
    FlagRow("max_num_batched_tokens", rule=rules.max_num_batched_tokens, sized=True, type=_INT,
            wanted=COUNT, goal=Goal("policy", "max_num_batched_tokens"), eases=3),
    FlagRow("enforce_eager", "nothing", rule=rules.enforce_eager, sized=True, type=_BOOL,
            goal=Goal("policy", "cuda_graphs", KEEP, ("compilation_config",), _graphs, True),
            hinders=5),
    FlagRow("compilation_config", short="-cc", rule=rules.compilation_config, sized=True,
            type=_TABLE),
    FlagRow("gpu_memory_utilization", rule=rules.gpu_memory_utilization, sized=True, type=_NUMBER,
            wanted=SHARE, eases=4,
            goal=Goal("policy", "gpu_memory_utilization", FREE, cuda_only=True)),
    FlagRow("cpu_offload_gb", rule=rules.cpu_offload_gb, sized=True, type=_NUMBER, wanted=GIB,
            eases=7),
    FlagRow("kv_cache_memory_bytes", rule=cpu.kv_cache_memory_bytes, sized=True, type=_INT,
            wanted=COUNT, hinders=9),
    FlagRow("additional_config", rule=rules.additional_config, sized=True, type=_TABLE,
            wanted=OBJECT),
    FlagRow("enable_server_load_tracking", "nothing", rule=rules.enable_server_load_tracking,
            sized=True),
    FlagRow("shutdown_timeout", rule=rules.shutdown_timeout, sized=True),
)  # fmt: skip
"""Those that a rule decides, in the order in which the rules run."""

_GIVEN = (
    FlagRow("quantization", short="-q", obstacles=(obstacles.quantisation,)),
    FlagRow("attention_config", short="-ac", hinders=3),
    FlagRow("enable_chunked_prefill", "nothing", hinders=6),
    FlagRow("data_parallel_size", short="-dp", wanted=COUNT, hinders=8),
    FlagRow("num_gpu_blocks_override", wanted=COUNT),
    FlagRow("block_size", wanted=COUNT),
    FlagRow("enable_lora", "nothing", unforeseen="adapters take memory of every card"),
    FlagRow("mamba_cache_dtype", unforeseen="it changes the size of the recurrent states"),
    FlagRow("mamba_block_size", unforeseen="it changes how often recurrent states are kept",
            obstacles=(obstacles.states,)),
    FlagRow("kv_cache_dtype_skip_layers", "many",
            unforeseen="layers then keep caches of different sizes"),
    FlagRow("decode_context_parallel_size", short="-dcp", unforeseen=_SPREAD),
    FlagRow("prefill_context_parallel_size", short="-pcp", unforeseen=_SPREAD),
    FlagRow("enable_eplb", "nothing", unforeseen="experts are then kept more than once"),
    FlagRow("offload_group_size", unforeseen="layers then come and go while the model runs"),
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
"""Those of which more is known than how many words they take, for operators who give them."""

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
    *_DECIDED,
    *_GIVEN,
    *(FlagRow(name, "many") for name in _MANY),
    *(FlagRow(name, "nothing") for name in _ALONE),
)

SHORT = {row.short: row.name for row in FLAGS if row.short}
MANY = frozenset(row.name for row in FLAGS if row.takes == "many")
SWITCHES = frozenset(row.name for row in FLAGS if row.takes == "nothing")
"""Flags that take no word, for an engine that was not asked; a model's name may follow them."""
SECRETS = {row.name: row.secret for row in FLAGS if row.secret}
CARRIERS = {row.name: row.carrier for row in FLAGS if row.carrier}
WANTED: Mapping[str, Wanted] = {row.name: row.wanted for row in FLAGS if row.wanted}
FIRST = tuple((row.name, row.rule) for row in FLAGS if row.rule and not row.sized)
SECOND = tuple((row.name, row.rule) for row in FLAGS if row.rule and row.sized)
"""Rules that run before the cards are sized, and behind that."""
DECIDED = frozenset(row.name for row in FLAGS if row.rule)
GOALS = tuple(replace(row.goal, setting=row.name) for row in FLAGS if row.goal)
KINDS: Mapping[str, tuple[type, ...]] = {row.name: row.type for row in FLAGS if row.type}
"""What the planner and the forecast calculate with; the rest goes to vLLM as it is."""
OBSTACLES = tuple(obstacle for row in FLAGS for obstacle in row.obstacles)
UNFORESEEN = {row.name: row.unforeseen for row in FLAGS if row.unforeseen}
EASING = tuple(row.name for row in sorted(FLAGS, key=lambda row: row.eases) if row.eases)
"""What the policy decides by itself if it may."""
HINDERING = tuple(row.name for row in sorted(FLAGS, key=lambda row: row.hinders) if row.hinders)
"""Verbatim flags that may stand in the way, and are not sized by the policy."""
