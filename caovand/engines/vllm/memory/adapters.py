"""Memory for LoRA adapters, which vLLM allocates at the start: slots of the largest rank.

Read in vLLM 0.32 (lora/layers): every layer that can have an adapter gets its two matrices, even if
no adapter has them. Of a split layer one matrix is split, and the other is whole on each rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caovand.core.facts.inventory import ModelCard
from caovand.engines.common.tensors import element_bytes
from caovand.engines.vllm.flags.spelling import count

RANK = 16
"""vLLM's --max-lora-rank; one slot is its --max-loras."""
WITH_EMBEDDING = (
    "apertus", "cohere", "exaone", "granite", "lfm2", "llama", "minicpm", "mistral", "ministral",
    "nemotron", "qwen3", "solar",
)  # fmt: skip
"""Beginnings of the types whose embedding and head can have adapters too."""


@dataclass(frozen=True)
class Adapters:
    """The slots, the largest rank, bytes of a number, whether all is split (--fully-sharded-loras),
    and the layers that may have adapters, empty for all."""

    slots: int = 0
    rank: int = RANK
    element: int = 2
    sharded: bool = False
    targets: tuple[str, ...] = ()

    def takes(self, *names: str) -> bool:
        """Whether a layer of one of these names has adapters."""
        return not self.targets or not set(names).isdisjoint(self.targets)


NONE = Adapters()


def adapters_of(values: Mapping[str, Any], activation: int) -> Adapters:
    """The adapters that these settings make room for."""
    if not values.get("enable_lora"):
        return NONE
    kind, targets = str(values.get("lora_dtype") or "auto"), values.get("lora_target_modules")
    return Adapters(
        slots=count(values.get("max_loras")) or 1,
        rank=count(values.get("max_lora_rank")) or RANK,
        element=activation if kind == "auto" else element_bytes(kind),
        sharded=bool(values.get("fully_sharded_loras")),
        targets=(targets,) if isinstance(targets, str) else tuple(targets or ()),
    )


def unknown(values: Mapping[str, Any], model: ModelCard) -> str:
    """Why the adapters' memory is not known; empty if it is, or without adapters."""
    if not values.get("enable_lora"):
        return ""
    if model.experts or model.hybrid or model.latent or model.vision:
        return "the adapters of experts, recurrent layers, MLA and towers are not forecast"
    return ""


def adapters_bytes(model: ModelCard, adapters: Adapters, ranks: int) -> float:
    """Bytes of the adapters' slots on one rank."""
    if not adapters.slots:
        return 0.0
    hidden, inner = model.hidden_size, model.intermediate_size
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    whole = ranks if adapters.sharded else 1
    numbers = 0.0
    if adapters.takes("qkv_proj", "q_proj", "k_proj", "v_proj"):
        numbers += 3 * hidden / whole + (queries + 2 * keys) / ranks
    if adapters.takes("o_proj"):
        numbers += queries / ranks + hidden / whole
    if adapters.takes("gate_up_proj", "gate_proj", "up_proj"):
        numbers += 2 * hidden / whole + 2 * inner / ranks
    if adapters.takes("down_proj"):
        numbers += inner / ranks + hidden / whole
    numbers *= len(model.layer_types)
    if model.model_type.startswith(WITH_EMBEDDING):
        numbers += adapters.takes("embed_tokens") * (model.vocab_size + hidden)
        numbers += adapters.takes("lm_head") * (model.vocab_size + hidden)
    return numbers * adapters.rank * adapters.slots * adapters.element
