"""The NVIDIA cards, as the driver's NVML reports them; none without a driver.

Each part of a partitioned card (MIG) counts as a card: CUDA opens parts, never the whole. For a
card that uses the host's memory, as GB10 and Jetson do, NVML reports no memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from caovand.adapters.gpu import nvml_library, tegra
from caovand.adapters.system import host
from caovand.adapters.system.processes import name_of
from caovand.core.facts.inventory import Gpu
from caovand.core.facts.occupancy import host_reserve_mib
from caovand.core.printable import one_line

MIB = 1 << 20
P2P_READ = 0  # NVML_P2P_CAPS_INDEX_READ, which pynvml defines as a tuple by mistake
P2P_WRITE = 1
P2P_OK = 0  # NVML_P2P_STATUS_OK
TO_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
CLOCK_SM, CLOCK_MEM = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
FEW_CORES = frozenset({(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)})
"""Generations with 64 CUDA cores per multiprocessor; all others have 128."""


def read_gpus(environ: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """The cards visible through CUDA_VISIBLE_DEVICES, by NVML's index."""
    gpus = _all() or tegra.read_gpus(*host.memory_mib())
    return visible(gpus, environ.get("CUDA_VISIBLE_DEVICES"))


def _all() -> tuple[Gpu, ...]:
    try:
        pynvml = nvml_library.pynvml()
        pynvml.nvmlInit()
    except Exception:  # no library, no driver, or versions that differ: no card
        return ()
    try:
        count = pynvml.nvmlDeviceGetCount()
        switched = frozenset(n for n in range(count) if _behind_switch(pynvml, n))
        return tuple(card for n in range(count) for card in _read_cards(pynvml, n, switched))
    finally:
        pynvml.nvmlShutdown()


