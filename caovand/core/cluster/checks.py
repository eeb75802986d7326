"""Check whether a worker can serve a model together with its head.

FAIL means that the engine would stop, hang or answer wrongly; WARN means that it would be slow.
Findings name their nodes, so that a finding about the head alone is identical whichever worker it
is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote

from caovand.core.addresses import is_loopback
from caovand.core.cluster.finding import both_values, finding
from caovand.core.cluster.link import LinkState
from caovand.core.cluster.link_checks import describe_link, link_checks
from caovand.core.cluster.model_files import count_text, model_checks
from caovand.core.cluster.node import NodeFacts
from caovand.core.cluster.rdma import rdma_checks
from caovand.core.cluster.software import software_checks, versions_text
from caovand.core.engine.record import Package
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.shortfalls import LARGER_SHM, SMALL_SHM_MIB
from caovand.core.problem import Problem
from caovand.core.reporting.card_text import card_kinds

ETHERNET_MTU = 1500
LONG_TRIP_S = 0.002
LARGE_OFFSET_S = 1.0
SAME_CAOVAN = "install the same caovan on all nodes, then: sudo systemctl restart caovan"
"""The fix for an unreadable message."""


@dataclass(frozen=True)
class Measurements:
    """Measurements between the head and a worker.

    `round_trip_s` is the time of a message and its reply, `offset_s` how far the worker's clock is
    ahead of the head's. `link` says whether the nodes can reach each other, None until probed.
    """

    round_trip_s: float
    offset_s: float
    link: LinkState | None = None


@dataclass(frozen=True)
class Requirements:
    """The requirements of a start on its nodes.

    `all_reduces` says whether the plan sums layers over the link. `ranks` is the number of ranks
    per node, 0 if not planned yet. `package` starts the ranks; None if the engine does. `tcp_only`:
    NCCL uses TCP whatever two nodes have, because of another node or the operator's settings.
    """

    all_reduces: bool = False
    ranks: int = 0
    package: Package | None = None
    tcp_only: bool = False


def compare(
    head: NodeFacts, worker: NodeFacts, measured: Measurements, required: Requirements
) -> tuple[CheckResult, ...]:
    """Compare two nodes; one PASS if nothing differs or is wrong."""
    link, tcp_only, package = measured.link, required.tcp_only, required.package
    findings = (
        *software_checks(head, worker, package),
        *model_checks(head, worker),
        *_cards(head, worker, required.all_reduces),
        *_peer_access(head, worker, required.ranks),
        *_network(head, worker),
        *link_checks(head, worker, link, required.all_reduces, tcp_only),
        *rdma_checks(head, worker, tcp_only),
        *_shared_memory(head, worker),
        *_clock(head, worker, measured.offset_s),
        *_distance(head, worker, measured.round_trip_s),
    )
    if findings:
        return findings
    shared = (
        versions_text(head, package),
        _card_kinds(head),
        f"{count_text(len(head.model))} of the model",
    )
    equal = ", ".join(filter(None, shared))
    text = (
        f"{worker.name} agrees with {head.name}: {equal}; {_ms(measured.round_trip_s)} round "
        f"trip, {describe_link(head, worker, link, tcp_only)}"
    )
    return (finding("PASS", text),)


def duplicate_names(name: str) -> CheckResult:
    """Report that two machines use the same name."""
    remedy = "set [cluster] name on one of them, and restart caovan there"
    return finding("FAIL", f"two machines are named {name}", remedy)


def cannot_listen(problem: Problem) -> CheckResult:
    """Report that the head cannot listen for workers."""
    return finding("FAIL", problem.message, problem.remedy)


def unreadable_report(name: str, fact: object) -> CheckResult:
    """Report that a worker's report cannot be read; `name` is "" if not even that is readable."""
    who = f"node {name}" if name else "a worker"
    return finding("FAIL", f"cannot read what {who} reports: {fact}", SAME_CAOVAN)


