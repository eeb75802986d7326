"""InfiniBand and RoCE count only if all nodes have the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.cluster.checks import Measurements, Requirements, compare
from caovand.core.cluster.link import LinkState
from caovand.core.cluster.rdma import no_rdma
from caovand.core.facts.checks import CheckResult
from tests.core.nodes import HEAD, WORKER

FABRIC = {"mlx5_0": "InfiniBand"}
ROCE = {"mlx5_1": "Ethernet"}
NEAR = Measurements(0.0003, 0.0)
LINKED = Measurements(0.0003, 0.0, LinkState("10.0.0.1", 7071))


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ([{}, {}], "no node has InfiniBand or RoCE"),
        ([FABRIC, FABRIC], ""),
        ([FABRIC, {**FABRIC, **ROCE}], ""),
        ([FABRIC, {}], "NCCL finds no InfiniBand or RoCE on gpu1"),
        ([FABRIC, {}, {}], "NCCL finds no InfiniBand or RoCE on gpu1, gpu2"),
        ([FABRIC, ROCE], "the nodes have InfiniBand and RoCE, but not the same"),
    ],
)
def test_nodes_share_a_fabric_or_it_is_named_why_not(
    devices: list[dict[str, str]], why: str
) -> None:
    nodes = [replace(WORKER, name=f"gpu{at}", rdma=one) for at, one in enumerate(devices)]
    assert no_rdma(nodes) == why


def found(head: dict[str, Any], worker: dict[str, Any]) -> tuple[CheckResult, ...]:
    return compare(replace(HEAD, **head), replace(WORKER, **worker), NEAR, Requirements())


def linked(
    head: dict[str, str], worker: dict[str, str], tcp_only: bool = False, **more: Any
) -> tuple[CheckResult, ...]:
    """What is found over gigabit Ethernet between nodes with these devices."""
    nodes = (
        replace(HEAD, rdma=head, speed_mbit=1000, **more),
        replace(WORKER, rdma=worker, speed_mbit=1000, **more),
    )
    return compare(*nodes, LINKED, Requirements(all_reduces=True, tcp_only=tcp_only))


def test_a_slow_link_that_nccl_does_not_use_is_no_finding() -> None:
    (only,) = linked(FABRIC, {**FABRIC, **ROCE})
    assert only.verdict == "PASS"
    assert only.text.endswith(
        "open both ways, 1.0 Gbit/s by its interfaces, NCCL uses mlx5_0 (InfiniBand)"
    )
    assert [one.verdict for one in linked({}, {})] == ["WARN"] * 2, "on each node"
    assert [one.verdict for one in linked(FABRIC, ROCE)] == ["WARN"] * 3
    assert [one.verdict for one in linked(FABRIC, FABRIC, cards=())] == ["WARN"] * 2, "no NCCL"
    assert [one.verdict for one in linked(FABRIC, FABRIC, True)] == ["WARN"] * 2, "it may not"
    assert [one.verdict for one in linked(FABRIC, FABRIC, True, memlock_mib=8)] == ["WARN"] * 2


def test_the_figures_name_no_device_that_nccl_does_not_use() -> None:
    nodes = replace(HEAD, rdma=FABRIC), replace(WORKER, rdma=FABRIC)
    (only,) = compare(*nodes, LINKED, Requirements(tcp_only=True))
    assert only.text.endswith("its ports are open both ways, 10.0 Gbit/s by its interfaces")


def test_a_device_on_one_node_only_is_named_on_the_other() -> None:
    (only,) = found({"rdma": FABRIC}, {})
    assert (only.verdict, only.text, only.remedy) == (
        "WARN",
        "head1 has mlx5_0 (InfiniBand), gpu2 no InfiniBand or RoCE: NCCL uses TCP",
        "on gpu2: check `ibstat`, /dev/infiniband and the package libibverbs1",
    )
    (other,) = found({}, {"rdma": ROCE})
    assert other.text.startswith("head1 has no InfiniBand or RoCE, gpu2 mlx5_1 (Ethernet): ")
    assert other.remedy.startswith("on head1: ")


def test_devices_that_do_not_understand_each_other() -> None:
    (only,) = found({"rdma": FABRIC}, {"rdma": ROCE})
    assert only.remedy == "connect all nodes with the same one"


@pytest.mark.parametrize("mib", [8, 1023])
def test_little_memory_to_lock_is_named_where_it_is_needed(mib: int) -> None:
    (only,) = found({"rdma": FABRIC}, {"rdma": FABRIC, "memlock_mib": mib})
    assert (only.verdict, only.text, only.remedy) == (
        "WARN",
        f"a process on gpu2 can lock only {mib} MiB of memory, too little for NCCL's buffers on "
        "mlx5_0 (InfiniBand): a start can fail",
        "on gpu2: LimitMEMLOCK=infinity in the unit that starts caovand (in a container: --ulimit"
        " memlock=-1)",
    )


@pytest.mark.parametrize(
    "node",
    [
        {"rdma": FABRIC, "memlock_mib": None},
        {"rdma": FABRIC, "memlock_mib": 1024},
        {"rdma": {}, "memlock_mib": 8},
        {"rdma": FABRIC, "memlock_mib": 8, "cards": ()},
    ],
)
def test_no_finding_where_it_is_enough_or_nothing_locks_memory(node: dict[str, Any]) -> None:
    (only,) = found(node, node)
    assert only.verdict == "PASS"
