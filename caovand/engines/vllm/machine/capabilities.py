"""What cards can compute: number types, quantised weights, and the tiles of Marlin's kernels.

The refusals mirror vllm/config/model.py and quantization/ (compressed_tensors.py,
compressed_tensors_moe/, gptq.py, auto_gptq.py and moe_wna16.py).

Marlin, which vLLM uses for fp8 weights before SM89, takes tiles of 64 by 128 or 128 by 64 elements.
Releases before `MARLIN_PADS` do not pad a rank's part of a layer to whole tiles, and crash while
loading, or at the first step with "Invalid thread config" (vllm#28363, vllm#42390).

vLLM chooses the kernels of every card by the first visible one: every rank asks for the capability
of device 0, in 0.21 as in 0.33. What is chosen for an older card runs on newer ones; what is chosen
for a newer one may not run, or not compile, on an older, such as Triton's fp8 on an RTX 3090 next
to a 4090 (vllm#19741).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from caovand.core.facts.inventory import EngineInfo, Gptq, Gpu, ModelCard
from caovand.core.facts.packed import Packed
from caovand.core.problem import Problem
from caovand.engines.vllm import releases

TURING = (7, 5)
"""The oldest capability that vLLM 0.21 has kernels for; older cards are never chosen."""
AMPERE = (8, 0)
"""The first with bfloat16."""
ADA = (8, 9)
"""The first that converts 8-bit floats in hardware."""
HOPPER = (9, 0)
BLACKWELL = (10, 0)
OWN_FP8 = HOPPER[0], BLACKWELL[0]
"""Generations on which vLLM's preferred attention reads an fp8 cache."""
WITHOUT_HALF = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4", "plamo2"})
"""Model types that overflow in float16: vLLM accepts only bfloat16 or float32."""
WITH_FLOAT32 = frozenset({"bitsandbytes", "gguf"})
"""Quantisations that also compute in float32. The kernels of the others accept 16-bit types only;
with those of compressed-tensors a start succeeds at first, but fails at the first step.
"""
MIN_CAPABILITY = {
    "mxfp4": AMPERE,
    "fbgemm_fp8": AMPERE,
    "experts_int8": AMPERE,
    "modelopt": AMPERE,
    "modelopt_mxfp8": AMPERE,
    "fp_quant": BLACKWELL,
}
"""Quantisations that need a later card than vLLM itself (SM75), in 0.21 as in 0.33.

ModelOpt's fp8 and mxfp8 are read from 0.32; its 4-bit floats run from SM75.
"""
EXCLUSIVE = frozenset({"awq", "gptq", "fp8", "bitsandbytes", "compressed-tensors"})
"""Methods of --quantization that vLLM refuses if the checkpoint is quantised by another method."""


def quantization_method(name: str) -> str:
    """The quantisation method behind a value of --quantization, whatever its kernel."""
    return name.removeprefix("auto_").removesuffix("_marlin")


HALF = frozenset({"half", "float16"})


def oldest_without(gpus: Sequence[Gpu], capability: tuple[int, int]) -> str:
    """Description of the first card older than this; empty if there is none."""
    return _first_card(gpu for gpu in gpus if gpu.compute_capability < capability)


def first_of(gpus: Sequence[Gpu], generation: int) -> str:
    """Description of the first card of this generation; empty if there is none."""
    return _first_card(gpu for gpu in gpus if gpu.compute_capability[0] == generation)


def first_outside(gpus: Sequence[Gpu], first: tuple[int, int], below: tuple[int, int]) -> str:
    """Description of the first card outside these capabilities; empty if all are inside."""
    return _first_card(gpu for gpu in gpus if not first <= gpu.compute_capability < below)


def _first_card(gpus: Iterable[Gpu]) -> str:
    gpu = next(iter(gpus), None)
    return "GPU {} is SM{}{}".format(gpu.index, *gpu.compute_capability) if gpu else ""


def type_without_bfloat16(model: ModelCard) -> str:
    """The type in which a card before SM80 computes this model."""
    return "float32" if model.model_type in WITHOUT_HALF else "half"


def lacks_bfloat16(gpus: Sequence[Gpu], dtype: str) -> str:
    """Description of the first card without bfloat16 if `dtype` is that type; else empty."""
    return oldest_without(gpus, AMPERE) if dtype == "bfloat16" else ""


