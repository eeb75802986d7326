"""Options that SGLang dropped, and those of vLLM that people pass it: what takes their place."""

from __future__ import annotations

from collections.abc import Mapping

_DEFAULT = "leave it out, it is what SGLang does anyway"
DROPPED: Mapping[str, str] = {
    "enable_flashinfer_mla": "pass --attention-backend flashinfer",
    "enable_flashmla": "pass --attention-backend flashmla",
    "disable_flashinfer": "pass --attention-backend triton",
    "disable_flashinfer_sampling": "pass --sampling-backend pytorch",
    "enable_ep_moe": "pass --ep-size with the number of ranks",
    "enable_deepep_moe": "pass --moe-a2a-backend deepep",
    "speculative_draft": "pass --speculative-draft-model-path",
    "enable_mla": _DEFAULT,
    "enable_overlap_schedule": _DEFAULT,
    "disable_disk_cache": "leave it out, nothing takes its place",
    "disable_jump_forward": "leave it out, nothing takes its place",
}
"""Options that later releases dropped, and what to do instead."""
VLLM_OPTIONS: Mapping[str, str] = {
    "max_model_len": "--context-length",
    "gpu_memory_utilization": "--mem-fraction-static (a part of it: 0.8 to 0.9)",
    "max_num_seqs": "--max-running-requests",
    "max_num_batched_tokens": "--chunked-prefill-size",
    "enforce_eager": "--disable-cuda-graph",
    "enable_reasoning": "--reasoning-parser alone",
    "enable_auto_tool_choice": "--tool-call-parser alone",
    "enable_prefix_caching": "nothing, as it is on (--disable-radix-cache turns it off)",
    "limit_mm_per_prompt": "--limit-mm-data-per-request",
    "swap_space": "nothing",
}
"""vLLM's options, and SGLang's counterparts."""


def known_of(captures: Mapping[str, str]) -> Mapping[str, str]:
    """The captures of a refused option, with what is known of it: `passed` and `instead`, or
    `foreign` and `ours`; without `options` then."""
    passed = (captures.get("options") or captures.get("underscored") or " ").split(" ")[0]
    name = passed.lstrip("-").partition("=")[0].replace("-", "_")
    if name in DROPPED:
        return {"passed": passed, "instead": DROPPED[name]}
    return {"foreign": passed, "ours": VLLM_OPTIONS[name]} if name in VLLM_OPTIONS else captures
