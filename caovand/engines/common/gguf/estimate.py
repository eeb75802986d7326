"""The memory forecast of a load for ggml: what each device will hold, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caovand.core.facts.forecast import MemoryEstimate, MemoryPart
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.units import MIB
from caovand.engines.common.gguf.placement import Device, host_room
from caovand.engines.common.gguf.sizes import GgufLoad

LESS_CACHE = "a shorter [model] max_model_len or fewer [policy] max_num_seqs need less cache"


def estimate(
    found: Sequence[Device],
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
    rooms = [*(gpu.free_mib * MIB for gpu in gpus), host_room(host, gpus)]
    over = [device.total - room for device, room in zip(found, rooms, strict=True)]
    needed = [device.total - device.prompts for device in found]  # earlier prompts give way
    drawn = range(len(gpus)) if gpus else range(len(found))
    tightest = max(drawn, key=lambda place: needed[place] / max(rooms[place], 1))
    device, cache = found[tightest], sum(one.cache for one in found)
    lack = "" if max(over) <= 0 else _lack(found, over, gpus)
    return MemoryEstimate(
        fits=max(over) <= 0,
        gpu_memory_utilization=share,
        weights_mib=sum(one.weights for one in found) / MIB,
        kv_mib=cache / MIB,
        needed_mib=cache / load.caches / MIB,
        kv_tokens=load.context * load.caches,
        max_model_len=load.context,
        concurrency=float(load.caches),
        reserve_mib=host.available_mib - rooms[-1] / MIB,
        parts=_parts(device, max(rooms[tightest] - device.total, 0)),
        advice=tuple(_advice(found, over, fewer_bits)) if lack else (),
        lack=lack,
        host_parts=_parts(found[-1], 0) if gpus and found[-1].layers else (),
    )


def _advice(found: Sequence[Device], over: Sequence[int], fewer_bits: str) -> Iterator[str]:
    """Advise what covers the shortage: a smaller cache only if the cache is larger than the
    shortage."""
    short = [(device.cache, much) for device, much in zip(found, over, strict=True) if much > 0]
    if all(cache > much for cache, much in short):
        yield LESS_CACHE
    now = sum(one.weights for one in found)
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


def _lack(found: Sequence[Device], over: Sequence[int], gpus: Sequence[Gpu]) -> str:
    worst = max(range(len(over)), key=lambda place: over[place])
    card = found[worst].card
    where = "host memory" if card is None else f"card {gpus[card].index}"
    return (
        f"{found[worst].total / MIB / 1024:.2f} GiB for {where}, {over[worst] / MIB / 1024:.2f} GiB"
        " more than is available"
    )