def type_problem(
    model: ModelCard, quantization: str | None, dtype: str, old: str
) -> Problem | None:
    """Why vLLM refuses this dtype; `old` names a pre-SM80 card, or is empty."""
    if dtype in HALF and model.model_type in WITHOUT_HALF:
        other = "float32" if old else "bfloat16"
        fact = f"vLLM refuses it for models of type {model.model_type}"
        return Problem("use --dtype half", fact, f"use --dtype {other}")
    if dtype in ("float32", "float") and quantization and quantization not in WITH_FLOAT32:
        remedy = "use --dtype half"
        if model.model_type in WITHOUT_HALF:
            remedy = "use a card of SM80 or newer, or an unquantised checkpoint"
        lacking = f" ({old}, which has no bfloat16)" if old else ""
        fact = f"{quantization} supports only 16-bit types"
        return Problem(f"compute in float32{lacking}", fact, remedy)
    return None


SHORT_SIDE = 64
LONG_SIDE = 128
"""The sides of a tile."""
FP8_AT_LOAD = "fp8"
"""The value of --quantization, or its beginning, that quantises 16-bit weights layer by layer while
they load: vLLM 0.21 and 0.33 create each layer on the card only when it is its turn."""
FP8_METHODS = frozenset({"fp8", "fbgemm_fp8", "modelopt"})
"""Methods of checkpoints with fp8 weights; others have them if most of their tensors are fp8."""
PACKED_TYPES = frozenset({"U8", "I8", "I32"})
"""Safetensors' types of weights that are quantised otherwise, with scales that may be fp8."""
UNEVEN_TOWERS = ("qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_omni", "qwen3_5")
"""Beginnings of the types of models whose vision tower has rows that are no multiple of a tile, and
is quantised with the rest while loading."""
SIGLIP = "gemma3"
"""Another such type; `gemma3n` has another tower, which stays in 16 bits."""
PADDING_REMEDY = f"`sudo caovanctl engine install {releases.name(releases.NEWEST_TESTED)}.0`"


