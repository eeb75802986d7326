"""Arguments of vLLM that later releases brought or dropped, and those of other programs: which way
a release is wrong for them, and what takes their place."""

from __future__ import annotations

from collections.abc import Mapping

_NOTHING = "leave it out, nothing takes its place"
_DRAFTS = (
    'pass --speculative-config with JSON in its place, such as \'{"model": ..., '
    '"num_speculative_tokens": 5}\''
)
_GRAPHS = "pass cudagraph_capture_sizes or max_cudagraph_capture_size in --compilation-config"
GONE: Mapping[str, str] = {
    "disable_log_requests": "leave it out, since requests are no longer logged unless "
    "--enable-log-requests asks for it",
    "enable_reasoning": "pass --reasoning-parser alone",
    "task": "for embeddings and rerankers pass --runner pooling (with --convert embed or classify "
    "for a generative model), otherwise leave it out",
    "guided_decoding_backend": "pass --structured-outputs-config '{\"backend\": ...}'",
    "worker_use_ray": "pass --distributed-executor-backend ray",
    "engine_use_ray": _NOTHING,
    "rope_scaling": "pass rope_parameters (before 0.12 rope_scaling) in --hf-overrides",
    "rope_theta": "pass it in --hf-overrides",
    "override_pooler_config": "pass --pooler-config",
    "override_neuron_config": "pass --additional-config",
    "disable_mm_preprocessor_cache": "pass --mm-processor-cache-gb 0",
    "max_seq_len_to_capture": _GRAPHS,
    "max_context_len_to_capture": _GRAPHS,
    "cuda_graph_sizes": _GRAPHS,
    "device": "leave it out, since each build runs on one kind of device",
    **dict.fromkeys(
        (
            "swap_space", "num_scheduler_steps", "multi_step_stream_outputs", "preemption_mode",
            "use_v2_block_manager", "scheduler_delay_factor", "enable_prompt_adapter",
            "max_prompt_adapters", "num_lookahead_slots", "disable_async_output_proc",
            "lora_extra_vocab_size", "long_lora_scaling_factors", "qlora_adapter_name_or_path",
            "max_paddings", "image_input_type", "image_token_id", "image_input_shape",
        ),
        _NOTHING,
    ),
    **dict.fromkeys(
        (
            "speculative_model", "num_speculative_tokens", "speculative_max_model_len",
            "speculative_draft_tensor_parallel_size", "speculative_disable_by_batch_size",
            "ngram_prompt_lookup_max", "ngram_prompt_lookup_min", "spec_decoding_acceptance_method",
        ),
        _DRAFTS,
    ),
}  # fmt: skip
"""What to do in place of an argument that releases up to some one had."""
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
    "n_gpu_layers": ("llama.cpp", "--cpu-offload-gb for what does not fit the card"),
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
"""Arguments that releases have from some one on: one that does not know them is older."""


def known_of(captures: Mapping[str, str]) -> Mapping[str, str]:
    """What is known of the argument that a release does not accept: `later`, `gone` and `instead`,
    or `foreign`, `whose` and `ours`."""
    passed = captures.get("unknown") or captures.get("argument", "")
    name = passed.lstrip("-").partition("=")[0].replace("-", "_").removeprefix("no_")
    if name in LATER:
        return {"later": passed}
    if name in FOREIGN:
        whose, ours = FOREIGN[name]
        return {"foreign": passed, "whose": whose, "ours": ours}
    return {"gone": passed, "instead": GONE[name]} if name in GONE else {}
