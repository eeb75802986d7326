"""The memory forecast of a load for ggml: what each device will hold, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caovand.core.facts.forecast import MemoryEstimate, MemoryPart
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.units import MIB
from caovand.engines.common.gguf.placement import Device, host_budget
from caovand.engines.common.gguf.sizes import GgufLoad

LESS_CACHE = "a shorter [model] max_model_len or fewer [policy] max_num_seqs need less cache"


def estimate(
    placed: Sequence[Device],
    gpus: Sequence[Gpu],
    inventory: Inventory,
    load: GgufLoad,
    share: float | None,
    fewer_bits: str,
) -> MemoryEstimate:
    """The forecast, for the fullest card; without cards, for host memory.

    `fewer_bits` names where smaller weights are found, for a load that does not fit.
    """
    host = inventory.host
    budgets = [*(gpu.free_mib * MIB for gpu in gpus), host_budget(host, gpus)]
    over = [device.total - budget for device, budget in zip(placed, budgets, strict=True)]
    needed = [device.total - device.prompts for device in placed]  # earlier prompts give way
    drawn = range(len(gpus)) if gpus else range(len(placed))
    tightest = max(drawn, key=lambda place: needed[place] / max(budgets[place], 1))
    shown, cache = placed[tightest], sum(device.cache for device in placed)
    lack = "" if max(over) <= 0 else _lack(placed, over, gpus)
    return MemoryEstimate(
        fits=max(over) <= 0,
        gpu_memory_utilization=share,
        weights_mib=sum(device.weights for device in placed) / MIB,
        kv_mib=cache / MIB,
        needed_mib=cache / load.caches / MIB,
        kv_tokens=load.context * load.caches,
        max_model_len=load.context,
        concurrency=float(load.caches),
        reserve_mib=host.available_mib - budgets[-1] / MIB,
        parts=_parts(shown, max(budgets[tightest] - shown.total, 0)),
        advice=tuple(_advice(placed, over, fewer_bits)) if lack else (),
        lack=lack,
        host_parts=_parts(placed[-1], 0) if gpus and placed[-1].layers else (),
    )


def _advice(placed: Sequence[Device], over: Sequence[int], fewer_bits: str) -> Iterator[str]:
    """Advise what covers the shortage: a smaller cache only if the cache is larger than the
    shortage."""
    short = [(device.cache, much) for device, much in zip(placed, over, strict=True) if much > 0]
    if all(cache > much for cache, much in short):
        yield LESS_CACHE
    now = sum(device.weights for device in placed)
    least = (now - sum(much for _, much in short)) / MIB / 1024
    if least > 0:
        yield f"{fewer_bits}: at most {least:.1f} GiB of weights instead of {now / MIB / 1024:.1f}"
    else:
        yield "more memory, or a far smaller model"


def _parts(device: Device, free: int) -> tuple[tuple[MemoryPart, float], ...]:
    named: dict[MemoryPart, int] = {
        "weights": device.weights, "kv": device.cache, "states": device.states,
        "compute": device.compute, "logits": device.output,
        "prompts": device.prompts, "free": free,
    }  # fmt: skip
    return tuple((name, size / MIB) for name, size in named.items() if size)


def _lack(placed: Sequence[Device], over: Sequence[int], gpus: Sequence[Gpu]) -> str:
    worst = max(range(len(over)), key=lambda place: over[place])
    card = placed[worst].card
    where = "host memory" if card is None else f"card {gpus[card].index}"
    total, excess = (size / MIB / 1024 for size in (placed[worst].total, over[worst]))
    return f"{total:.2f} GiB for {where}, {excess:.2f} GiB more than available"