def needs_whole_tiles(
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


def tile_side(hidden: int) -> int:
    """The number that each rank's part must be a multiple of if the other dimension is the hidden
    size."""
    return LONG_SIDE if hidden % LONG_SIDE else SHORT_SIDE


def not_whole_tiles(tile: int) -> str:
    """Say, as the end of a sentence, why a part of a layer does not consist of whole tiles."""
    first = releases.name(releases.MARLIN_PADS)
    return (
        f"not a multiple of {tile}, which fp8 weights need on cards before SM89 in vLLM < {first}"
    )


def tower_lacks_tiles(model: ModelCard) -> bool:
    """Whether the vision tower does not divide into whole tiles if it is quantised while
    loading."""
    return model.model_type.startswith(UNEVEN_TOWERS) or model.model_type == SIGLIP


def is_fp8(model: ModelCard, quantization: str) -> bool:
    """Whether the weights are fp8: most of those stored, or those quantised while loading."""
    if quantization.startswith(FP8_AT_LOAD):
        return True
    if model.quantization is None or model.quantization in FP8_METHODS:
        return model.quantization is not None
    layers = [part for part in model.weights if part.part in ("layers", "experts")]
    fp8 = sum(part.size for part in layers if part.dtype.startswith("F8"))
    return fp8 > sum(part.size for part in layers if part.dtype in PACKED_TYPES)


FOUR_BIT_FLOATS = {"modelopt_fp4": "NVFP4", "mxfp4": "MXFP4"}


def oldest_first(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The cards by capability; those that are alike in their own order."""
    return tuple(sorted(gpus, key=lambda gpu: gpu.compute_capability))


def float_weights(model: ModelCard, quantization: str) -> str:
    """The floats of 8 or 4 bits as which the weights are stored, or quantised while loading; empty
    for others."""
    if is_fp8(model, quantization):
        return "fp8"
    return FOUR_BIT_FLOATS.get(model.quantization or "", "")


def order_problem(gpus: Sequence[Gpu], weights: str, cache: str) -> Problem | None:
    """Why kernels chosen for the first of these cards may not run on the oldest; None if it is the
    first, or if neither weights nor cache are floats of 8 or 4 bits."""
    ordered = oldest_first(gpus)
    if not gpus or gpus[0].compute_capability == ordered[0].compute_capability:
        return None
    kinds = [f"{weights} weights"] * bool(weights) + [f"an {cache} cache"] * ("fp8" in cache)
    if not kinds:
        return None
    return Problem(
        f"compute {' and '.join(kinds)} on {_card_text(ordered[0])}",
        f"vLLM chooses the kernels for all cards by the first one, {_card_text(gpus[0])}",
        f"set [engine] gpus = {[gpu.index for gpu in ordered]}",
    )


def never_runs(gpus: Sequence[Gpu], weights: str) -> bool:
    """Whether the first card computes such weights itself, which the oldest cannot."""
    least = {"fp8": ADA, "NVFP4": BLACKWELL}.get(weights)
    if least is None or not gpus:
        return False
    return gpus[0].compute_capability >= least > oldest_first(gpus)[0].compute_capability


def _card_text(gpu: Gpu) -> str:
    return "GPU {} (SM{}{})".format(gpu.index, *gpu.compute_capability)


WHOLE_BITS = (4, 8)
INSTALL = f"`sudo caovanctl engine install {releases.name(releases.REFERENCE)}`"
ANOTHER = "a checkpoint with 4-bit symmetric weights in groups, or in AWQ"


def weights_problems(model: ModelCard, engine: EngineInfo, *, cards: bool) -> Iterator[Problem]:
    """Why this release cannot read these weights; `cards` is false for a build for CPUs."""
    if model.packed:
        yield from _packed(model.packed, model.experts > 0, engine, cards=cards)
    if model.gptq:
        yield from _gptq(model.gptq, model, engine)


def only_in_half(model: ModelCard, engine: EngineInfo) -> str:
    """Why vLLM computes these weights only in float16; empty if it does not."""
    stored = model.gptq
    if stored is None or engine.release >= releases.GPTQ_BY_MARLIN or model.experts:
        return ""
    if stored.symmetric is not False and stored.bits in WHOLE_BITS:
        return ""
    kind = _kind(stored)
    return f"vLLM {engine.version} computes {kind} only in float16"


def _packed(stored: Packed, experts: bool, engine: EngineInfo, *, cards: bool) -> Iterator[Problem]:
    early = engine.release < releases.PACKED_AS_ANY
    if stored.int8_inputs:
        if experts and cards and stored.bits == WHOLE_BITS[0]:
            yield Problem(
                "serve 4-bit experts with 8-bit activations",
                "vLLM has that kernel only for CPUs",
                f"use {ANOTHER}",
            )
        return
    if early and stored.bits not in WHOLE_BITS:
        yield Problem(
            f"serve weights that compressed-tensors packed in {stored.bits} bits",
            f"vLLM {engine.version} supports only 4 and 8 bits",
            f"{INSTALL}, or use {ANOTHER}",
        )
    elif early and experts and not stored.symmetric:
        yield Problem(
            "serve experts that compressed-tensors packed with zero points",
            f"vLLM {engine.version} supports only symmetric ones, and crashes while it creates "
            "the layers",
            f"{INSTALL}, or use a checkpoint with symmetric weights, or in AWQ or GPTQ",
        )


def _gptq(stored: Gptq, model: ModelCard, engine: EngineInfo) -> Iterator[Problem]:
    marlin = stored.symmetric is not False and stored.bits in WHOLE_BITS
    if engine.release >= releases.GPTQ_BY_MARLIN:
        if not marlin:
            fact = f"vLLM {engine.version} supports only GPTQ of 4 or 8 bits without zero points"
            yield Problem(f"serve {_kind(stored)}", fact, f"use {ANOTHER}")
        elif stored.act_order and model.group_size:
            yield Problem(
                "serve GPTQ weights stored in another order (desc_act)",
                f"vLLM {engine.version} no longer supports them in groups",
                'use a checkpoint with "desc_act": false, or in AWQ',
            )
    elif model.experts and stored.bits not in WHOLE_BITS:
        fact = f"vLLM {engine.version} has kernels only for 4 and 8 bits"
        yield Problem(f"serve experts in GPTQ of {stored.bits} bits", fact, f"use {ANOTHER}")
    elif model.experts and stored.symmetric is False:
        yield Problem(
            "serve experts in GPTQ with zero points",
            f"vLLM {engine.version} silently treats them as symmetric: the answers are wrong",
            f"use {ANOTHER}",
        )


def _kind(stored: Gptq) -> str:
    zeros = " with zero points" if stored.symmetric is False else ""
    return f"GPTQ weights of {stored.bits} bits{zeros}"
