"""Replacements for vLLM's classes: subclasses that call the original for everything they do not
handle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType

import torch
from vllm.logger import init_logger

from . import core, dispatch, launch, library

logger = init_logger("vllm.caovan_sm75")


def wanted_kernels(vllm_config) -> str:
    """Kernels that this configuration wants; an unknown word is logged and disables them.

    None means that vLLM has no configuration in effect; the environment then decides.
    """
    try:
        config = getattr(vllm_config, "additional_config", None)
        return dispatch.kernels_wanted(
            os.environ.get("CAOVAN_KERNELS"), config if isinstance(config, Mapping) else {}
        )
    except ValueError as error:
        logger.warning_once("caovan: %s; kernels are off", str(error))
        return "off"


def library_error() -> str | None:
    """Load the library, once; return the reason if that fails, None on success."""
    try:
        launch.shared_library()
    except library.LibraryError as error:
        return str(error)
    return None


def card_facts(device: torch.device) -> dict:
    """Facts about the card of tensors created on `device`.

    Asks CUDA, which a worker that builds layers has initialised: NVML may number the cards of a
    mixed host differently, and vLLM's platform describes only the first one.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        platform, capability, error = current_platform.device_type, None, None
    else:  # weights loaded later may be built on "meta": use the worker's card
        device_or_current = device if device.type == "cuda" else None
        capability = torch.cuda.get_device_capability(device_or_current)
        platform, error = "cuda", library_error()
    return {
        "platform": platform,
        "capability": capability,
        "library_error": error,
        "forced": os.environ.get("CAOVAN_SM75_FORCE") == "1",
    }


def layer_facts(layer, vllm_config) -> dispatch.Facts:
    """Facts about a constructed in-tree layer and its machine."""
    conv_dtype, state_dtype = layer.get_state_dtype()[:2]
    return dispatch.Facts(
        dtype=str(vllm_config.model_config.dtype).removeprefix("torch."),
        conv_dtype=str(conv_dtype).removeprefix("torch."),
        state_dtype=str(state_dtype).removeprefix("torch."),
        k_heads=layer.num_k_heads // layer.tp_size,
        v_heads=layer.num_v_heads // layer.tp_size,
        head_k_dim=layer.head_k_dim,
        head_v_dim=layer.head_v_dim,
        conv_width=layer.conv_kernel_size,
        activation=layer.activation,
        spec_tokens=layer.num_spec,
        overlapped_batches=vllm_config.parallel_config.use_ubatching,
        **card_facts(layer.A_log.device),
    )


def layer_class(in_tree: type, module: ModuleType) -> type:
    """The Gated DeltaNet layer `in_tree` of `module` with its core on caovan's kernels."""

    class Sm75GatedDeltaNet(in_tree):
        """vLLM's layer with its core on caovan's kernels."""

        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            config = module.get_current_vllm_config()
            self.caovan_kernels = wanted_kernels(config)
            self.caovan_checked = 0  # address of the state cache checked last
            self.caovan_sequences = config.scheduler_config.max_num_seqs
            if self.caovan_kernels == "off":
                logger.info_once("caovan: kernels are off; Gated DeltaNet runs on vLLM's own")
                return
            try:
                reason = dispatch.refusal(layer_facts(self, config))
            except Exception as error:  # even a changed vLLM must start
                reason = f"{type(error).__name__}: {error}"
            if reason:
                self.caovan_kernels = "off"
                self.chunk_gated_delta_rule.caovan = False
                logger.info_once("caovan: Gated DeltaNet stays on vLLM's own kernels: %s", reason)
                return
            logger.info_once(
                "caovan: Gated DeltaNet runs on the SM75 kernels (%s)", self.caovan_kernels
            )

        def _warmup_prefill_kernels(self, mixed_qkv, v_dim):
            if self.caovan_kernels != "off":
                reason = core.layer_refusal(self, mixed_qkv.device)
                if reason:
                    self.stay_off(reason)
                else:
                    core.warm_up(self, mixed_qkv, self.caovan_sequences)
            if self.caovan_kernels != "all":
                super()._warmup_prefill_kernels(mixed_qkv, v_dim)

        def stay_off(self, reason: str) -> None:
            self.caovan_kernels = "off"
            self.chunk_gated_delta_rule.caovan = False
            logger.warning_once(
                "caovan: Gated DeltaNet goes back to vLLM's own kernels: %s", reason
            )

        def _forward_core(self, mixed_qkv, b, a, core_attn_out):
            if self.caovan_kernels == "off":
                return super()._forward_core(mixed_qkv, b, a, core_attn_out)
            metadata = module.get_forward_context().attn_metadata
            meta = metadata.get(self.prefix) if isinstance(metadata, dict) else None
            if meta is None:  # vLLM's memory profiling, which also calls _warmup_prefill_kernels
                return super()._forward_core(mixed_qkv, b, a, core_attn_out)
            conv_state = self.kv_cache[0]
            if not module.is_conv_state_dim_first():
                conv_state = conv_state.transpose(-1, -2)
            if self.caovan_checked != self.kv_cache[1].data_ptr():
                self.caovan_checked = self.kv_cache[1].data_ptr()
                reason = core.layer_refusal(self, mixed_qkv.device, conv_state)
                if reason:
                    self.stay_off(reason)
            if not has_checkpoint(meta) and dispatch.takes_batch(
                self.caovan_kernels,
                prefills=meta.num_prefills,
                decodes=meta.num_decodes,
                spec_decodes=meta.num_spec_decodes,
            ):
                return core.forward(
                    self, mixed_qkv, b, a, core_attn_out, meta, conv_state, module.causal_conv1d_fn
                )
            return super()._forward_core(mixed_qkv, b, a, core_attn_out)

    return Sm75GatedDeltaNet


