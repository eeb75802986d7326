"""Checkpoints of the same model with fewer bits that would fit, by what they would hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from caovand.core.facts.inventory import ModelCard
from caovand.engines.vllm.machine.capabilities import FP8_AT_LOAD, is_fp8
from caovand.engines.vllm.planning.partial_plan import offloaded_gib
from caovand.engines.vllm.planning.planned_request import PlannedRequest

SMALLER = (
    ("an fp8 checkpoint", ("FP8",), "fp8", 8.0, "F8_E4M3", 0),
    ("a 4-bit checkpoint", ("AWQ", "GPTQ-Int4"), "awq", 4.5, "I32", 128),
)
"""Quantised variants of a checkpoint: the usual suffixes of their names, the bits of a weight,
including its part of the scales, the stored type, and the most weights that share a scale."""
PRECISION = re.compile(
    r"[-_](fp8([-_](dynamic|block))?|bf16|fp16|f16|bfloat16|w8a8|int8)$", re.IGNORECASE
)
"""The end of a checkpoint's name that says how its weights are stored, unlike another's."""


def smaller_checkpoints(case: PlannedRequest) -> Iterator[str]:
    """Checkpoints of the same model with fewer bits, by what they would hold on these cards."""
    model, machine = case.inventory.model, case.inventory
    if not case.gpus or not case.memory.parts:
        return
    now = (case.memory.weights_mib + (offloaded_gib(case.plan) * 1024)) / 1024
    own = PRECISION.sub("", model.path.rstrip("/").rpartition("/")[2])
    for name, ends, method, each, dtype, most in SMALLER:
        bits = _stored_bits(model)
        loaded = 8.0 if case.plan.value("quantization") == FP8_AT_LOAD else bits
        if each >= min(bits, loaded):
            continue
        weights = tuple(
            replace(w, size=int(w.size * each / bits), dtype=dtype)
            if w.part in ("layers", "experts")
            else w
            for w in model.weights
        )
        group = most and gcd(most, model.expert_size or model.intermediate_size)
        smaller: ModelCard = replace(
            model, weights=weights, quantization=method, group_size=group, block_size=0
        )
        fitting = case.attempt({}, replace(machine, model=smaller))
        if fitting and fitting[0].value("cpu_offload_gb") is None:
            then, context = fitting[1].weights_mib / 1024, fitting[0].value("max_model_len")
            named = " or ".join(f"{own}-{end}" for end in ends)
            yield (
                f"{name} ({named}): about {then:.1f} GiB a card instead of {now:.1f}, and a context"
                f" of {context} tokens"
            )


def _stored_bits(model: ModelCard) -> float:
    """Bits of a weight in this checkpoint; 0 if there are none with fewer."""
    if model.quantization is None:
        return 16
    return 8 if is_fp8(model, "") else 0
