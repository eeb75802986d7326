"""InfiniBand and RoCE: NCCL uses them only if every node has them, with the same link layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from caovand.core.cluster.finding import finding
from caovand.core.cluster.node import NodeFacts
from caovand.core.facts.checks import CheckResult

NCCL_MIB = 1024
"""A generous bound on the memory that NCCL locks for a rank's buffers."""


def no_rdma(nodes: Collection[NodeFacts]) -> str:
    """The reason why these nodes cannot use InfiniBand or RoCE; "" if they can."""
    if not any(node.rdma for node in nodes):
        return "no node has InfiniBand or RoCE"
    if set.intersection(*(set(node.rdma.values()) for node in nodes)):
        return ""
    without = sorted(node.name for node in nodes if not node.rdma)
    if without:
        return f"NCCL finds no InfiniBand or RoCE on {', '.join(without)}"
    return "the nodes have InfiniBand and RoCE, but not the same"


def rdma_devices(head: NodeFacts, worker: NodeFacts, tcp_only: bool) -> str:
    """The RDMA devices that NCCL uses between two nodes, such as "mlx5_0 (InfiniBand)"; "" for TCP.

    `tcp_only` as in `checks.Requirements`.
    """
    if tcp_only or not head.cards or not worker.cards or no_rdma((head, worker)):
        return ""
    layers = set(worker.rdma.values())
    return _listed({name: layer for name, layer in head.rdma.items() if layer in layers})


def rdma_checks(head: NodeFacts, worker: NodeFacts, tcp_only: bool) -> Iterator[CheckResult]:
    """Find devices that only one node has, and memlock limits too low for NCCL.

    `tcp_only` as in `checks.Requirements`.
    """
    if not head.cards or not worker.cards:
        return
    obstacle = no_rdma((head, worker))
    if obstacle and (head.rdma or worker.rdma):
        lacking = next((node for node in (head, worker) if not node.rdma), None)
        yield finding(
            "WARN",
            f"{head.name} has {_listed(head.rdma)}, {worker.name} {_listed(worker.rdma)}: "
            "NCCL uses TCP",
            "check `ibstat`, /dev/infiniband and the package libibverbs1" if lacking else
            "connect all nodes with the same one",
            lacking,
        )  # fmt: skip
    if obstacle or tcp_only:
        return
    for node in (head, worker):
        if node.rdma and node.memlock_mib is not None and node.memlock_mib < NCCL_MIB:
            yield finding(
                "WARN",
                f"a process on {node.name} can lock only {node.memlock_mib} MiB of memory, too "
                f"little for NCCL's buffers on {_listed(node.rdma)}: a start can fail",
                "LimitMEMLOCK=infinity in the unit that starts caovand (in a container: --ulimit"
                " memlock=-1)",
                node,
            )


def _listed(devices: Mapping[str, str]) -> str:
    """Format devices, such as "mlx5_0 (InfiniBand)"."""
    devices_text = [f"{name} ({layer})" for name, layer in sorted(devices.items())]
    return ", ".join(devices_text) or "no InfiniBand or RoCE"
