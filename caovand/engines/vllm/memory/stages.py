"""Pipeline stages: which layers each has, and what else of the model lies on it.

Read in vLLM 0.32: get_pp_indices deals the layers; its model classes make embedding and head on
the first and the last stage only, or on every one; the drafting head is made on the last, with an
embedding of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from caovand.core.facts.inventory import ModelCard, Weights

Card = TypeVar("Card")

PARTITION = "VLLM_PP_LAYER_PARTITION"
"""The variable that deals the layers otherwise: "40,24"."""
EMBEDDING_ON_FIRST = frozenset({
    "apertus", "deepseek_v2", "deepseek_v3", "deepseek_v32", "ernie4_5", "ernie4_5_moe", "exaone",
    "exaone4", "exaone_moe", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "granite",
    "kimi_k2", "llama", "llama4_text", "longcat_flash", "mimo", "mimo_v2_flash", "minimax_m2",
    "ministral", "mistral", "nemotron", "phi3", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text",
    "qwen2_vl", "qwen2_vl_text", "qwen3", "qwen3_vl_text", "solar", "step3p5",
})  # fmt: skip
"""Types whose embedding is on the first stage, and on the last where it is the head, too."""
HEAD_ON_LAST = EMBEDDING_ON_FIRST | {"lfm2", "lfm2_moe", "qwen3_5_moe_text", "qwen3_5_text"}
"""Types whose head is on the last stage. Others have both on every stage, as most classes of vLLM
do, which those that were not read are taken to do as well."""


def own_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage by vLLM's own rule: what is left over goes to the last but one first."""
    dealt = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        dealt[-place] += 1
    return tuple(dealt)


def partition(text: object, layers: int, stages: int) -> tuple[int, ...]:
    """The layers of each stage as a variable's text deals them; vLLM's own rule for None.

    Empty for a text that vLLM refuses, and where a stage would have no layer.
    """
    if not 0 < stages <= layers:
        return ()
    if text is None:
        dealt = own_partition(layers, stages)
    else:
        try:
            dealt = tuple(int(word) for word in str(text).split(","))
        except ValueError:
            return ()
    sound = len(dealt) == stages and sum(dealt) == layers and min(dealt) > 0
    return dealt if sound else ()


def ranges(dealt: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The first layer of each stage, and the one after its last."""
    ends = [sum(dealt[: at + 1]) for at in range(len(dealt))]
    return tuple(zip((0, *ends), ends, strict=False))


def cards_of(cards: Sequence[Card], stage: int, stages: int, each: int) -> tuple[Card, ...]:
    """The cards of one of the stages, `each` of which is split over so many, in vLLM's order.

    Replicas come one after the other. Of too few cards every stage has all: that is a conflict.
    """
    found = tuple(card for at, card in enumerate(cards) if at // each % stages == stage)
    return found or tuple(cards)


@lru_cache(maxsize=8)
def models(model: ModelCard, dealt: tuple[int, ...], drafting: bool) -> tuple[ModelCard, ...]:
    """The model as each stage has it."""
    return tuple(stage_model(model, start, end, drafting=drafting) for start, end in ranges(dealt))


def stage_model(model: ModelCard, start: int, end: int, *, drafting: bool) -> ModelCard:
    """What the stage with the layers from `start` to before `end` has of the model."""
    last = end == len(model.layer_types)
    kept = [
        one for weights in model.weights if (one := _share(weights, model, start, end, drafting))
    ]
    return replace(
        model,
        layer_types=model.layer_types[start:end],
        mtp_layers=model.mtp_layers if last else 0,
        weights=tuple(kept),
    )


def _share(
    weights: Weights, model: ModelCard, start: int, end: int, drafting: bool
) -> Weights | None:
    """The stage's share of these weights, None for none."""
    first, last = start == 0, end == len(model.layer_types)
    kind, part = model.model_type, weights.part
    if part == "embedding":
        tied = not model.size("head")
        copies = int(first or (last and tied) or kind not in EMBEDDING_ON_FIRST)
        copies += last and drafting and model.mtp_layers > 0
        return replace(weights, size=weights.size * copies) if copies else None
    if part == "head":
        return weights if last or kind not in HEAD_ON_LAST else None
    if part == "mtp":
        return weights if last else None
    if part == "vision":  # made on every stage, used on the first
        return weights
    sizes = weights.layers or (1,) * len(model.layer_types)
    held = sum(sizes[start:end])
    if not held:
        return None
    return replace(weights, size=round(weights.size * held / sum(sizes)), layers=())
