"""The machine as /proc, /dev/shm and the scheduler show it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from caovand.adapters.files.safe_files import read_or_empty
from caovand.core.facts.inventory import Host
from caovand.core.units import MIB

NODES = Path("/sys/devices/system/node")
EXTENSIONS = (
    "sse4_2", "avx", "fma", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip
"""The vector extensions that engines have kernels for, by the kernel's names."""


def read_host(
    cache_dir: Path | None = None, proc: Path = Path("/proc"), nodes: Path = NODES
) -> Host:
    """Memory, swap, shared memory, cores, limits, and free disk space at `cache_dir`."""
    memory = _meminfo(proc)
    total, available = memory_mib(proc)
    limit = _read_cgroup_limit(proc)
    shared = _disk(Path("/dev/shm"))
    return Host(
        ram_mib=min(total, limit) if limit else total,
        available_mib=min(available, limit) if limit else available,
        swap_mib=memory.get("SwapTotal", 0),
        shm_mib=shared[0],
        cpus=_physical_cores(proc),
        wsl=_is_wsl(proc),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        cache_free_mib=_disk(cache_dir)[1] if cache_dir else None,
        shm_free_mib=shared[1],
        architecture=os.uname().machine,
        instructions=_instructions(proc),
        numa_nodes=len(list(nodes.glob("node[0-9]*"))) or 1,
    )


def memory_mib(proc: Path = Path("/proc")) -> tuple[int, int]:
    """Total and available MiB of the machine, regardless of control groups."""
    memory = _meminfo(proc)
    return memory.get("MemTotal", 0), memory.get("MemAvailable", 0)


def _meminfo(proc: Path) -> dict[str, int]:
    rows = (line.split() for line in read_or_empty(proc / "meminfo").splitlines())
    return {row[0].rstrip(":"): int(row[1]) // 1024 for row in rows if len(row) == 3}


def _read_cgroup_limit(proc: Path) -> int:
    """The memory limit of this process's cgroups in MiB, 0 for no limit: MemTotal may be a whole
    host's."""
    group = next(
        (
            line[3:]
            for line in read_or_empty(proc / "self/cgroup", "surrogateescape").splitlines()
            if line.startswith("0::")
        ),
        "",
    )
    limits = []
    place = Path("/sys/fs/cgroup") / group.lstrip("/")
    for folder in (place, *place.parents):
        text = read_or_empty(folder / "memory.max").strip()
        if text.isdigit():
            limits.append(int(text) // MIB)
        if folder == Path("/sys/fs/cgroup"):
            break
    return min(limits, default=0)


def _instructions(proc: Path) -> tuple[str, ...]:
    """The vector extensions that every core has; x86 calls them flags, Arm features."""
    rows = [line.partition(":") for line in read_or_empty(proc / "cpuinfo").splitlines()]
    cores = [set(value.split()) for key, _, value in rows if key.strip() in ("flags", "Features")]
    shared = set.intersection(*cores) if cores else set()
    return tuple(name for name in EXTENSIONS if name in shared)


def _physical_cores(proc: Path) -> int:
    """Cores this process may use; hyper-threads count once."""
    allowed = os.sched_getaffinity(0)
    cores: set[tuple[str, str]] = set()
    for block in read_or_empty(proc / "cpuinfo").split("\n\n"):
        row = {
            key.strip(): value.strip()
            for key, _, value in (line.partition(":") for line in block.splitlines())
        }
        if row.get("processor", "").isdigit() and int(row["processor"]) in allowed:
            cores.add((row.get("physical id", "0"), row.get("core id", row["processor"])))
    return len(cores) or len(allowed)


def _is_wsl(proc: Path) -> bool:
    return "microsoft" in read_or_empty(proc / "version").lower()


def _disk(path: Path) -> tuple[int, int]:
    """Total and free MiB of the file system of this path, or of its nearest existing parent."""
    for place in (path, *path.parents):
        try:
            seen = os.statvfs(place)
        except OSError:
            continue
        return seen.f_frsize * seen.f_blocks // MIB, seen.f_frsize * seen.f_bavail // MIB
    return 0, 0
