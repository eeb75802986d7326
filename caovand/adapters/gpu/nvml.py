"""The NVIDIA cards, as the driver's NVML reports them; none without a driver.

Each part of a partitioned card (MIG) counts as a card: CUDA opens parts, never the whole. For a
card that shares the host's memory, such as GB10 and Jetson, NVML reports no memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from caovand.adapters.gpu import nvml_library, tegra
from caovand.adapters.gpu.nvml_library import CLOCK_MEMORY, CLOCK_SM, Nvml, decode
from caovand.adapters.system import host
from caovand.adapters.system.processes import name_of
from caovand.core.facts.inventory import Gpu
from caovand.core.facts.occupancy import host_reserve_mib
from caovand.core.units import MIB

P2P_READ = 0
"""NVML_P2P_CAPS_INDEX_READ, which pynvml defines as a tuple by mistake."""
P2P_WRITE = 1  # NVML_P2P_CAPS_INDEX_WRITE
P2P_OK = 0  # NVML_P2P_STATUS_OK
TO_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
FEW_CORES = frozenset({(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)})
"""Generations with 64 CUDA cores per multiprocessor; all others have 128."""


def read_gpus(environ: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """The cards visible through CUDA_VISIBLE_DEVICES, by NVML's index."""
    gpus = _read_all() or tegra.read_gpus(*host.memory_mib())
    return visible(gpus, environ.get("CUDA_VISIBLE_DEVICES"))


def _read_all() -> tuple[Gpu, ...]:
    with contextlib.ExitStack() as stack:
        try:
            nvml = stack.enter_context(nvml_library.open_session(nvml_library.pynvml()))
        except Exception:  # no library, no driver, or versions that differ: no card
            return ()
        switched = frozenset(index for index in nvml.indices() if _behind_switch(nvml, index))
        return tuple(gpu for index in nvml.indices() for gpu in _read_cards(nvml, index, switched))


def visible(gpus: tuple[Gpu, ...], wanted: str | None) -> tuple[Gpu, ...]:
    """Read CUDA_VISIBLE_DEVICES as CUDA does: indices or UUID prefixes, up to the first bad one.

    The index of a partitioned card means its first part, as in CUDA.
    """
    if wanted is None:
        return gpus
    chosen: list[Gpu] = []
    for name in (part.strip() for part in wanted.split(",")):
        matches = [gpu for gpu in gpus if name == str(gpu.index)][:1]
        matches = matches or [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
        if name.startswith("MIG-") and not matches:  # its card's parts are hidden by this driver
            matches = [gpu for gpu in gpus if gpu.mig and not gpu.uuid.startswith("MIG-")][:1]
        if len(matches) != 1 or matches[0] in chosen:
            break
        chosen += matches
    return tuple(chosen)


def _read_cards(nvml: Nvml, index: int, switched: frozenset[int]) -> list[Gpu]:
    """Read the card with this index; `switched` are the cards behind NVSwitches."""
    card = _read_gpu(nvml, index, switched)
    if card is None:
        return []
    handle = nvml.card(index)
    count = nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle) if card.mig else 0
    parts = [_read_mig_instance(nvml, card, handle, number) for number in range(count or 0)]
    return [part for part in parts if part] or [card]


def _read_mig_instance(nvml: Nvml, card: Gpu, handle: Any, number: int) -> Gpu | None:
    part = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
    memory = None if part is None else nvml.ask("nvmlDeviceGetMemoryInfo", part)
    uuid = None if part is None else nvml.ask("nvmlDeviceGetUUID", part)
    if memory is None or not uuid:
        return None
    attributes = nvml.ask("nvmlDeviceGetAttributes", part)
    speed = card.memory_gb_s
    return replace(
        card,
        name=nvml.ask("nvmlDeviceGetName", part) or card.name,
        memory_gb_s=speed and round(speed * memory.total / MIB / card.total_mib, 1),
        multiprocessors=getattr(attributes, "multiprocessorCount", None),
        total_mib=memory.total // MIB,
        free_mib=memory.free // MIB,
        uuid=uuid,
        nvlink=(),
        p2p=None,
        users=_users(nvml, part),
    )


