"""Where the cache may be kept in 8 bits though nobody asked: attention that has kernels for it."""

from __future__ import annotations

from caovand.engines.vllm.capabilities import ADA
from caovand.engines.vllm.planning.draft import Draft
from caovand.engines.vllm.planning.turing import reads_eight_bits

EIGHT_BITS = "fp8"


def may_store_in_eight_bits(draft: Draft) -> bool:
    """Whether an fp8 cache may be weighed against the model's own; Turing has a rule of its own.

    From SM89 on kernels read fp8 by themselves; on SM80 and SM86 FlashInfer converts it.
    """
    asked = {"kv_cache_dtype", "attention_backend", "attention_config"} & set(draft.given)
    if asked or draft.config.policy.kv_cache_dtype or draft.turing or not draft.cuda:
        return False
    oldest = min(gpu.compute_capability for gpu in draft.gpus)
    return reads_eight_bits(draft, native=oldest >= ADA)