def _cards(head: NodeFacts, worker: NodeFacts, all_reduces: bool) -> Iterator[CheckResult]:
    for node, other in ((head, worker), (worker, head)):
        if other.cards and not node.cards:
            text = f"{node.name} has no NVIDIA card, {other.name} has {_card_kinds(other)}"
            yield finding("FAIL", text, "check `nvidia-smi` and CUDA_VISIBLE_DEVICES", node)
            return
    at_head, at_worker = _card_kinds(head), _card_kinds(worker)
    if len(worker.cards) < len(head.cards):
        yield finding(
            "FAIL",
            f"{worker.name} offers {at_worker}, {head.name} {at_head}, but every node must run "
            "the same number of ranks",
            f"name as many cards as {worker.name} offers in [engine] gpus",
            head,
        )
    elif at_head != at_worker:
        dealt = "each stage gets layers according to its cards' memory and speed"
        where = "" if all_reduces else " where all-reduces cross the nodes"
        yield finding(
            "WARN",
            f"cards differ: {both_values(head, at_head, worker, at_worker)}; "
            f"{'the smallest card limits the share of all' if all_reduces else dealt}",
            f"use equal cards{where}, for example by [engine] gpus",
        )


def _peer_access(head: NodeFacts, worker: NodeFacts, ranks: int) -> Iterator[CheckResult]:
    """Find cards without peer access, which matters only to several ranks on one node."""
    if ranks == 1:
        return
    where = "" if ranks else "with several ranks per node "
    for node, other in ((head, worker), (worker, head)):
        if node.p2p is False and other.p2p:
            yield finding(
                "WARN",
                f"the cards of {other.name} can access each other's memory, those of {node.name} "
                f"cannot: {where}{node.name} slows down all nodes",
                "check `nvidia-smi topo -p2p r`, the IOMMU (`iommu=pt`) and ACS of the PCIe "
                "bridges; many consumer cards have no peer access",
                node,
            )


def _card_kinds(node: NodeFacts) -> str:
    return card_kinds((card.name, card.memory_mib) for card in node.cards)


def _network(head: NodeFacts, worker: NodeFacts) -> Iterator[CheckResult]:
    for node in (head, worker):
        if is_loopback(node.address):
            yield finding(
                "FAIL",
                f"{node.name} would advertise {node.address}, a loopback address that the other "
                "nodes cannot reach",
                "set [cluster] head to a network address, because /etc/hosts can map a name to "
                "loopback; or set [cluster] interface",
                node,
            )
        elif is_loopback(node.listens_at):
            yield finding(
                "FAIL",
                f"the ranks of {node.name} would listen at {node.listens_at}, to which its host "
                "name resolves: Gloo has no interface, because [engine] env removes it or its "
                "name is a single letter",
                "remove GLOO_SOCKET_IFNAME from [engine] env, or map the host name to "
                f"{node.address} in /etc/hosts",
                node,
            )
        if node.mtu < ETHERNET_MTU:
            yield finding(
                "WARN",
                f"the MTU of {node.interface} on {node.name} is {node.mtu}, less than Ethernet's:"
                " tunnels are slow",
                "set [cluster] interface to that of a direct link on every node, and restart "
                "caovan",
                node,
            )
    if head.mtu != worker.mtu:
        # Not FAIL: TCP and RDMA agree on the smaller one, so that no packet is too large.
        smaller, larger = (head, worker) if head.mtu < worker.mtu else (worker, head)
        yield finding(
            "WARN",
            f"MTU differs: {both_values(head, str(head.mtu), worker, str(worker.mtu))}; the "
            "smaller one applies",
            f"sudo ip link set {quote(smaller.interface)} mtu {larger.mtu}, if every switch "
            "between them forwards such packets",
            smaller,
        )


def _shared_memory(head: NodeFacts, worker: NodeFacts) -> Iterator[CheckResult]:
    for node in (head, worker):
        if node.shm_free_mib < SMALL_SHM_MIB:
            yield finding(
                "FAIL",
                f"/dev/shm on {node.name} has {node.shm_free_mib} MiB free; ranks and NCCL exchange"
                " data there",
                LARGER_SHM,
                node,
            )


def _clock(head: NodeFacts, worker: NodeFacts, offset_s: float) -> Iterator[CheckResult]:
    if abs(offset_s) > LARGE_OFFSET_S:
        side = "ahead of" if offset_s > 0 else "behind"
        yield finding(
            "WARN",
            f"the clock of {worker.name} is {abs(offset_s):.1f} s {side} that of {head.name}: "
            "their logs cannot be compared",
            "sudo timedatectl set-ntp true",
            worker,
        )


def _distance(head: NodeFacts, worker: NodeFacts, round_trip_s: float) -> Iterator[CheckResult]:
    if round_trip_s > LONG_TRIP_S:
        yield finding(
            "WARN",
            f"the round trip from {head.name} to {worker.name} takes {_ms(round_trip_s)}, and "
            "every layer waits for it",
            "connect them directly or through one switch",
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
