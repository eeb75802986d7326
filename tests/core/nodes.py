"""Nodes of a cluster that tests compare: two equal ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from caovand.core.cluster.node import NodeCard, NodeFacts
from caovand.core.facts.checks import CheckResult

T4 = NodeCard("Tesla T4", 15360, (7, 5), 15360)
HEAD = NodeFacts(
    name="head1",
    caovan="0.2.0",
    engine="vllm",
    version="0.33.0",
    torch="2.13.0",
    cuda="13.0",
    nccl="2.30.7",
    ray="2.60.0",
    flashinfer="0.7.1",
    plugin="0.2.0",
    nvcc=True,
    jit_cache="",
    kernels=("sm75 sampling", "sm75 attention-128-float16"),
    python="3.12.7",
    driver="580.95.05",
    cards=(T4, T4),
    address="10.0.0.1",
    interface="eth0",
    mtu=9000,
    speed_mbit=10000,
    listens_at="10.0.0.1",
    firewall="",
    rdma={},
    memlock_mib=None,
    p2p=True,
    ram_mib=64000,
    shm_free_mib=16000,
    model_folder="/srv/models/Qwen3-8B",
    model={"config.json": "a" * 64, "model.safetensors": "b" * 64},
    clock=1764000000.25,
)
WORKER = replace(HEAD, name="gpu2", address="10.0.0.2", listens_at="10.0.0.2", clock=1764000000.5)


def none_fails(results: Iterable[CheckResult]) -> bool:
    """Whether the nodes can serve together."""
    return all(result.verdict != "FAIL" for result in results)
