"""What a node reports of itself to the head."""

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
"""The maximum size of the digests of a model's files as JSON: a larger report would end the
connection."""
DIGEST_BYTES = 64 + len('"":"",')
STEP_MIB = 1024


@dataclass(frozen=True)
class Card:
    """One NVIDIA card; memory in MiB, `free_mib` what no program uses."""

    name: str
    memory_mib: int
    compute_capability: tuple[int, int]
    free_mib: int

    @property
    def kind(self) -> tuple[str, int, tuple[int, int]]:
        """What does not change."""
        return self.name, self.memory_mib, self.compute_capability

    @property
    def occupied_mib(self) -> int:
        """What others use, in whole steps: what changes by less makes no other plan."""
        used_mib = self.memory_mib - self.free_mib
        if used_mib < STEP_MIB:  # the driver, or a desktop
            return 0
        return min(math.ceil(used_mib / STEP_MIB) * STEP_MIB, self.memory_mib)


@dataclass(frozen=True)
class NodeFacts:
    """One node: what must be equal on all of them, and how the others reach it."""

    name: str
    caovan: str
    engine: str
    """Its kind, such as "vllm"."""
    version: str
    """The engine's release."""
    torch: str
    """Its release. This and the next ones, down to `plugin`, are empty if there is none."""
    cuda: str
    """The CUDA that torch was built for."""
    nccl: str
    ray: str
    flashinfer: str
    plugin: str
    nvcc: bool
    """Whether FlashInfer's kernels can be compiled here."""
    jit_cache: str
    """The release of FlashInfer's prebuilt kernels."""
    kernels: tuple[str, ...]
    """Those that were built here, such as "sm90 sampling"."""
    python: str
    """The engine's."""
    driver: str
    """Empty without one."""
    cards: tuple[Card, ...]
    """Those that its configuration lets ranks use, in the order in which they are taken."""
    address: str
    """What it uses towards the head, on `interface`."""
    interface: str
    mtu: int
    speed_mbit: int
    """The negotiated speed of the interface's link in Mbit/s, 0 if it reports none."""
    listens_at: str
    """Where its ranks listen: `address`, or the host name's address if [engine] env takes the
    interface from them."""
    firewall: str
    """The active one, as far as caovan can see."""
    rdma: Mapping[str, str]
    """The link layer, "InfiniBand" or "Ethernet", of each device that NCCL can use."""
    memlock_mib: int | None
    """What a process may lock, None without a limit."""
    p2p: bool | None
    """Whether each card reaches the memory of every other one, None if unknown."""
    ram_mib: int
    """The host's memory."""
    shm_free_mib: int
    """What is free in /dev/shm."""
    model_folder: str
    """Empty for a model that is not on this machine yet."""
    model: Mapping[str, str]
    """The digest of each file in `model_folder`."""
    clock: float
    """Unix time in seconds when the facts were gathered."""


def node_of(name: str, cards: tuple[Card, ...], ram_mib: int | None = None) -> Node:
    """A node as the planner sees it."""
    gpus = tuple(
        Gpu(
            index, card.name, card.compute_capability, card.memory_mib,
            card.memory_mib - card.occupied_mib, unified=card.compute_capability in IN_HOST_MEMORY,
        )
        for index, card in enumerate(cards)
    )  # fmt: skip
    return Node(name, gpus, ram_mib)


def assume_nodes(section: ClusterSection, gpus: tuple[Gpu, ...]) -> tuple[Node, ...]:
    """The other nodes of a head that are not known: as if each offered its cards, all of them
    free."""
    if section.role != "head":
        return ()
    cards = tuple(
        Card(gpu.name, gpu.total_mib, gpu.compute_capability, unoccupied(gpu).free_mib)
        for gpu in gpus
    )
    return tuple(node_of(f"node {number}", cards) for number in range(2, section.nodes + 1))


def fits_report(files: Collection[str]) -> bool:
    """Whether a report has room for the digests of these files."""
    size = sum(len(json.dumps(name)) + DIGEST_BYTES for name in files)
    return len(files) <= MAX_FILES and size <= MODEL_BYTES
