"""InfiniBand and RoCE: the devices that NCCL finds, and the memory that it can lock for them."""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import suppress
from pathlib import Path

from caovand.adapters.files.safe_files import read_or_empty
from caovand.adapters.privileges import capabilities
from caovand.core.units import MIB

SYS, DEV = Path("/sys/class"), Path("/dev/infiniband")
ACTIVE = "4: ACTIVE"
LIBRARY = "libibverbs.so.1"
IPC_LOCK = 14  # CAP_IPC_LOCK: no limit applies


def devices() -> dict[str, str]:
    """The link layer of each device with an active port that NCCL can open."""
    opened = {
        read_or_empty(entry / "ibdev").strip()
        for entry in _entries(SYS / "infiniband_verbs")
        if _may_open(entry)
    }
    ports = {}
    for device in _entries(SYS / "infiniband"):
        for port in _entries(device / "ports"):
            if device.name in opened and read_or_empty(port / "state").strip() == ACTIVE:
                ports[device.name] = read_or_empty(port / "link_layer").strip()
    return ports if ports and _has_library() else {}


def lockable_mib() -> int | None:
    """The memory that our processes can lock; None if unlimited."""
    with suppress(OSError, ValueError, IndexError):
        if capabilities.read_set("CapEff") >> IPC_LOCK & 1:
            return None
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit // MIB


def _has_library() -> bool:
    """Whether NCCL can load the library: without it, it uses sockets."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def _may_open(verbs: Path) -> bool:
    return os.access(DEV / verbs.name, os.R_OK | os.W_OK)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
