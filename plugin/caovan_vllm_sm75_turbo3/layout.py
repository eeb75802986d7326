"""The parts of vLLM's Triton attention on which the kernels rely: names, and how it fills caches.

vLLM's sources are read, not imported, because importing them requires Triton. The code that fills a
cache must match the code this file was written for exactly: a cache with another layout would be
misread without an error.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from . import dispatch
from .pins import definition_digest, find_definition

BACKEND = "vllm.v1.attention.backends.triton_attn"
INT4 = "vllm.v1.attention.ops.int4_per_token_head"
RESHAPE = "vllm.v1.attention.ops.triton_reshape_and_cache_flash"
CACHE = "vllm.v1.kv_cache_interface"
SOURCES = {
    (BACKEND, "TritonAttentionBackend.customize_spec"): ("3912fc431bbd88a3",),
    (BACKEND, "TritonAttentionImpl._ensure_scale_caches"): ("627142c52132c180",),
    (BACKEND, "TritonAttentionMetadataBuilder.build"): ("f6673792fe3e352c",),
    (BACKEND, "TritonAttentionMetadataBuilder.build_for_cudagraph_capture"): ("1100fe72655d0490",),
    (BACKEND, "TritonAttentionImpl._pth_key_value_caches"): ("e3d5ab162704ca0d",),
    (BACKEND, "TritonAttentionImpl.do_kv_cache_update"): ("ea26c5bbc2a993a1", "07b42e5dfbd3bd1c"),
    (INT4, "pack_int4_nibbles"): ("4c6028bb845e589c",),
    (INT4, "_reshape_cache_int4_kernel"): ("b835d5f33b8e6e19",),
    (INT4, "reshape_and_cache_int4"): ("60afa52802987006",),
    (INT4, "unified_attention_int4"): ("654efc9460165eda",),
    (INT4, "_get_rht_signs"): ("351cfcf26fbf65d2",),
    (INT4, "single_rht"): ("e5cde6869ff5853e",),
    (RESHAPE, "reshape_and_cache_kernel_flash"): ("95a9d3348734485b", "3f8278784a3b7247"),
    (RESHAPE, "_reshape_cache_per_token_head"): ("71754c2745a66a35",),
    (RESHAPE, "triton_reshape_and_cache_flash_per_token_head_quant"): ("d0ff021dfffbda9f",),
    (CACHE, "AttentionSpec.num_heads"): ("7b4e6d236483ceca",),
    (CACHE, "AttentionSpec.state_content_size_bytes"): ("efdac08cd025bdbd",),
    (CACHE, "compute_layer_kv_cache_shape_bytes"): ("8ed36186d19bfcb7",),
    (CACHE, "compute_layout_strides"): ("7476d5cab1a60a5d",),
    (CACHE, "create_kv_cache_views"): ("91be24c74d7f448d",),
}
"""Digests of the sources of vLLM 0.32.0 and 0.33.0, by module and name."""
FORWARD = (
    "self",
    "layer",
    "query",
    "key",
    "value",
    "kv_cache",
    "attn_metadata",
    "output",
    "output_scale",
    "output_block_scale",
)
METADATA = {
    "max_query_len",
    "query_start_loc",
    "seq_lens",
    "block_table",
    "causal",
    "mm_prefix_range_tensor",
    "rswa_prefix_lens",
}


def source_refusal() -> str | None:
    """The first difference of the installed vLLM from those that the kernels were written for; None
    if there is none."""
    modules = {}
    for name in (BACKEND, INT4, RESHAPE, CACHE):
        try:
            spec = importlib.util.find_spec(name)
        except ImportError as error:
            return f"cannot find {name}: {error}"
        if spec is None or not spec.origin:
            return f"{name} is not in this vLLM"
        text = Path(spec.origin).read_text(encoding="utf-8")
        modules[name] = text, ast.parse(text)
    for (module, name), known in SOURCES.items():
        text, tree = modules[module]
        if definition_digest(text, tree, name) not in known:
            return f"{module}.{name} is not vLLM 0.32's or 0.33's"
    _, tree = modules[BACKEND]
    forward = find_definition(tree, "TritonAttentionImpl.forward")
    names = tuple(a.arg for a in forward.args.args) if isinstance(forward, ast.FunctionDef) else ()
    if names != FORWARD:
        return f"TritonAttentionImpl.forward accepts {names}, but this plugin expects {FORWARD}"
    missing = sorted(METADATA - attributes(find_definition(tree, "TritonAttentionMetadata")))
    return f"TritonAttentionMetadata has no {', '.join(missing)}" if missing else None


def attributes(node: ast.AST | None) -> set[str]:
    """The annotated fields of a class."""
    body = node.body if isinstance(node, ast.ClassDef) else []
    return {
        field.target.id
        for field in body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def refusal() -> str | None:
    """The reason why vLLM's Triton attention keeps its own kernels, or None; touches no GPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        return dispatch.not_cuda(current_platform.device_type)
    return source_refusal()


def offer_kernels() -> str | None:
    """Let layers on vLLM's Triton attention use the kernels; return why not, or None on success.

    Each layer decides for itself, because vLLM's configuration and the worker's card are not known
    yet.
    """
    reason = refusal()
    if reason is None:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        register_backend(
            AttentionBackendEnum.TRITON_ATTN,
            f"{__package__}.triton_sm75.Sm75TritonAttentionBackend",
        )
    return reason
