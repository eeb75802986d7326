"""The memory forecast of a load for ggml: what each device will hold, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.forecast import MemoryEstimate, MemoryPart
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.engines.common.gguf.placement import MIB, Device, host_room
from caovand.engines.common.gguf.sizes import GgufLoad


def estimate(
    found: Sequence[Device],
    gpus: Sequence[Gpu],
    inventory: Inventory,
    load: GgufLoad,
    share: float | None,
    advice: tuple[str, ...],
) -> MemoryEstimate:
    """The forecast, for the fullest device; `advice` is for a load that does not fit."""
    host = inventory.host
    rooms = [*(gpu.free_mib * MIB for gpu in gpus), host_room(host, gpus)]
    over = [device.total - room for device, room in zip(found, rooms, strict=True)]
    needed = [device.total - device.prompts for device in found]  # earlier prompts give way
    tightest = max(range(len(found)), key=lambda place: needed[place] / max(rooms[place], 1))
    device, cache = found[tightest], sum(one.cache for one in found)
    lack = "" if max(over) <= 0 else _lack(found, over, gpus)
    return MemoryEstimate(
        fits=max(over) <= 0,
        gpu_memory_utilization=share,
        weights_mib=sum(one.weights for one in found) / MIB,
        kv_mib=cache / MIB,
        needed_mib=cache / load.slots / MIB,
        kv_tokens=load.context * load.slots,
        max_model_len=load.context,
        concurrency=float(load.slots),
        reserve_mib=host.available_mib - rooms[-1] / MIB,
        parts=_parts(device, max(rooms[tightest] - device.total, 0)),
        advice=advice if lack else (),
        lack=lack,
    )


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
