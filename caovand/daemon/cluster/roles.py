"""Create a slot's part according to [cluster] role."""

from __future__ import annotations

import socket
from pathlib import Path

from caovand.adapters.network import cluster_key
from caovand.core.config.key import ConfigError
from caovand.core.problem import ProblemError
from caovand.daemon.cluster.head import HeadPart
from caovand.daemon.cluster.part import ClusterSlot, Membership, Part
from caovand.daemon.cluster.team import Quorum
from caovand.daemon.cluster.worker import WorkerPart


def part_of(slot: ClusterSlot) -> Part:
    """The slot's part. Raises ConfigError if [cluster] cannot be used."""
    section = slot.config.cluster
    if section.role == "off":
        return Part()
    nodes = slot.engine.nodes
    if nodes is None:
        fact = f"{slot.engine.title} can only serve from one machine"
        raise ConfigError(
            [f"[cluster] role is {section.role}, but {fact}; use vLLM, or remove the key"]
        )
    try:
        pairs = cluster_key.derive_pairs(cluster_key.read(Path(section.key_file)))
    except ProblemError as problem:
        raise ConfigError([f"[cluster] key_file: {problem}"]) from None
    membership = Membership(section.name or socket.gethostname(), section.head, pairs, nodes)
    if section.role == "worker":
        return WorkerPart(membership, slot)
    quorum = Quorum(section.nodes, section.min_nodes or section.nodes, section.wait_s)
    return HeadPart(membership, quorum, slot, section.executor)
