"""Flags that vLLM once had, and their replacements: commands on the web still use them."""

from __future__ import annotations

from collections.abc import Mapping

_NOTHING = "leave it out: vLLM has no such setting any more"
SUCCESSORS: Mapping[str, str] = {
    "enable_reasoning": "leave it out: --reasoning-parser alone turns reasoning on",
    "rope_scaling": "use --hf-overrides '{\"rope_parameters\": {\"rope_type\": \"yarn\", ...}}'",
    "rope_theta": "use --hf-overrides '{\"rope_parameters\": {\"rope_theta\": ...}}'",
    "swap_space": "leave it out: a preempted request is computed again",
    "task": "use --runner pooling, with --convert embed or --convert classify",
    "override_pooler_config": "use --pooler-config",
    "guided_decoding_backend": "use --structured-outputs-config.backend",
    "speculative_model": "use --speculative-config '{\"model\": ..., ...}'",
    "num_speculative_tokens": "use --speculative-config '{\"num_speculative_tokens\": ...}'",
    "ngram_prompt_lookup_max": "use --speculative-config '{\"method\": \"ngram\", ...}'",
    "ngram_prompt_lookup_min": "use --speculative-config '{\"method\": \"ngram\", ...}'",
    "num_scheduler_steps": "leave it out: steps overlap with --async-scheduling, the default",
    "multi_step_stream_outputs": _NOTHING,
    "use_v2_block_manager": _NOTHING,
    "num_lookahead_slots": _NOTHING,
    "preemption_mode": _NOTHING,
    "scheduler_delay_factor": _NOTHING,
    "tokenizer_pool_size": _NOTHING,
    "tokenizer_pool_type": _NOTHING,
    "disable_async_output_proc": "use --no-async-scheduling",
    "worker_use_ray": "use --distributed-executor-backend ray",
    "engine_use_ray": "use --distributed-executor-backend ray",
    "device": "leave it out: the build of vLLM decides",
    "max_seq_len_to_capture": "use --max-cudagraph-capture-size",
    "max_context_len_to_capture": "use --max-cudagraph-capture-size",
    "cuda_graph_sizes": "use --cudagraph-capture-sizes",
    "enable_prompt_adapter": _NOTHING,
    "max_prompt_adapters": _NOTHING,
    "max_prompt_adapter_token": _NOTHING,
    "lora_extra_vocab_size": _NOTHING,
    "long_lora_scaling_factors": _NOTHING,
    "enable_lora_bias": _NOTHING,
    "disable_mm_preprocessor_cache": "use --mm-processor-cache-gb 0",
    "disable_log_requests": "leave it out: requests are logged with --enable-log-requests only",
    "enable_microbatching": "use --enable-dbo",
    "qlora_adapter_name_or_path": "use --lora-modules",
}  # fmt: skip
"""What replaces a flag, by its name; used only if the engine has no flag of that name."""
