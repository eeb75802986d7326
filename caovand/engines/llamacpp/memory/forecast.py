"""The forecast of a plan: what each device will hold, and whether it has room."""

from __future__ import annotations

from collections.abc import Sequence

from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.facts.inventory import Gpu, Inventory, device_name
from caovand.core.plan import Plan
from caovand.engines.llamacpp.memory.placement import MIB, Device, Placement, devices
from caovand.engines.llamacpp.memory.sizes import Load
from caovand.engines.llamacpp.planning.options import CONTEXT, count

HOST_RESERVE_MIB = 512
"""Of host memory, for everything else."""


def gpus_of(plan: Plan, inventory: Inventory) -> tuple[Gpu, ...]:
    """The cards that the plan uses."""
    if inventory.engine.build == "cpu" or plan.value("gpu_layers") == 0:
        return ()
    if plan.cards is None:
        return inventory.gpus
    return tuple(gpu for gpu in inventory.gpus if device_name(gpu) in plan.cards)


def load_of(plan: Plan) -> Load:
    """What this plan asks of memory."""
    speculative = plan.value("speculative_config") or {}
    return Load(
        context=count(plan.value(CONTEXT)) or 0,
        slots=count(plan.value("parallel")) or 1,
        batch=count(plan.value("ubatch_size")) or 512,
        keys=str(plan.value("cache_type_k") or "f16"),
        values=str(plan.value("cache_type_v") or "f16"),
        flash=plan.value("flash_attn") != "off",
        depth=plan.mtp,
        mtp=speculative.get("method") == "draft-mtp",
    )


def placement_of(plan: Plan, gpus: Sequence[Gpu], layers: int) -> Placement:
    """Where the plan puts the layers, by its options."""
    if not gpus:
        return Placement()
    many = plan.value("gpu_layers")
    many = min(many, layers + 1) if isinstance(many, int) and many >= 0 else layers + 1
    shares = _shares(plan.value("tensor_split"), len(gpus))
    whole, counts, given = sum(shares) or 1.0, [], 0
    for card in range(len(gpus)):
        upto = round(many * sum(shares[: card + 1]) / whole)
        counts.append(upto - given)
        given = upto
    return Placement(tuple(counts), count(plan.value("n_cpu_moe")) or 0)


def _shares(text: object, cards: int) -> list[float]:
    if not isinstance(text, str):
        return [1.0] * cards
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        return [1.0] * cards
    return (shares + [0.0] * cards)[:cards] if sum(shares) > 0 else [1.0] * cards


def forecast(plan: Plan, inventory: Inventory) -> MemoryEstimate:
    """The forecast, for the fullest device."""
    model = inventory.model
    share = plan.value("gpu_memory_utilization")
    if model.gguf is None or not count(plan.value(CONTEXT)):
        return _unknown(
            "llama-server chooses the context itself"
            if model.gguf
            else "the model is not in GGUF files"
        )
    gpus = gpus_of(plan, inventory)
    load = load_of(plan)
    found = devices(model, load, placement_of(plan, gpus, len(model.gguf.layers)))
    rooms = [*(gpu.free_mib * MIB for gpu in gpus), _host_room(inventory)]
    over = [device.total - room for device, room in zip(found, rooms, strict=True)]
    tightest = max(range(len(found)), key=lambda place: found[place].total / max(rooms[place], 1))
    device, cache = found[tightest], sum(one.cache for one in found)
    lack = "" if max(over) <= 0 else _lack(found, over)
    parts = _parts(device, max(rooms[tightest] - device.total, 0))
    return MemoryEstimate(
        fits=max(over) <= 0,
        gpu_memory_utilization=share if isinstance(share, (int, float)) else None,
        weights_mib=sum(one.weights for one in found) / MIB,
        kv_mib=cache / MIB,
        needed_mib=cache / load.slots / MIB,
        kv_tokens=load.context * load.slots,
        max_model_len=load.context,
        concurrency=float(load.slots),
        reserve_mib=HOST_RESERVE_MIB,
        parts=parts,
        advice=_advice(inventory) if lack else (),
        lack=lack,
    )


def _host_room(inventory: Inventory) -> int:
    return max(inventory.host.available_mib - HOST_RESERVE_MIB, 0) * MIB


def _parts(device: Device, free: int) -> tuple[tuple[str, float], ...]:
    named = {
        "weights": device.weights, "KV cache": device.cache, "recurrent states": device.states,
        "compute buffers": device.compute, "logits": device.output, "free": free,
    }  # fmt: skip
    return tuple((name, size / MIB) for name, size in named.items() if size)


def _lack(found: Sequence[Device], over: Sequence[int]) -> str:
    worst = max(range(len(over)), key=lambda place: over[place])
    where = "host memory" if found[worst].card is None else f"card {found[worst].card}"
    return (
        f"{found[worst].total / MIB / 1024:.2f} GiB for {where}, {over[worst] / MIB / 1024:.2f} GiB"
        " more than is available"
    )


def _advice(inventory: Inventory) -> tuple[str, ...]:
    return (
        "a shorter [model] max_model_len or a smaller [policy] max_num_seqs needs less cache",
        "a GGUF file of fewer bits has smaller weights",
    )


def _unknown(reason: str) -> MemoryEstimate:
    return MemoryEstimate(None, None, 0, 0, 0, 0, 0, 0, 0, (), reason=reason)
