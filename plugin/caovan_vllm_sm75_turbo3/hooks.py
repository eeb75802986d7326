"""Plug Gated DeltaNet into each version of vLLM.

vLLM replaces a class by name (`register_oot`) when it is instantiated. The replacement subclasses
the in-tree class and calls it for everything it does not handle. Importing vLLM's layers touches no
GPU.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass, fields
from types import ModuleType

CORE = ("self", "mixed_qkv", "b", "a", "core_attn_out")
WARM_UP = ("self", "qkv_or_qkvz", "v_dim")
PREFILL = (
    "q",
    "k",
    "v",
    "g",
    "beta",
    "initial_state",
    "output_final_state",
    "cu_seqlens",
    "use_qk_l2norm_in_kernel",
)
METADATA = {
    "num_prefills",
    "num_decodes",
    "num_spec_decodes",
    "num_actual_tokens",
    "has_initial_state",
    "spec_query_start_loc",
    "non_spec_query_start_loc",
    "spec_state_indices_tensor",
    "non_spec_state_indices_tensor",
    "spec_sequence_masks",
    "spec_token_indx",
    "non_spec_token_indx",
    "num_accepted_tokens",
}


@dataclass(frozen=True)
class Hook:
    """The Gated DeltaNet classes of some vLLM versions."""

    versions: str
    module: str
    layer: str
    prefill: str


HOOKS = (
    Hook(
        "0.32, 0.33",
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn",
        "QwenGatedDeltaNetAttention",
        "ChunkGatedDeltaRule",
    ),
    Hook(
        "0.21",
        "vllm.model_executor.layers.mamba.gdn_linear_attn",
        "GatedDeltaNetAttention",
        "ChunkGatedDeltaRule",
    ),
)


class NoHook(Exception):
    """This plugin knows no place in this vLLM for the kernels."""


def find() -> tuple[Hook, ModuleType]:
    """The hook for the installed vLLM, after checking its interface. Raises NoHook."""
    for hook in HOOKS:
        try:
            module = importlib.import_module(hook.module)
        except ModuleNotFoundError as error:
            if error.name is None or not hook.module.startswith(error.name):
                raise NoHook(f"cannot import {hook.module}: {error}") from error
            continue
        if reason := interface_refusal(hook, module):
            raise NoHook(reason)
        return hook, module
    raise NoHook(f"none of {', '.join(hook.module for hook in HOOKS)} is in this vLLM")


def interface_refusal(hook: Hook, module: ModuleType) -> str | None:
    """The first difference between `module` and the expected interface; None if there is none."""
    layer, prefill = getattr(module, hook.layer, None), getattr(module, hook.prefill, None)
    if layer is None or prefill is None:
        return f"{hook.module} has no {hook.layer if layer is None else hook.prefill}"
    core = tuple(inspect.signature(getattr(layer, "_forward_core", lambda: None)).parameters)
    if core != CORE:
        return f"{hook.layer}._forward_core accepts {core}, but this plugin expects {CORE}"
    warm_up = tuple(
        inspect.signature(getattr(layer, "_warmup_prefill_kernels", lambda: None)).parameters
    )
    if warm_up != WARM_UP:
        name = f"{hook.layer}._warmup_prefill_kernels"
        return f"{name} accepts {warm_up}, but this plugin expects {WARM_UP}"
    parameters = inspect.signature(prefill.forward_native).parameters
    missing = [name for name in PREFILL if name not in parameters]
    if missing:
        return f"{hook.prefill}.forward_native does not accept {', '.join(missing)}"
    for name in (
        "causal_conv1d_fn",
        "is_conv_state_dim_first",
        "get_forward_context",
        "get_current_vllm_config",
        "GDNAttentionMetadata",
    ):
        if not hasattr(module, name):
            return f"{hook.module} has no {name}"
    missing = sorted(METADATA - {field.name for field in fields(module.GDNAttentionMetadata)})
    if missing:
        return f"{hook.module}'s GDNAttentionMetadata has no {', '.join(missing)}"
    return None


def bind(hook: Hook, module: ModuleType) -> None:
    """Register the replacements, once per process."""
    from vllm.logger import init_logger
    from vllm.model_executor.custom_op import CustomOp, PluggableLayer, op_registry_oot

    logger = init_logger("vllm.caovan_sm75")
    if hook.layer in op_registry_oot or hook.prefill in op_registry_oot:
        owner = op_registry_oot.get(hook.layer) or op_registry_oot[hook.prefill]
        if not owner.__module__.startswith(__package__):
            logger.warning(
                "caovan: %s is already replaced by %s; vLLM's path without our kernels",
                hook.layer,
                owner,
            )
        return
    from . import replacements

    layer = replacements.layer_class(getattr(module, hook.layer), module)
    prefill = replacements.prefill_class(getattr(module, hook.prefill), module)
    PluggableLayer.register_oot(name=hook.layer)(layer)
    CustomOp.register_oot(name=hook.prefill)(prefill)
