"""Find what keeps ranks from reaching each other, and interfaces that are too slow for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from caovand.core.cluster.finding import finding
from caovand.core.cluster.link import LARGE_PACKETS_LOST, LinkState, Trial
from caovand.core.cluster.node import NodeFacts
from caovand.core.cluster.rdma import rdma_devices
from caovand.core.facts.checks import CheckResult

STAGES_BYTES_S = 100e6
"""Bandwidth that pipeline stages need: gigabit Ethernet less headers."""
ALL_REDUCE_BYTES_S = 500e6
"""Bandwidth that all-reduces of layers need: above 2.5 Gbit/s, below 5."""
MBIT = 125_000  # bytes
GOODPUT = 0.94
"""Share of a link's speed left after Ethernet, IP and TCP headers."""
_LISTENING = {
    "Address already in use": "stop the process that uses the port (`sudo ss -ltnp sport = "
    ":{port}` names it), or set another port in [cluster] head on every node",
    "Permission denied": "set a port above 1023 in [cluster] head on every node",
}
"""The fix for a rendezvous port that cannot be opened, by the kernel's message."""
LOGGED = "`journalctl -u caovan` names the cause"
FREE_PORTS = "where ranks listen on free ports"
HOST_NETWORK = "run its container with the host's network (docker run --network=host)"


def link_checks(
    head: NodeFacts,
    worker: NodeFacts,
    link: LinkState | None,
    all_reduces: bool,
    tcp_only: bool,
) -> Iterator[CheckResult]:
    """Check a link; `all_reduces` and `tcp_only` as in `checks.Requirements`."""
    if link is not None:
        yield from _failed_trials(head, worker, link)
    if not rdma_devices(head, worker, tcp_only):
        yield from _slow_interfaces(head, worker, all_reduces)


def _failed_trials(head: NodeFacts, worker: NodeFacts, link: LinkState) -> Iterator[CheckResult]:
    lost = {trial for trial, reason in link.failures.items() if reason == LARGE_PACKETS_LOST}
    if lost & {"reach-rendezvous", "reach-head"}:
        lost |= {"reach-rendezvous", "reach-head"}  # the same packets, whatever the port
        yield _lost_data(worker, head)
    if "reach-worker" in lost:
        yield _lost_data(head, worker)
    for trial, finding_of in _FINDINGS.items():
        if trial in link.failures and trial not in lost:
            yield finding_of(head, worker, link, link.failures[trial])


def _lost_data(sender: NodeFacts, receiver: NodeFacts) -> CheckResult:
    return finding(
        "FAIL",
        f"{receiver.name} receives no data from {sender.name} over an open connection: packets "
        f"of {sender.mtu} bytes, the MTU of {sender.interface}, seem to be dropped on the way",
        f"sudo ip link set {sender.interface} mtu 1500, or lower over a tunnel",
        sender,
    )


def describe_link(
    head: NodeFacts, worker: NodeFacts, link: LinkState | None, tcp_only: bool
) -> str:
    """Describe a working link in one line."""
    parts = ["its ports are open both ways" if link else "its ports have not been checked yet"]
    if bytes_s := slowest_bytes_s((head, worker)):
        parts.append(f"{rate(bytes_s / GOODPUT)} by its interfaces")
    if devices := rdma_devices(head, worker, tcp_only):
        parts.append(f"NCCL uses {devices}")
    return ", ".join(parts)


def slowest_bytes_s(nodes: Iterable[NodeFacts]) -> float:
    """TCP throughput of their slowest interface; 0 if the speed of any is unknown."""
    return min((node.speed_mbit * MBIT * GOODPUT for node in nodes), default=0.0)


def rate(bytes_s: float) -> str:
    """Format a bandwidth, such as "941 Mbit/s"."""
    mbit = bytes_s / MBIT
    return f"{mbit / 1000:.1f} Gbit/s" if mbit >= 1000 else f"{mbit:.0f} Mbit/s"


def _cannot_open_rendezvous(
    head: NodeFacts, worker: NodeFacts, link: LinkState, reason: str
) -> CheckResult:
    remedy = _LISTENING.get(reason, "set [cluster] head to an address of this machine")
    return finding(
        "FAIL",
        f"{head.name} cannot listen at port {link.port} of {link.host}, where ranks meet: {reason}",
        remedy.format(port=link.port),
        head,
    )


def _cannot_listen(node: NodeFacts, reason: str) -> CheckResult:
    return finding(
        "FAIL",
        f"{node.name} cannot listen at its own address {node.address}, which its ranks need: "
        f"{reason}",
        f"check that {node.interface} is up and has this address: `ip address show "
        f"{node.interface}`",
        node,
    )


def _no_report(head: NodeFacts, worker: NodeFacts, link: LinkState, reason: str) -> CheckResult:
    return finding(
        "FAIL",
        f"the link to {worker.name} has not been measured: {reason}",
        f"{LOGGED}; sudo systemctl restart caovan",
        worker,
    )


