"""Settings that cannot work, however much memory there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Plan
from caovand.core.problem import Problem
from caovand.engines.common.gguf.sizes import why_undividable
from caovand.engines.common.options import count

PLAIN = frozenset({"f32", "f16", "bf16"})


def conflicts(plan: Plan, inventory: Inventory) -> Sequence[Problem]:
    """Each setting that cannot work on this machine."""
    return tuple(_conflicts(plan, inventory))


def _conflicts(plan: Plan, inventory: Inventory) -> Iterator[Problem]:
    kind = plan.value("cache_type_v")
    if plan.value("flash_attn") == "off" and kind not in (None, *PLAIN):
        yield Problem(
            "start llama-server",
            f"a cache of type {kind} for values needs flash attention, and --flash-attn is off",
            "remove --flash-attn from [engine] extra_args, or use f16 for --cache-type-v",
        )
    wide = inventory.model.head_dim
    for option, name in (("--cache-type-k", "cache_type_k"), ("--cache-type-v", "cache_type_v")):
        if lack := why_undividable(str(plan.value(name)), wide):
            yield Problem("start llama-server", lack, f"use f16 for {option}")
    batch, micro = count(plan.value("batch_size")), count(plan.value("ubatch_size"))
    if batch and micro and micro > batch:
        yield Problem(
            "start llama-server",
            f"--ubatch-size {micro} is more than --batch-size {batch}",
            "lower --ubatch-size",
        )
    if plan.value("split_mode") == "tensor" and len(inventory.gpus) < 2:
        yield Problem(
            "split the model",
            "--split-mode tensor needs several cards",
            "remove --split-mode from [engine] extra_args",
        )
