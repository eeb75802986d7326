"""The speed at which CPUs read quantised weights from host memory and multiply with them."""

from __future__ import annotations

from dataclasses import dataclass

from caovand.core.facts.inventory import Host

USUAL_GB_S = 25.0
"""Bandwidth of unmeasured host memory: two channels of DDR4, as in a typical desktop. An i7-8700
reads four-bit weights at 21 to 23 GB/s."""
REACHED_SHARE = 0.8
NUMA_REACHED = 0.45
"""The fraction of the bandwidth of several NUMA nodes that is reached without placing weights on
them: a core reads mostly from the other node. Two Xeons of 111 GB/s read experts at 35 to 40."""
EXPERTS_REACHED = 0.8
"""The fraction of dense layers' rate that experts reach: they are many small matrices, and all
cores wait after each."""


@dataclass(frozen=True)
class Core:
    """GB/s of four-bit weights that a core multiplies with one token, and its GFLOP/s with many."""

    gb_s: float
    gflop_s: float


AVX2 = Core(5.0, 15.0)
CORES = {
    "amx_bf16": Core(12.0, 60.0), "avx512_vnni": Core(10.0, 35.0), "avx512f": Core(7.0, 25.0),
    "avx2": AVX2, "i8mm": Core(8.0, 30.0), "asimddp": Core(5.0, 15.0), "avx": Core(1.25, 4.0),
    "asimd": Core(1.25, 4.0), "sse4_2": Core(0.8, 2.0),
}  # fmt: skip
"""A core by its best vector extension: at most half of what it reaches alone. An EPYC core with
AVX-512 multiplied dense Q4_K weights at 23.7 GB/s, experts at 22.0 (measured); other cores are
slower, and cores that run together are slower than one alone.
"""


def core_of(host: Host) -> Core:
    """The speed of one core; of one with AVX2 if the CPU is unknown."""
    return next((CORES[name] for name in CORES if name in host.instructions), AVX2)


def read_seconds(host: Host, dense: float, experts: float) -> float:
    """Seconds to read these bytes of dense and of routed experts' weights for one token."""
    nodes = NUMA_REACHED if host.numa_nodes > 1 else 1.0
    memory = (host.memory_gb_s or USUAL_GB_S) * REACHED_SHARE * nodes
    cores = host.cpus * core_of(host).gb_s if host.instructions else memory
    rate = min(memory, cores) * 1e9
    return dense / rate + experts / (rate * EXPERTS_REACHED)
