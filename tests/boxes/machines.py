"""The table's machines, by the names of its files; other tests reuse them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from caovand.core.facts.inventory import EngineInfo, Gpu, Host, Inventory, ModelCard
from caovand.core.facts.occupancy import host_reserve_mib
from tests.core.machines import A100, CPU, FIXED, H200, HOST, cards, named, turing

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


def named_unified(
    name: str, capability: tuple[int, int], total_mib: int, available_mib: int
) -> tuple[Gpu, ...]:
    """A card in the host's memory, as the adapter reads it."""
    free_mib = available_mib - host_reserve_mib(total_mib)
    return (Gpu(0, name, capability, total_mib, free_mib, unified=True),)


BOXES: Mapping[str, tuple[Gpu, ...]] = {
    "2080ti-22g": _in_slots(turing(1), 3, 16),
    "2080ti-22g-x2": _in_slots(turing(2), 3, 8),
    "2080ti-22g-x2-nvlink": _linked(_in_slots(turing(2), 3, 16)),
    "2080ti-22g-x4": _in_slots(turing(4), 3, 8),
    "2080ti-11g-x2": _in_slots(named("RTX 2080 Ti 11 GB", 2), 3, 8),
    "2080ti-11g-x4": _in_slots(named("RTX 2080 Ti 11 GB", 4), 3, 8),
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
    "titan-rtx": _in_slots(cards(1, "NVIDIA TITAN RTX", (7, 5), 24576), 3, 16),
    "4060ti-16g": _in_slots(cards(1, "NVIDIA GeForce RTX 4060 Ti", (8, 9), 16380), 4, 8),
    "4080-16g": _in_slots(cards(1, "NVIDIA GeForce RTX 4080", (8, 9), 16376), 4, 16),
    "5060ti-16g-x2": _in_slots(cards(2, "NVIDIA GeForce RTX 5060 Ti", (12, 0), 16311), 5, 8),
    "l40s": _in_slots(cards(1, "NVIDIA L40S", (8, 9), 46068), 4, 16),
    "a10": _in_slots(named("A10"), 4, 16),
    "a10-x2": _in_slots(named("A10", 2), 4, 16),
    "a100-40g": _in_slots(named("A100 40 GB"), 4, 16),
    "a100-80g-x8": _linked(_in_slots(named("A100", 8), 4, 16)),
    "a100-80g": _in_slots(A100, 4, 16),
    "4060-8g": _in_slots(named("RTX 4060"), 4, 8),
    "4090": _in_slots(named("RTX 4090"), 4, 16),
    "5090": _in_slots(named("RTX 5090"), 5, 16),
    "h100": _in_slots(named("H100"), 5, 16),
    "h100-x8": _linked(_in_slots(named("H100", 8), 5, 16)),
    "h100-x6": _linked(_in_slots(named("H100", 6), 5, 16)),
    "h800-x8": _linked(_in_slots(named("H800", 8), 5, 16)),
    "h200": _in_slots(H200, 5, 16),
    "h200-x8": _linked(_in_slots(named("H200", 8), 5, 16)),
    "h200-x4": _linked(_in_slots(named("H200", 4), 5, 16)),
    "3090-and-h800": (
        *_in_slots(named("RTX 3090"), 4, 16),
        *(replace(gpu, index=1) for gpu in _in_slots(named("H800"), 5, 16)),
    ),
    "cpu": (),
    "gb10": named_unified("NVIDIA GB10", (12, 1), 124_546, 118_000),
    "jetson-orin-64g": named_unified(
        "NVIDIA Jetson AGX Orin Developer Kit", (8, 7), 62_800, 58_000
    ),
    "p40-x2": _in_slots(cards(2, "Tesla P40", (6, 1), 24576), 3, 16),
    "gtx1660-6g": _in_slots(cards(1, "NVIDIA GeForce GTX 1660 Ti", (7, 5), 6144), 3, 16),
    "unknown-32g": _in_slots(
        tuple(
            replace(gpu, memory_gb_s=2016.0, multiprocessors=180, clock_mhz=3000)
            for gpu in cards(1, "NVIDIA GeForce RTX 6090", (13, 0), 32607)
        ), 5, 16,
    ),
    "2080ti-11g": _in_slots(named("RTX 2080 Ti 11 GB"), 3, 16),
    "3060-12g": _in_slots(named("RTX 3060"), 4, 16),
    "3060ti-8g": _in_slots(cards(1, "NVIDIA GeForce RTX 3060 Ti", (8, 6), 8192), 4, 16),
    "a4000": _in_slots(cards(1, "NVIDIA RTX A4000", (8, 6), 16376), 4, 16),
    "a5000": _in_slots(cards(1, "NVIDIA RTX A5000", (8, 6), 24564), 4, 16),
    "a6000-x2": _linked(_in_slots(named("RTX A6000", 2), 4, 16)),
    "l4": _in_slots(cards(1, "NVIDIA L4", (8, 9), 23034), 4, 16),
    "l4-x4": _in_slots(cards(4, "NVIDIA L4", (8, 9), 23034), 4, 16),
    "l40s-x2": _in_slots(cards(2, "NVIDIA L40S", (8, 9), 46068), 4, 16),
    "5070-12g": _in_slots(cards(1, "NVIDIA GeForce RTX 5070", (12, 0), 12227), 5, 16),
    "b200": _in_slots(cards(1, "NVIDIA B200", (10, 0), 183359), 5, 16),
    "cpu-old": (),
    "cpu-new": (),
}  # fmt: skip
HOSTS: Mapping[str, Host] = {
    "gb10": replace(HOST, ram_mib=124_546, available_mib=118_000, cpus=20),
    "jetson-orin-64g": replace(HOST, ram_mib=62_800, available_mib=58_000, cpus=12),
    "gtx1660-6g": replace(HOST, ram_mib=16_384, available_mib=14_000, cpus=6),
    "cpu-old": replace(
        HOST, ram_mib=131_072, available_mib=126_000, cpus=16, numa_nodes=2, memory_gb_s=70.0,
        architecture="x86_64", instructions=("sse4_2", "avx"),
    ),
    "cpu-new": replace(
        HOST, ram_mib=98_304, available_mib=92_000, cpus=16, memory_gb_s=72.0,
        architecture="x86_64",
        instructions=("sse4_2", "avx", "fma", "avx2", "avx512f", "avx512_vnni", "avx512_bf16"),
    ),
}  # fmt: skip
"""Hosts that are neither a desktop with 64 GiB nor a server: unified memory, and processors."""


def host_of(box: str) -> Host:
    """Servers have the memory that goes with their cards; the rest 64 GiB."""
    if box in HOSTS:
        return HOSTS[box]
    return SERVER if box.startswith(("a100", "h100", "h800", "h200", "b200", "l40s-x2")) else HOST


def box_with(box: str, model: ModelCard, engine: EngineInfo | None = None) -> Inventory:
    gpus = BOXES[box]
    return Inventory(gpus, host_of(box), engine or (FIXED if gpus else CPU), model)
