"""vLLM's Triton attention on caovan's kernels: decoding, verification, prompts, and mixed batches.

vLLM imports this module when it chooses the backend. vLLM's own kernels handle features that
caovan's lack: windows, sinks, soft caps, encoders. Whichever kernels run, the scales of a packed
cache are never reset (vllm#51091).
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Mapping

import torch
import vllm.envs
from vllm.config import get_current_vllm_config
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backends.triton_attn import (
    TritonAttentionBackend,
    TritonAttentionImpl,
    TritonAttentionMetadataBuilder,
)
from vllm.v1.attention.ops.int4_per_token_head import _get_rht_signs
from vllm.v1.kv_cache_interface import get_kv_quant_mode

from . import dispatch, library
from .decode_attention import FP8, DecodeAttention
from .launch import Scales
from .replacements import card_facts, logger


def wanted(vllm_config) -> str:
    """The attention setting in this configuration; an unknown word is logged and disables it."""
    config = vllm_config.additional_config
    try:
        return dispatch.attention_wanted(os.environ, config if isinstance(config, Mapping) else {})
    except ValueError as error:
        logger.warning_once("caovan: %s; attention is vLLM's own", str(error))
        return "off"


def facts(impl: TritonAttentionImpl, vllm_config) -> dispatch.AttentionFacts:
    """Facts about a constructed layer and its machine."""
    lacks = {
        "ALiBi": impl.alibi_slopes is not None,
        "a sliding window": impl.sliding_window != (-1, -1),
        "chunks": impl.chunk_lookback != -1,
        "a soft cap": bool(impl.logits_soft_cap),
        "sinks": impl.sinks is not None,
    }
    parallel = vllm_config.parallel_config
    return dispatch.AttentionFacts(
        dtype=str(vllm_config.model_config.dtype).removeprefix("torch."),
        cache=impl.kv_cache_dtype,
        heads=impl.num_heads,
        kv_heads=impl.num_kv_heads,
        head_dim=impl.head_size,
        kind=str(getattr(impl.attn_type, "value", impl.attn_type)),
        features=tuple(name for name, has in lacks.items() if has),
        overlapped_batches=parallel.use_ubatching,
        context_parallel=getattr(parallel, "decode_context_parallel_size", 1) > 1,
        batch_invariant=bool(vllm.envs.VLLM_BATCH_INVARIANT),
        sleeps=bool(getattr(vllm_config.model_config, "enable_sleep_mode", False)),
        **card_facts(torch.device("meta")),  # the worker's current card
    )


class Sm75TritonAttentionImpl(TritonAttentionImpl):
    """vLLM's layer; `caovan` is None if vLLM's own kernels do everything.

    Before SM89 Triton has no kernels for an fp8 cache, and vLLM refuses such a layer. It is
    accepted if ours take it; a batch that ours lack is then an error.
    """

    caovan: DecodeAttention | None = None
    caovan_writes = False
    caovan_alone: ValueError | None = None
    """vLLM's refusal of this layer; None if its own kernels take what ours do not."""

    def __init__(self, *args, **kwargs) -> None:
        try:
            super().__init__(*args, **kwargs)
        except ValueError as refused:
            bound = inspect.signature(TritonAttentionImpl).bind(*args, **kwargs)
            cache = bound.arguments["kv_cache_dtype"]
            if cache not in FP8:
                raise
            bound.arguments["kv_cache_dtype"] = "auto"
            super().__init__(*bound.args, **bound.kwargs)
            self.kv_cache_dtype, self._kv_quant_mode = cache, get_kv_quant_mode(cache)
            self.caovan_alone = refused
        reason = self.choose(get_current_vllm_config())
        if reason and self.caovan_alone:
            raise ValueError(f"{self.caovan_alone} caovan's kernels do not read it: {reason}")

    def choose(self, config) -> str | None:
        """Take this layer if the kernels can; return why not, or None on success."""
        mode = wanted(config)
        if mode == "off":
            logger.info_once("caovan: attention runs on vLLM's own kernels: switched off")
            return "they are switched off"
        try:
            reason = dispatch.attention_refusal(facts(self, config))
            if reason is None:
                self.caovan = self.kernels(mode, config.scheduler_config.max_num_seqs)
        except Exception as error:  # even a changed vLLM must start
            reason = library.reason_of(error)
        if reason:
            logger.info_once("caovan: attention stays on vLLM's own kernels: %s", reason)
            return reason
        fp8 = self.kv_cache_dtype in FP8
        self.supports_quant_query_input &= not fp8  # the kernels take queries in float16
        packed = self._is_per_token_head_quant or fp8
        self.caovan_writes = bool(self.caovan_alone) or (mode != "read" and packed)
        logger.info_once(
            "caovan: attention runs on the SM75 kernels (cache %s, %s; %s)",
            self.kv_cache_dtype,
            "read and written" if self.caovan_writes else "read",
            "decoding only" if mode == "decode" else "decoding and prompts",
        )
        return None

    def kernels(self, mode: str, sequences: int) -> DecodeAttention:
        """Create caovan's side of this layer."""
        device, signs = torch.device("cuda", torch.cuda.current_device()), None
        if self.kv_cache_dtype == "int4_per_token_head":
            # vLLM keeps the first scales it creates, elsewhere in float32; created in float16, as
            # models are built, they would have another type.
            with set_default_torch_dtype(torch.float32):
                signs = _get_rht_signs(self.head_size, 0, device)
        return DecodeAttention(
            heads=self.num_heads,
            kv_heads=self.num_kv_heads,
            dim=self.head_size,
            scale=self.scale,
            cache=self.kv_cache_dtype,
            signs=signs,
            sequences=sequences,
            device=device,
            prompts=mode != "decode" or self.caovan_alone is not None,
        )

    def scales(self, layer) -> Scales | None:
        """The scales of an fp8 cache, which vLLM keeps on the layer."""
        return Scales(layer._k_scale, layer._v_scale) if self.kv_cache_dtype in FP8 else None

    def _ensure_scale_caches(self, kv_cache: torch.Tensor) -> None:
        """Keep views of a packed cache's scales, without vLLM's reset of all of them to 1.

        kv_cache: [blocks, Hkv, block size, content] of one byte each. In a hybrid, recurrent states
        share this memory. Without a warm-up (--enforce-eager), the first request comes here after
        it wrote states, and the reset would overwrite parts of them in every block. Attention only
        reads scales of tokens whose keys and values were written, with their scales.
        """
        if self._k_scale_cache is not None:
            return
        sides = kv_cache.split(kv_cache.shape[-1] // 2, -1)
        self._k_scale_cache, self._v_scale_cache = (
            side[..., -torch.float32.itemsize :].view(torch.float32)[..., 0].transpose(1, 2)
            for side in sides
        )

    def stay_off(self, reason: str) -> None:
        if self.caovan_alone:
            raise RuntimeError(f"cannot use an fp8 cache on this card: {reason}")
        self.caovan, self.caovan_writes = None, False
        logger.warning_once("caovan: attention goes back to vLLM's own kernels: %s", reason)

    def forward(
        self,
        layer,
        query,
        key,
        value,
        kv_cache,
        attn_metadata,
        output,
        output_scale=None,
        output_block_scale=None,
    ):
        ours = self.caovan if attn_metadata is not None and output_block_scale is None else None
        try:
            parts = ours.parts(query, output_scale, attn_metadata) if ours else None
            if ours and parts:
                ours.attend(
                    layer.layer_name,
                    query,
                    kv_cache,
                    attn_metadata,
                    output,
                    parts,
                    self.scales(layer),
                )
                return output
        except Exception as error:
            self.stay_off(library.reason_of(error))
        if self.caovan_alone and attn_metadata is not None:
            raise RuntimeError(
                f"cannot attend to an fp8 cache with {attn_metadata.max_query_len} query tokens of "
                "a sequence in this batch: caovan's kernels do not take it, and Triton has none "
                "before SM89; use --kv-cache-dtype float16, or a CUDA graph mode other than FULL"
            )
        return super().forward(
            layer,
            query,
            key,
            value,
            kv_cache,
            attn_metadata,
            output,
            output_scale,
            output_block_scale,
        )

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        if self.caovan_writes and self.caovan and key.dtype is torch.float16:
            try:
                return self.caovan.write(
                    layer.layer_name, key, value, kv_cache, slot_mapping, self.scales(layer)
                )
            except Exception as error:
                self.stay_off(library.reason_of(error))
        return super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)


class Sm75TritonAttentionMetadataBuilder(TritonAttentionMetadataBuilder):
    """Adds each sequence's number of query tokens, which vLLM's metadata only has on the card.

    Not for a batch with which a CUDA graph is captured: others replay it.
    """

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        meta = super().build(common_prefix_len, common_attn_metadata, fast_build)
        if common_attn_metadata.max_query_len > dispatch.MAX_QUERY_TOKENS:
            starts = common_attn_metadata.query_start_loc_cpu[: meta.seq_lens.shape[0] + 1]
            meta.caovan_query_lengths = tuple(b - a for a, b in itertools.pairwise(starts.tolist()))
        return meta

    def build_for_cudagraph_capture(self, common_attn_metadata):
        meta = super().build_for_cudagraph_capture(common_attn_metadata)
        meta.caovan_query_lengths = None
        return meta


class Sm75TritonAttentionBackend(TritonAttentionBackend):
    @staticmethod
    def get_builder_cls() -> type[Sm75TritonAttentionMetadataBuilder]:
        return Sm75TritonAttentionMetadataBuilder

    @staticmethod
    def get_impl_cls() -> type[Sm75TritonAttentionImpl]:
        return Sm75TritonAttentionImpl
