"""The machines of the table, by the names of its files; other tests take theirs from here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from caovand.core.facts.inventory import EngineInfo, Gpu, Host, Inventory, ModelCard
from tests.core.machines import A100, CPU, FIXED, H200, HOST, named, turing

SERVER = replace(HOST, ram_mib=1 << 20, available_mib=1_000_000, cpus=96)


def _linked(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The cards with NVLink from each to every other."""
    every = {gpu.index for gpu in gpus}
    return tuple(replace(gpu, nvlink=tuple(sorted(every - {gpu.index}))) for gpu in gpus)


def _paired(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The cards with NVLink between each two."""
    return tuple(replace(gpu, nvlink=(gpu.index ^ 1,)) for gpu in gpus)


def _in_slots(gpus: tuple[Gpu, ...], generation: int, lanes: int) -> tuple[Gpu, ...]:
    return tuple(replace(gpu, pcie=(generation, lanes)) for gpu in gpus)


BOXES: Mapping[str, tuple[Gpu, ...]] = {
    "2080ti-22g": _in_slots(turing(1), 3, 16),
    "2080ti-22g-x2": _in_slots(turing(2), 3, 8),
    "2080ti-22g-x2-nvlink": _linked(_in_slots(turing(2), 3, 16)),
    "2080ti-22g-x4": _in_slots(turing(4), 3, 8),
    "2080ti-11g-x2": _in_slots(named("RTX 2080 Ti 11 GB", 2), 3, 8),
    "t4-x4": _in_slots(named("T4", 4), 3, 16),
    "t4": _in_slots(named("T4"), 3, 16),
    "v100-32g": _in_slots(named("V100"), 3, 16),
    "3070-8g": _in_slots(named("RTX 3070"), 4, 16),
    "3090": _in_slots(named("RTX 3090"), 4, 16),
    "3090-x2": _in_slots(named("RTX 3090", 2), 4, 8),
    "3090-x3": _in_slots(named("RTX 3090", 3), 4, 8),
    "3090-x4": _in_slots(named("RTX 3090", 4), 4, 8),
    "3090-x6": _in_slots(named("RTX 3090", 6), 4, 4),
    "a6000-x4-pairs": _paired(_in_slots(named("RTX A6000", 4), 4, 16)),
    "3090-and-3060": (
        *_in_slots(named("RTX 3090"), 4, 16),
        *(replace(gpu, index=1) for gpu in _in_slots(named("RTX 3060"), 4, 4)),
    ),
    "a10": _in_slots(named("A10"), 4, 16),
    "a100-40g": _in_slots(named("A100 40 GB"), 4, 16),
    "a100-80g-x8": _linked(_in_slots(named("A100", 8), 4, 16)),
    "a100-80g": _in_slots(A100, 4, 16),
    "4060-8g": _in_slots(named("RTX 4060"), 4, 8),
    "4090": _in_slots(named("RTX 4090"), 4, 16),
    "5090": _in_slots(named("RTX 5090"), 5, 16),
    "h100": _in_slots(named("H100"), 5, 16),
    "h100-x8": _linked(_in_slots(named("H100", 8), 5, 16)),
    "h800-x8": _linked(_in_slots(named("H800", 8), 5, 16)),
    "h200": _in_slots(H200, 5, 16),
    "h200-x8": _linked(_in_slots(named("H200", 8), 5, 16)),
    "h200-x4": _linked(_in_slots(named("H200", 4), 5, 16)),
    "3090-and-h800": (
        *_in_slots(named("RTX 3090"), 4, 16),
        *(replace(gpu, index=1) for gpu in _in_slots(named("H800"), 5, 16)),
    ),
    "cpu": (),
}


def host_of(box: str) -> Host:
    """Servers have the memory that goes with their cards; the rest 64 GiB."""
    return SERVER if box.startswith(("a100", "h100", "h800", "h200")) else HOST


def box_with(box: str, model: ModelCard, engine: EngineInfo | None = None) -> Inventory:
    gpus = BOXES[box]
    return Inventory(gpus, host_of(box), engine or (FIXED if gpus else CPU), model)
