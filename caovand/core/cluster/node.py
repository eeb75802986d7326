"""The facts that a node reports to the head."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from caovand.core.config.services import ClusterSection
from caovand.core.facts.inventory import Gpu, Node
from caovand.core.facts.occupancy import IN_HOST_MEMORY, unoccupied

MAX_FILES = 2000
MODEL_BYTES = 192 << 10
"""Maximum size of the model's file digests as JSON: a larger report would end the connection."""
DIGEST_BYTES = 64 + len('"":"",')
STEP_MIB = 1024


@dataclass(frozen=True)
class NodeCard:
    """An NVIDIA card; memory in MiB. `free_mib` is not used by any program."""

    name: str
    memory_mib: int
    compute_capability: tuple[int, int]
    free_mib: int

    @property
    def kind(self) -> tuple[str, int, tuple[int, int]]:
        """The properties that never change."""
        return self.name, self.memory_mib, self.compute_capability

    @property
    def occupied_mib(self) -> int:
        """Memory that others use, in whole steps: a smaller change does not change the plan."""
        used_mib = self.memory_mib - self.free_mib
        if used_mib < STEP_MIB:  # the driver, or a desktop
            return 0
        return min(math.ceil(used_mib / STEP_MIB) * STEP_MIB, self.memory_mib)


@dataclass(frozen=True)
class NodeFacts:
    """A node: what must be equal on all nodes, and how the others reach this one."""

    name: str
    caovan: str
    engine: str
    """Kind of engine, such as "vllm"."""
    version: str
    """The engine's release."""
    torch: str
    """torch's release. This and the fields down to `plugin` are empty if not installed."""
    cuda: str
    """CUDA release that torch was built for."""
    nccl: str
    ray: str
    flashinfer: str
    plugin: str
    nvcc: bool
    """Whether FlashInfer's kernels can be compiled here."""
    jit_cache: str
    """Release of FlashInfer's prebuilt kernels."""
    kernels: tuple[str, ...]
    """FlashInfer kernels built on this node, such as "sm90 sampling"."""
    python: str
    """Version of the engine's Python."""
    driver: str
    """Driver version; empty without a driver."""
    cards: tuple[NodeCard, ...]
    """Cards that the configuration lets ranks use, in the order of use."""
    address: str
    """Address of `interface`, used towards the head."""
    interface: str
    mtu: int
    speed_mbit: int
    """Negotiated link speed of the interface in Mbit/s; 0 if unreported."""
    listens_at: str
    """Where ranks listen: `address`, or the host name's address if [engine] env hides the
    interface."""
    firewall: str
    """The active firewall, as far as caovan can tell."""
    rdma: Mapping[str, str]
    """Link layer, "InfiniBand" or "Ethernet", by RDMA device that NCCL can use."""
    memlock_mib: int | None
    """Memory that a process may lock; None without a limit."""
    p2p: bool | None
    """Whether every card has peer access to every other one; None if unknown."""
    ram_mib: int
    """Memory of the host."""
    shm_free_mib: int
    """Free space in /dev/shm."""
    model_folder: str
    """Empty if the model is not on this machine yet."""
    model: Mapping[str, str]
    """Digest of each file in `model_folder`."""
    clock: float
    """Unix time in seconds at which the facts were gathered."""


def node_of(name: str, cards: tuple[NodeCard, ...], ram_mib: int | None = None) -> Node:
    """The node in the planner's terms."""
    gpus = tuple(
        Gpu(
            index, card.name, card.compute_capability, card.memory_mib,
            card.memory_mib - card.occupied_mib, unified=card.compute_capability in IN_HOST_MEMORY,
        )
        for index, card in enumerate(cards)
    )  # fmt: skip
    return Node(name, gpus, ram_mib)


def assume_nodes(section: ClusterSection, gpus: tuple[Gpu, ...]) -> tuple[Node, ...]:
    """Assume that each unknown node of a head offers the same cards as the head, all free."""
    if section.role != "head":
        return ()
    cards = tuple(
        NodeCard(gpu.name, gpu.total_mib, gpu.compute_capability, unoccupied(gpu).free_mib)
        for gpu in gpus
    )
    return tuple(node_of(f"node {number}", cards) for number in range(2, section.nodes + 1))


def fits_report(files: Collection[str]) -> bool:
    """Whether the digests of these files fit into a report."""
    size = sum(len(json.dumps(name)) + DIGEST_BYTES for name in files)
    return len(files) <= MAX_FILES and size <= MODEL_BYTES
