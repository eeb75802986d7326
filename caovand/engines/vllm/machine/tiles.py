"""Marlin's tiles, which layers of fp8 weights must fill on cards that do not compute fp8.

Marlin, which vLLM uses for fp8 weights before SM89, takes tiles of 64 by 128 or 128 by 64 elements.
Releases before `MARLIN_PADS` do not pad a rank's part of a layer to whole tiles, and end while
loading, or at the first step with "Invalid thread config" (vllm#28363, vllm#42390).
"""

from __future__ import annotations

from collections.abc import Iterable

from caovand.core.facts.inventory import EngineInfo, Gpu, ModelCard
from caovand.engines.vllm import releases
from caovand.engines.vllm.machine.capabilities import ADA

SHORT, LONG = 64, 128
"""The sides of a tile."""
AT_LOAD = "fp8"
"""How the values of --quantization begin that quantise to fp8 while loading."""
STORED = frozenset({"fp8", "fbgemm_fp8", "modelopt"})
"""Methods of checkpoints with fp8 weights; others have them if most of their tensors are fp8."""
PACKED = frozenset({"U8", "I8", "I32"})
"""Safetensors' types of weights that are quantised otherwise, with scales that may be fp8."""
UNEVEN_TOWERS = ("qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_omni", "qwen3_5")
"""Beginnings of the types of models whose vision tower has rows that are no multiple of a tile, and
is quantised with the rest while loading."""
SIGLIP = "gemma3"
"""Another such type; `gemma3n` has another tower, which stays in 16 bits."""
REMEDY = f"`sudo caovanctl engine install {releases.name(releases.NEWEST_TESTED)}.0`"


def needs_whole(
    model: ModelCard, quantization: str, gpus: Iterable[Gpu], engine: EngineInfo
) -> bool:
    """Whether Marlin computes this model on some of these cards, in a release that needs whole
    tiles.

    `quantization` is the value of that flag, empty without one.
    """
    if engine.release >= releases.MARLIN_PADS:
        return False
    old = any(gpu.compute_capability < ADA for gpu in gpus)
    return old and is_fp8(model, quantization)


def side(hidden: int) -> int:
    """The number that each rank's part must be a multiple of if the other dimension is the hidden
    size."""
    return LONG if hidden % LONG else SHORT


def lacks(tile: int) -> str:
    """Say, as the end of a sentence, why a part of a layer does not consist of whole tiles."""
    first = releases.name(releases.MARLIN_PADS)
    return f"no multiple of the {tile} that fp8 weights need on cards before SM89 in vLLM < {first}"


def tower_breaks(model: ModelCard) -> bool:
    """Whether the vision tower does not divide into whole tiles if it is quantised while
    loading."""
    return model.model_type.startswith(UNEVEN_TOWERS) or model.model_type == SIGLIP


def is_fp8(model: ModelCard, quantization: str) -> bool:
    """Whether the weights are fp8: most of those stored, or those quantised while loading."""
    if quantization.startswith(AT_LOAD):
        return True
    if model.quantization is None or model.quantization in STORED:
        return model.quantization is not None
    layers = [one for one in model.weights if one.part in ("layers", "experts")]
    fp8 = sum(one.size for one in layers if one.dtype.startswith("F8"))
    return fp8 > sum(one.size for one in layers if one.dtype in PACKED)