def visible(gpus: tuple[Gpu, ...], wanted: str | None) -> tuple[Gpu, ...]:
    """Reads CUDA_VISIBLE_DEVICES as CUDA does: indices or UUID prefixes, up to the first bad one.

    The index of a partitioned card means its first part, as in CUDA.
    """
    if wanted is None:
        return gpus
    chosen: list[Gpu] = []
    for name in (part.strip() for part in wanted.split(",")):
        found = [gpu for gpu in gpus if name == str(gpu.index)][:1]
        found = found or [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
        if name.startswith("MIG-") and not found:  # its card's parts are hidden by this driver
            found = [gpu for gpu in gpus if gpu.mig and not gpu.uuid.startswith("MIG-")][:1]
        if len(found) != 1 or found[0] in chosen:
            break
        chosen += found
    return tuple(chosen)


def _asker(nvml: Any) -> Callable[..., Any]:
    def ask(question: str, *arguments: Any) -> Any:
        """The answer of NVML; None if this card, driver or release of the library has none."""
        try:
            answer = getattr(nvml, question)(*arguments)
        except (nvml.NVMLError, AttributeError, UnicodeDecodeError):  # newer ones decode strictly
            return None
        return _decode(answer) if isinstance(answer, (bytes, str)) else answer

    return ask


def _read_cards(nvml: Any, index: int, switched: frozenset[int]) -> list[Gpu]:
    """Read the card with this index; `switched` are the cards behind NVSwitches."""
    ask = _asker(nvml)
    card = _read_gpu(nvml, ask, index, switched)
    if card is None:
        return []
    handle = ask("nvmlDeviceGetHandleByIndex", index)
    most = ask("nvmlDeviceGetMaxMigDeviceCount", handle) if card.mig else 0
    parts = [_mig_instance(ask, card, handle, number) for number in range(most or 0)]
    return [part for part in parts if part] or [card]


def _mig_instance(ask: Callable[..., Any], card: Gpu, handle: Any, number: int) -> Gpu | None:
    part = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
    memory = None if part is None else ask("nvmlDeviceGetMemoryInfo", part)
    uuid = None if part is None else ask("nvmlDeviceGetUUID", part)
    if memory is None or not uuid:
        return None
    own = ask("nvmlDeviceGetAttributes", part)
    speed = card.memory_gb_s
    return replace(
        card,
        name=ask("nvmlDeviceGetName", part) or card.name,
        memory_gb_s=speed and round(speed * memory.total / MIB / card.total_mib, 1),
        multiprocessors=getattr(own, "multiprocessorCount", None),
        total_mib=memory.total // MIB,
        free_mib=memory.free // MIB,
        uuid=uuid,
        nvlink=(),
        p2p=None,
        users=_users(ask("nvmlDeviceGetComputeRunningProcesses", part) or ()),
    )


def _read_gpu(
    nvml: Any, ask: Callable[..., Any], index: int, switched: frozenset[int]
) -> Gpu | None:
    card = ask("nvmlDeviceGetHandleByIndex", index)
    if card is None:
        return None
    memory = _read_memory(nvml, card)
    answer = ask("nvmlDeviceGetCudaComputeCapability", card)
    if memory is None or answer is None:
        return None  # a lost card still counts in nvmlDeviceGetCount
    capability = (int(answer[0]), int(answer[1]))
    total_mib, free_mib, unified = memory
    generation = ask("nvmlDeviceGetMaxPcieLinkGeneration", card)  # that of an idle link falls to 1
    lanes = ask("nvmlDeviceGetCurrPcieLinkWidth", card)
    cuda = ask("nvmlSystemGetCudaDriverVersion")
    mig = ask("nvmlDeviceGetMigMode", card)
    persistence = ask("nvmlDeviceGetPersistenceMode", card)
    p2p = _find_reachable(nvml, ask, index, card)
    return Gpu(
        index=index,
        name=ask("nvmlDeviceGetName", card) or "unknown",
        compute_capability=capability,
        total_mib=total_mib,
        free_mib=free_mib,
        uuid=ask("nvmlDeviceGetUUID", card) or "",
        nvlink=tuple(
            sorted(_nvlink_peers(nvml, ask, card) | _through_switches(index, switched, p2p))
        ),
        driver=ask("nvmlSystemGetDriverVersion") or "",
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        persistence=None if persistence is None else bool(persistence),
        pcie=(generation, lanes) if generation and lanes else None,
        mig=bool(mig and mig[0]),
        users=_users(ask("nvmlDeviceGetComputeRunningProcesses", card) or ()),
        bus=_pci_address(ask("nvmlDeviceGetPciInfo", card)),
        p2p=p2p,
        memory_gb_s=_memory_gb_s(ask, card),
        multiprocessors=_multiprocessors(ask("nvmlDeviceGetNumGpuCores", card), capability),
        clock_mhz=ask("nvmlDeviceGetMaxClockInfo", card, CLOCK_SM),
        unified=unified,
    )


def _read_memory(nvml: Any, card: Any) -> tuple[int, int, bool] | None:
    """Total and free MiB, and whether the memory is the host's; None for a card that does not
    answer."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(card)
    except nvml.NVMLError as problem:
        if type(problem).__name__ != "NVMLError_NotSupported":
            return None
    else:
        if memory.total:
            return memory.total // MIB, memory.free // MIB, False
    total, available = host.memory_mib()
    return total, max(available - host_reserve_mib(total), 0), True


def _memory_gb_s(ask: Callable[..., Any], card: Any) -> float | None:
    """Memory bandwidth: two transfers a clock over the whole bus, for every type of these
    memories."""
    clock = ask("nvmlDeviceGetMaxClockInfo", card, CLOCK_MEM)
    bits = ask("nvmlDeviceGetMemoryBusWidth", card)
    return round(clock * 2 * bits / 8 / 1000, 1) if clock and bits else None


def _multiprocessors(cores: int | None, capability: tuple[int, int]) -> int | None:
    return cores // (64 if capability in FEW_CORES else 128) if cores else None


def _pci_address(info: Any) -> str:
    """The PCI address; older bindings return bytes."""
    return _decode(getattr(info, "busId", ""))


def _decode(answer: Any) -> str:
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)
    return one_line(text)


def _active_nvlinks(nvml: Any, ask: Callable[..., Any], card: Any) -> Iterator[int]:
    """The active NVLinks of a card."""
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        if ask("nvmlDeviceGetNvLinkState", card, link):
            yield link


def _behind_switch(nvml: Any, index: int) -> bool:
    """Whether a link of this card ends at an NVSwitch, as on HGX boards."""
    ask = _asker(nvml)
    card = ask("nvmlDeviceGetHandleByIndex", index)
    return card is not None and any(
        ask("nvmlDeviceGetNvLinkRemoteDeviceType", card, link) == TO_SWITCH
        for link in _active_nvlinks(nvml, ask, card)
    )


def _through_switches(
    index: int, switched: frozenset[int], p2p: tuple[int, ...] | None
) -> frozenset[int]:
    """The cards that NVSwitches connect to this one: all, unless the fabric isolates some."""
    if index not in switched:
        return frozenset()
    return (switched - {index}) if p2p is None else switched & frozenset(p2p)


def _nvlink_peers(nvml: Any, ask: Callable[..., Any], card: Any) -> frozenset[int]:
    """Indices of the cards at the other end of active links, not counting switches."""
    peers: set[int] = set()
    for link in _active_nvlinks(nvml, ask, card):
        remote = ask("nvmlDeviceGetNvLinkRemotePciInfo", card, link)
        peer = None if remote is None else ask("nvmlDeviceGetHandleByPciBusId", remote.busId)
        index = None if peer is None else ask("nvmlDeviceGetIndex", peer)
        if index is not None:
            peers.add(index)
    return frozenset(peers)


def _find_reachable(
    nvml: Any, ask: Callable[..., Any], index: int, card: Any
) -> tuple[int, ...] | None:
    """Find the cards whose memory this one accesses directly; None if one does not answer.

    Cards that are gone from the bus do not answer, and are not in the inventory either.
    """
    others = [at for at in range(nvml.nvmlDeviceGetCount()) if at != index]
    handles = {at: ask("nvmlDeviceGetHandleByIndex", at) for at in others}
    reached = []
    for at, other in handles.items():
        if other is None:
            continue
        found = [ask("nvmlDeviceGetP2PStatus", card, other, way) for way in (P2P_READ, P2P_WRITE)]
        if None in found:
            return None
        if found == [P2P_OK, P2P_OK]:
            reached.append(at)
    return tuple(reached)


def _users(processes: Any) -> tuple[tuple[int, str, int], ...]:
    return tuple((p.pid, name_of(p.pid) or "?", (p.usedGpuMemory or 0) // MIB) for p in processes)