def prefill_class(in_tree: type, module: ModuleType) -> type:
    """The operator `ChunkGatedDeltaRule` with caovan's prefill kernel."""

    class Sm75ChunkGatedDeltaRule(in_tree):
        """The prefill operator alone, for other layers and for batches that the layer does not
        handle."""

        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            wanted = wanted_kernels(module.get_current_vllm_config())
            facts = card_facts(torch.get_default_device())
            self.caovan = wanted in ("prefill", "all") and not dispatch.card_refusal(**facts)
            if self.caovan:
                self._forward_method = self.forward_native

        def forward_native(
            self,
            q,
            k,
            v,
            g,
            beta,
            initial_state,
            output_final_state,
            cu_seqlens=None,
            chunk_indices=None,
            chunk_offsets=None,
            use_qk_l2norm_in_kernel=True,
            core_attn_out=None,
            **others,
        ):
            if self.caovan and (reason := core.load_refusal(q.device)):
                self.caovan = False
                logger.warning_once(
                    "caovan: Gated DeltaNet prefill goes back to vLLM's own kernel: %s", reason
                )
            if not (self.caovan and takes_tensors(q, k, v, g, beta, initial_state, cu_seqlens)):
                return super().forward_native(
                    q=q,
                    k=k,
                    v=v,
                    g=g,
                    beta=beta,
                    initial_state=initial_state,
                    output_final_state=output_final_state,
                    cu_seqlens=cu_seqlens,
                    chunk_indices=chunk_indices,
                    chunk_offsets=chunk_offsets,
                    use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
                    core_attn_out=core_attn_out,
                    **others,
                )
            core.counts["ChunkGatedDeltaRule", "operator"] += 1
            out, final = torch.ops.caovan.gdn_prefill(
                q[0],
                k[0],
                v[0],
                g[0].float(),
                beta[0].float(),
                initial_state,
                cu_seqlens,
                q.shape[-1] ** -0.5,
                use_qk_l2norm_in_kernel,
            )
            if core_attn_out is not None:
                core_attn_out.reshape(-1)[: out.numel()].copy_(out.reshape(-1))
            return out[None], final if output_final_state else None

    return Sm75ChunkGatedDeltaRule


def has_checkpoint(meta) -> bool:
    """Whether the layer must also store the state at a token within this prefill.

    vLLM's prefix cache requires it since 0.32; caovan's prefill only keeps the last state.
    """
    return any(
        getattr(meta, name, None) is not None
        for name in ("checkpoint", "flashinfer_checkpoint_plan")
    )


def takes_tensors(q, k, v, g, beta, initial_state, cu_seqlens) -> bool:
    """Whether gdn_prefill accepts these tensors of `ChunkGatedDeltaRule`."""
    if cu_seqlens is None or initial_state is None:
        return False
    (batch, tokens, k_heads, dim), v_heads = q.shape, v.shape[2]
    return (
        cu_seqlens.dtype is torch.int32
        and batch == 1
        and q.dtype is k.dtype is v.dtype is torch.float16
        and dim in (64, 128)
        and k.shape == q.shape
        and v.shape == (1, tokens, v_heads, dim)
        and v_heads % k_heads == 0
        and g.shape == beta.shape == (1, tokens, v_heads)
        and initial_state.dtype is torch.float32
        and initial_state.shape == (cu_seqlens.shape[0] - 1, v_heads, dim, dim)
        and all(
            x.stride(-1) == 1
            and x.stride(-2) == dim
            and x.stride(1) % 8 == 0
            and x.data_ptr() % 16 == 0
            for x in (q, k, v)
        )
    )
