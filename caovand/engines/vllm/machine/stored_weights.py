"""Which packed integer weights vLLM's layers are made for; they end every start with others.

The refusals mirror compressed_tensors.py, compressed_tensors_moe/, gptq.py, auto_gptq.py and
moe_wna16.py in quantization/.
"""

from __future__ import annotations

from collections.abc import Iterator

from caovand.core.facts.inventory import EngineInfo, Gptq, ModelCard
from caovand.core.facts.packed import Packed
from caovand.core.problem import Problem
from caovand.engines.vllm import releases

WHOLE_BITS = (4, 8)
INSTALL = f"`sudo caovanctl engine install {releases.name(releases.REFERENCE)}`"
ANOTHER = "a checkpoint with 4-bit symmetric weights in groups, or in AWQ"


def refused(model: ModelCard, engine: EngineInfo, *, cards: bool) -> Iterator[Problem]:
    """Why this release cannot read these weights; `cards` is false for a build for CPUs."""
    if model.packed:
        yield from _packed(model.packed, model.experts > 0, engine, cards=cards)
    if model.gptq:
        yield from _gptq(model.gptq, model, engine)


def only_in_half(model: ModelCard, engine: EngineInfo) -> str:
    """Why vLLM computes these weights in float16 alone; empty if it does not."""
    stored = model.gptq
    if stored is None or engine.release >= releases.GPTQ_BY_MARLIN or model.experts:
        return ""
    if stored.symmetric is not False and stored.bits in WHOLE_BITS:
        return ""
    kind = _kind(stored)
    return f"vLLM {engine.version} computes {kind} in float16 only"


def _packed(stored: Packed, experts: bool, engine: EngineInfo, *, cards: bool) -> Iterator[Problem]:
    early = engine.release < releases.PACKED_AS_ANY
    if stored.int8_inputs:
        if experts and cards and stored.bits == WHOLE_BITS[0]:
            yield Problem(
                "serve 4-bit experts with 8-bit activations",
                "vLLM has that kernel for CPUs only",
                f"use {ANOTHER}",
            )
        return
    if early and stored.bits not in WHOLE_BITS:
        yield Problem(
            f"serve weights that compressed-tensors packed in {stored.bits} bits",
            f"vLLM {engine.version} reads 4 and 8 bits",
            f"{INSTALL}, or use {ANOTHER}",
        )
    elif early and experts and not stored.symmetric:
        yield Problem(
            "serve experts that compressed-tensors packed with zero points",
            f"vLLM {engine.version} reads symmetric ones only, and ends while it makes the layers",
            f"{INSTALL}, or use a checkpoint with symmetric weights, or in AWQ or GPTQ",
        )


def _gptq(stored: Gptq, model: ModelCard, engine: EngineInfo) -> Iterator[Problem]:
    marlin = stored.symmetric is not False and stored.bits in WHOLE_BITS
    if engine.release >= releases.GPTQ_BY_MARLIN:
        if not marlin:
            fact = f"vLLM {engine.version} reads GPTQ of 4 or 8 bits without zero points"
            yield Problem(f"serve {_kind(stored)}", fact, f"use {ANOTHER}")
        elif stored.act_order and model.group_size:
            yield Problem(
                "serve GPTQ weights stored in another order (desc_act)",
                f"vLLM {engine.version} no longer reads them in groups",
                'use a checkpoint with "desc_act": false, or in AWQ',
            )
    elif model.experts and stored.bits not in WHOLE_BITS:
        fact = f"vLLM {engine.version} has kernels for 4 and 8 bits"
        yield Problem(f"serve experts in GPTQ of {stored.bits} bits", fact, f"use {ANOTHER}")
    elif model.experts and stored.symmetric is False:
        yield Problem(
            "serve experts in GPTQ with zero points",
            f"vLLM {engine.version} reads them as symmetric, without a word: the answers are wrong",
            f"use {ANOTHER}",
        )


def _kind(stored: Gptq) -> str:
    zeros = " with zero points" if stored.symmetric is False else ""
    return f"GPTQ weights of {stored.bits} bits{zeros}"
