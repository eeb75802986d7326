"""A cache in 8 bits: whose attention reads it, and where it is weighed though nobody asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caovand.core.facts.inventory import Gpu, Inventory
from caovand.engines.vllm.capabilities import ADA, BLACKWELL, HOPPER
from caovand.engines.vllm.planning.draft import Draft
from caovand.engines.vllm.planning.precision import HALF, first_of
from caovand.engines.vllm.planning.toolchain import NO_NVCC, cannot_build, remedy
from caovand.engines.vllm.planning.turing import (
    backend_in,
    flashinfer_lacks,
    has_heads_of_two_widths,
    images_attend_both_ways,
    is_plain_fp8,
    reads_eight_bits,
)

EIGHT_BITS = "fp8"


def attended_by_flashinfer(
    values: Mapping[str, Any], inventory: Inventory, gpus: tuple[Gpu, ...]
) -> bool:
    """Whether attention is FlashInfer's, as far as these settings tell: the backend they name, or
    vLLM's own choice: on SM100 before any other, else for an fp8 cache, which off Hopper no other
    before it keeps."""
    backend = values.get("attention_backend") or backend_in(values.get("attention_config"))
    if backend or not gpus:
        return str(backend).upper() == "FLASHINFER"
    kind, dtype = str(values.get("kv_cache_dtype")), str(values.get("dtype") or "")
    generations = {gpu.compute_capability[0] for gpu in gpus}
    first = BLACKWELL[0] in generations
    able = bool(inventory.engine.flashinfer)
    able = able and not flashinfer_lacks(inventory.model, dtype, sinks=first)
    return able and (first or (is_plain_fp8(kind) and generations != {HOPPER[0]}))


def ends_in_half(values: Mapping[str, Any], inventory: Inventory, gpus: tuple[Gpu, ...]) -> str:
    """The card, in words, on which FlashAttention would end the engine; empty where there is none.

    FlashAttention 3 writes bfloat16 whenever it reads 8 bits, and vLLM gives it an output of the
    model's type: with float16 the start succeeds and the first request fails (0.21 on an H200; 0.32
    is the same by its sources).
    """
    backend = values.get("attention_backend") or backend_in(values.get("attention_config"))
    model, dtype = inventory.model, str(values.get("dtype") or "auto").removeprefix("torch.")
    dtype = model.dtype if dtype == "auto" else dtype
    kind = str(values.get("kv_cache_dtype"))
    triton = images_attend_both_ways(model) or has_heads_of_two_widths(model)
    own = not backend and not model.latent and not triton
    if dtype not in HALF or not is_plain_fp8(kind):
        return ""
    return first_of(gpus, HOPPER[0]) if own or str(backend).upper() == "FLASH_ATTN" else ""


def uncompiled(draft: Draft) -> list[str]:
    """A warning where nothing can compile the attention of an 8-bit cache that was asked for.

    Turing has a warning of its own; for SM100 FlashInfer's kernels come compiled.
    """
    values = draft.values
    kind = str(values.get("kv_cache_dtype"))
    named = values.get("attention_backend") or backend_in(values.get("attention_config"))
    ready = any(gpu.compute_capability[0] == BLACKWELL[0] for gpu in draft.cards)
    if named or draft.turing or ready or not cannot_build(draft):
        return []
    if not attended_by_flashinfer(values, draft.inventory, draft.cards):
        return []
    return [
        f"an {kind} cache needs FlashInfer's attention here, which is compiled at the start, and"
        f' {NO_NVCC}; set [policy] kv_cache_dtype = "{own_type(draft)}", or {remedy(draft.engine)}'
    ]


def may_store_in_eight_bits(draft: Draft) -> bool:
    """Whether an fp8 cache may be weighed against the model's own; Turing has a rule of its own.

    On Hopper FlashAttention reads it. Elsewhere it is FlashInfer's where that is installed, which
    must be ready or compiled; without it Triton's attention takes it, from SM89 on.
    """
    asked = {"kv_cache_dtype", "attention_backend", "attention_config"} & set(draft.given)
    if asked or draft.config.policy.kv_cache_dtype or draft.turing or not draft.cuda:
        return False
    if "kv_cache_dtype" in draft.config.policy.pinned:  # "auto" as vLLM means it
        return False
    values = {**draft.values, "kv_cache_dtype": EIGHT_BITS}
    if ends_in_half(values, draft.inventory, draft.cards):
        return False
    hopper = all(gpu.compute_capability[0] == HOPPER[0] for gpu in draft.cards)
    converts = all(gpu.compute_capability >= ADA for gpu in draft.cards)
    if images_attend_both_ways(draft.model):
        return converts
    native = hopper or (converts and not draft.engine.flashinfer)
    return reads_eight_bits(draft, native=native)


def own_type(draft: Draft) -> str:
    """What --kv-cache-dtype calls the type that the model computes in."""
    dtype = str(draft.value("dtype") or draft.model.dtype)
    return "float16" if dtype in HALF else "bfloat16"