def _rendezvous_unreachable(
    head: NodeFacts, worker: NodeFacts, link: LinkState, reason: str
) -> CheckResult:
    text = f"{worker.name} cannot connect to {head.name} at port {link.port} of {link.host}"
    joined = link.report.joined
    if joined and joined != link.bound:
        return finding(
            "FAIL",
            f"{text}, where ranks meet: {reason}. It joined at {joined}: {head.name} has two "
            "addresses, or is behind NAT, like a container with its own network",
            f"set [cluster] head to an address that every worker can reach; {HOST_NETWORK}",
            head,
        )
    text = f"{text}, where ranks meet: {reason}{_firewall_note(head)}"
    # To the rendezvous, ranks connect from there; to the head's own address, from the worker's own.
    peers = dict.fromkeys(filter(None, (link.report.own, worker.address)))
    return finding("FAIL", text, _firewall_command(head, *peers), head)


def _head_unreachable(
    head: NodeFacts, worker: NodeFacts, link: LinkState, reason: str
) -> CheckResult:
    if link.bound != head.address:
        return _reachable_elsewhere(worker, head, reason, link.bound)
    return _closed_port(worker, head, reason)


def _worker_unreachable(
    head: NodeFacts, worker: NodeFacts, link: LinkState, reason: str
) -> CheckResult:
    own, seen = link.report.own, link.report.seen
    if seen and seen != own:
        return finding(
            "FAIL",
            f"{_cannot_connect(head, worker)}: {reason}. Its own connections come from {seen}: "
            f"{worker.name} is behind NAT, like a container with its own network",
            HOST_NETWORK,
            worker,
        )
    if seen and own != worker.address:
        return _reachable_elsewhere(head, worker, reason, own)
    return _closed_port(head, worker, reason)


def _reachable_elsewhere(
    sender: NodeFacts, receiver: NodeFacts, reason: str, known: str
) -> CheckResult:
    """A node's own address is unreachable, but another one, `known`, is reachable."""
    interface = receiver.interface
    return finding(
        "FAIL",
        f"{_cannot_connect(sender, receiver)} of {interface}, {FREE_PORTS}: "
        f"{reason}{_firewall_note(receiver)}; over {known} they can connect",
        f"remove [cluster] interface, or set the interface of {known}, and restart caovan; or, "
        f"if {interface} does connect them: {_firewall_command(receiver, sender.address)}",
        receiver,
    )


def _closed_port(sender: NodeFacts, receiver: NodeFacts, reason: str) -> CheckResult:
    text = f"{_cannot_connect(sender, receiver)}, {FREE_PORTS}: {reason}{_firewall_note(receiver)}"
    return finding("FAIL", text, _firewall_command(receiver, sender.address), receiver)


_FINDINGS: Mapping[Trial, Callable[[NodeFacts, NodeFacts, LinkState, str], CheckResult]] = {
    "listen-rendezvous": _cannot_open_rendezvous,
    "listen-head": lambda head, worker, link, reason: _cannot_listen(head, reason),
    "listen-worker": lambda head, worker, link, reason: _cannot_listen(worker, reason),
    "report": _no_report,
    "reach-rendezvous": _rendezvous_unreachable,
    "reach-head": _head_unreachable,
    "reach-worker": _worker_unreachable,
}
"""The finding about a trial that failed, from the head, the worker, their link and the reason."""


def _cannot_connect(sender: NodeFacts, receiver: NodeFacts) -> str:
    return f"{sender.name} cannot connect to {receiver.name} at {receiver.address}"


def _firewall_note(node: NodeFacts) -> str:
    return f"; {node.firewall} is active there" if node.firewall else ""


def _firewall_command(node: NodeFacts, *peers: str) -> str:
    """Command by which a node's firewall admits a peer with these addresses."""
    sources = " ".join(f"--add-source={peer}" for peer in peers)
    rules = " and ".join(
        f"`{'ip6' if ':' in peer else 'ip'} saddr {peer} accept`" for peer in peers
    )
    known = {
        "ufw": " && ".join(f"sudo ufw allow from {peer}" for peer in peers),
        "firewalld": f"sudo firewall-cmd --permanent --zone=trusted {sources} && sudo firewall-cmd"
        " --reload",
        "nftables": f"add {rules} to the input chain in /etc/nftables.conf, then: sudo systemctl "
        "reload nftables",
    }
    unknown = f"allow all TCP from {' and '.join(peers)} in its firewall and in any on the way"
    return known.get(node.firewall, f"{unknown}: `sudo nft list ruleset` lists the rules there")


def _slow_interfaces(
    head: NodeFacts, worker: NodeFacts, all_reduces: bool
) -> Iterator[CheckResult]:
    """Interfaces that are slower than ranks need."""
    need = ALL_REDUCE_BYTES_S if all_reduces else STAGES_BYTES_S
    for node in (head, worker):
        if 0 < slowest_bytes_s((node,)) < need:
            waits = "all-reduces of every layer wait" if all_reduces else "long prompts wait"
            yield finding(
                "WARN",
                f"{node.interface} of {node.name} runs at {rate(node.speed_mbit * MBIT)}: {waits}"
                " for the link",
                f"connect the nodes by {'10 Gbit/s' if all_reduces else '1 Gbit/s'} or more, set"
                " [cluster] interface to that link's on each, and restart caovan there",
                node,
            )