def _read_gpu(nvml: Nvml, index: int, switched: frozenset[int]) -> Gpu | None:
    card = nvml.card(index)
    if card is None:
        return None
    memory = _read_memory(nvml, card)
    answer = nvml.ask("nvmlDeviceGetCudaComputeCapability", card)
    if memory is None or answer is None:
        return None  # a lost card still counts in nvmlDeviceGetCount
    capability = (int(answer[0]), int(answer[1]))
    total_mib, free_mib, unified = memory
    # The current generation of an idle link falls to 1.
    generation = nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", card)
    lanes = nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", card)
    cuda = nvml.ask("nvmlSystemGetCudaDriverVersion")
    mig = nvml.ask("nvmlDeviceGetMigMode", card)
    persistence = nvml.ask("nvmlDeviceGetPersistenceMode", card)
    p2p = _find_reachable(nvml, index, card)
    return Gpu(
        index=index,
        name=nvml.ask("nvmlDeviceGetName", card) or "unknown",
        compute_capability=capability,
        total_mib=total_mib,
        free_mib=free_mib,
        uuid=nvml.ask("nvmlDeviceGetUUID", card) or "",
        nvlink=tuple(sorted(_nvlink_peers(nvml, card) | _through_switches(index, switched, p2p))),
        driver=nvml.ask("nvmlSystemGetDriverVersion") or "",
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        persistence=None if persistence is None else bool(persistence),
        pcie=(generation, lanes) if generation and lanes else None,
        mig=bool(mig and mig[0]),
        users=_users(nvml, card),
        bus=decode(getattr(nvml.ask("nvmlDeviceGetPciInfo", card), "busId", "")),
        p2p=p2p,
        memory_gb_s=_memory_gb_s(nvml, card),
        multiprocessors=_multiprocessors(nvml.ask("nvmlDeviceGetNumGpuCores", card), capability),
        clock_mhz=nvml.ask("nvmlDeviceGetMaxClockInfo", card, CLOCK_SM),
        unified=unified,
    )


def _read_memory(nvml: Nvml, card: Any) -> tuple[int, int, bool] | None:
    """Total and free MiB, and whether the memory is the host's; None for a card that does not
    answer."""
    try:
        memory = nvml.library.nvmlDeviceGetMemoryInfo(card)
    except nvml.library.NVMLError as problem:
        if type(problem).__name__ != "NVMLError_NotSupported":
            return None
    else:
        if memory.total:
            return memory.total // MIB, memory.free // MIB, False
    total, available = host.memory_mib()
    return total, max(available - host_reserve_mib(total), 0), True


def _memory_gb_s(nvml: Nvml, card: Any) -> float | None:
    """Memory bandwidth: two transfers per clock over the whole bus, for every type of these
    memories.
    """
    clock = nvml.ask("nvmlDeviceGetMaxClockInfo", card, CLOCK_MEMORY)
    bits = nvml.ask("nvmlDeviceGetMemoryBusWidth", card)
    return round(clock * 2 * bits / 8 / 1000, 1) if clock and bits else None


def _multiprocessors(cores: int | None, capability: tuple[int, int]) -> int | None:
    return cores // (64 if capability in FEW_CORES else 128) if cores else None


def _active_nvlinks(nvml: Nvml, card: Any) -> Iterator[int]:
    """The active NVLinks of a card."""
    for link in range(getattr(nvml.library, "NVML_NVLINK_MAX_LINKS", 18)):
        if nvml.ask("nvmlDeviceGetNvLinkState", card, link):
            yield link


def _behind_switch(nvml: Nvml, index: int) -> bool:
    """Whether a link of this card connects to an NVSwitch, as on HGX boards."""
    card = nvml.card(index)
    return card is not None and any(
        nvml.ask("nvmlDeviceGetNvLinkRemoteDeviceType", card, link) == TO_SWITCH
        for link in _active_nvlinks(nvml, card)
    )


def _through_switches(
    index: int, switched: frozenset[int], p2p: tuple[int, ...] | None
) -> frozenset[int]:
    """The cards that NVSwitches connect to this one: all, unless the fabric isolates some."""
    if index not in switched:
        return frozenset()
    return (switched - {index}) if p2p is None else switched & frozenset(p2p)


def _nvlink_peers(nvml: Nvml, card: Any) -> frozenset[int]:
    """Indices of the cards at the other end of active links, not counting switches."""
    peers: set[int] = set()
    for link in _active_nvlinks(nvml, card):
        remote = nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", card, link)
        peer = None if remote is None else nvml.ask("nvmlDeviceGetHandleByPciBusId", remote.busId)
        index = None if peer is None else nvml.ask("nvmlDeviceGetIndex", peer)
        if index is not None:
            peers.add(index)
    return frozenset(peers)


def _find_reachable(nvml: Nvml, index: int, card: Any) -> tuple[int, ...] | None:
    """Find the cards whose memory this one accesses directly; None if one does not answer.

    Cards that are gone from the bus do not answer, and are not in the inventory either.
    """
    reachable = []
    for peer in nvml.indices():
        other = None if peer == index else nvml.card(peer)
        if other is None:
            continue
        states = [
            nvml.ask("nvmlDeviceGetP2PStatus", card, other, cap) for cap in (P2P_READ, P2P_WRITE)
        ]
        if None in states:
            return None
        if states == [P2P_OK, P2P_OK]:
            reachable.append(peer)
    return tuple(reachable)


def _users(nvml: Nvml, card: Any) -> tuple[tuple[int, str, int], ...]:
    processes = nvml.ask("nvmlDeviceGetComputeRunningProcesses", card) or ()
    return tuple((p.pid, name_of(p.pid) or "?", (p.usedGpuMemory or 0) // MIB) for p in processes)
