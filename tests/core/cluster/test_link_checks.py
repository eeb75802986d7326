"""Findings about a checked link: their exact wording and fix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.cluster.checks import Measurements, Requirements, compare
from caovand.core.cluster.link import LARGE_PACKETS_LOST, LinkState, ProbeReport, Trial
from caovand.core.cluster.link_checks import rate
from caovand.core.facts.checks import CheckResult
from tests.core.cluster.test_messages import failures, results, shown
from tests.core.nodes import HEAD, WORKER, none_fails

REPORT = ProbeReport("token", own="10.0.0.2", seen="10.0.0.2", joined="10.0.0.1")
LINK = LinkState("10.0.0.1", 7071, "10.0.0.1", connect_s=0.0001, report=REPORT)
SILENT = "no answer within 4 s"
TO_HEAD = "gpu2 cannot connect to head1 at port 7071 of 10.0.0.1, where ranks meet: "
TO_WORKER = "head1 cannot connect to gpu2 at 10.0.0.2"
ON_FREE_PORTS = f"{TO_WORKER}, where ranks listen on free ports: {SILENT}"
CONTAINER = "run its container with the host's network (docker run --network=host)"


def found(
    head: dict[str, Any] | None = None,
    worker: dict[str, Any] | None = None,
    *,
    sums: bool = False,
    bound: str = LINK.bound,
    **report: Any,
) -> tuple[CheckResult, ...]:
    """What is found over a link whose worker reports these changes.

    The trials that failed are named by keywords, such as `reach_worker`.
    """
    trials = {trial.replace("-", "_"): trial for trial in get_args(Trial)}
    failures = {trials[name]: report.pop(name) for name in [*report] if name in trials}
    link = replace(LINK, bound=bound, failures=failures, report=replace(REPORT, **report))
    one, other = replace(HEAD, **(head or {})), replace(WORKER, **(worker or {}))
    return compare(one, other, Measurements(0.0003, 0.0, link), Requirements(sums))


def test_what_is_known_of_a_good_link_is_named() -> None:
    (only,) = found()
    assert only.verdict == "PASS"
    assert only.text.endswith(
        "; 0.3 ms round trip, its ports are open both ways, 10.0 Gbit/s by its interfaces"
    )
    (only,) = found({"speed_mbit": 0})
    assert only.text.endswith("; 0.3 ms round trip, its ports are open both ways")


@pytest.mark.parametrize(
    ("firewall", "guard", "fix"),
    [
        ("ufw", "; ufw is active there", "sudo ufw allow from 10.0.0.1"),
        (
            "firewalld",
            "; firewalld is active there",
            "sudo firewall-cmd --permanent --zone=trusted --add-source=10.0.0.1 && sudo"
            " firewall-cmd --reload",
        ),
        (
            "nftables",
            "; nftables is active there",
            "add `ip saddr 10.0.0.1 accept` to the input chain in /etc/nftables.conf, then: "
            "sudo systemctl reload nftables",
        ),
        (
            "",
            "",
            "allow all TCP from 10.0.0.1 in its firewall and in any on the way: `sudo nft "
            "list ruleset` lists the rules there",
        ),
    ],
)
def test_a_worker_that_cannot_be_reached_is_told_how_to_open(
    firewall: str, guard: str, fix: str
) -> None:
    (only,) = results = found(worker={"firewall": firewall}, reach_worker=SILENT)
    assert only == CheckResult("cluster", "FAIL", f"{ON_FREE_PORTS}{guard}", f"on gpu2: {fix}")
    assert not none_fails(results)


def test_a_head_that_cannot_be_reached_opens_for_the_address_that_comes() -> None:
    (only,) = found({"firewall": "ufw"}, reach_rendezvous=SILENT)
    assert only.text == f"{TO_HEAD}{SILENT}; ufw is active there"
    assert only.remedy == "on head1: sudo ufw allow from 10.0.0.2"


@pytest.mark.parametrize(
    ("firewall", "fix"),
    [
        ("ufw", "sudo ufw allow from 10.0.0.2 && sudo ufw allow from 192.168.9.2"),
        (
            "firewalld",
            "sudo firewall-cmd --permanent --zone=trusted --add-source=10.0.0.2"
            " --add-source=192.168.9.2 && sudo firewall-cmd --reload",
        ),
        (
            "nftables",
            "add `ip saddr 10.0.0.2 accept` and `ip saddr 192.168.9.2 accept` to the input "
            "chain in /etc/nftables.conf, then: sudo systemctl reload nftables",
        ),
    ],
)
def test_a_head_opens_for_both_addresses_of_a_worker_on_two_networks(
    firewall: str, fix: str
) -> None:
    """One comes to where ranks meet; the other is that of its own [cluster] interface."""
    worker = {"address": "192.168.9.2", "interface": "ib0"}
    (only,) = found({"firewall": firewall}, worker, reach_rendezvous=SILENT, seen="")
    assert only.remedy == f"on head1: {fix}"


def test_a_worker_that_did_not_come_is_not_said_to_be_seen_or_reached_anywhere() -> None:
    worker = {"address": "192.168.9.2", "interface": "ib0"}
    _, back = found(None, worker, reach_rendezvous=SILENT, reach_worker=SILENT, seen="")
    assert back.text == (
        "head1 cannot connect to gpu2 at 192.168.9.2, where ranks listen on free ports: no answer"
        " within 4 s"
    )


def test_both_ways_are_named_at_once() -> None:
    assert [one.remedy[:8] for one in found(reach_rendezvous=SILENT, reach_worker=SILENT)] == [
        "on head1", "on gpu2:",
    ]  # fmt: skip


def test_addresses_of_ip_6_are_let_in_as_such() -> None:
    (only,) = found(
        {"address": "fd00::1"}, {"firewall": "nftables"}, reach_worker=SILENT, bound="fd00::1"
    )
    assert "add `ip6 saddr fd00::1 accept`" in only.remedy


def test_a_worker_behind_nat_is_named_by_both_addresses() -> None:
    (only,) = found(reach_worker=SILENT, own="172.17.0.2", seen="10.0.0.9")
    assert only.text == (
        f"{TO_WORKER}: {SILENT}. Its own connections come from 10.0.0.9: gpu2 is behind NAT, like"
        " a container with its own network"
    )
    assert only.remedy == f"on gpu2: {CONTAINER}"


def test_nat_that_keeps_nobody_out_is_no_finding() -> None:
    assert found(own="172.17.0.2", seen="10.0.0.9")[0].verdict == "PASS"


def test_a_head_that_is_joined_at_another_address_than_it_names() -> None:
    (only,) = found(reach_rendezvous=SILENT, bound="172.17.0.2")
    assert only.text == (
        f"{TO_HEAD}{SILENT}. It joined at 10.0.0.1: head1 has two addresses, or is behind NAT,"
        " like a container with its own network"
    )
    assert only.remedy == (
        f"on head1: set [cluster] head to an address that every worker can reach; {CONTAINER}"
    )


def test_a_head_whose_free_ports_are_closed_opens_more_than_the_one_where_ranks_meet() -> None:
    (only,) = found({"firewall": "ufw"}, reach_head=SILENT)
    assert only == CheckResult(
        "cluster", "FAIL",
        "gpu2 cannot connect to head1 at 10.0.0.1, where ranks listen on free ports: no answer"
        " within 4 s; ufw is active there",
        "on head1: sudo ufw allow from 10.0.0.2",
    )  # fmt: skip


OTHER = {"address": "172.17.0.1", "interface": "docker0"}


def test_a_head_whose_ranks_would_listen_where_no_worker_gets_to() -> None:
    (only,) = found(OTHER, reach_head="Connection refused")
    assert only == CheckResult(
        "cluster",
        "FAIL",
        "gpu2 cannot connect to head1 at 172.17.0.1 of docker0, where ranks listen on free ports:"
        " Connection refused; over 10.0.0.1 they can connect",
        "on head1: remove [cluster] interface, or set the interface of 10.0.0.1, and restart "
        "caovan; or, if docker0 does connect them: allow all TCP from 10.0.0.2 in its firewall "
        "and in any on the way: `sudo nft list ruleset` lists the rules there",
    )


def test_a_worker_whose_ranks_would_listen_where_the_head_does_not_get_to() -> None:
    (only,) = found(worker=OTHER, reach_worker=SILENT)
    assert only == CheckResult(
        "cluster",
        "FAIL",
        "head1 cannot connect to gpu2 at 172.17.0.1 of docker0, where ranks listen on free ports:"
        " no answer within 4 s; over 10.0.0.2 they can connect",
        "on gpu2: remove [cluster] interface, or set the interface of 10.0.0.2, and restart "
        "caovan; or, if docker0 does connect them: allow all TCP from 10.0.0.1 in its firewall "
        "and in any on the way: `sudo nft list ruleset` lists the rules there",
    )
    (only,) = found(worker=OTHER, reach_worker=SILENT, seen="10.0.0.9")
    assert "behind NAT" in only.text


def test_an_interface_of_the_heads_own_is_no_reason_for_a_closed_port() -> None:
    (only,) = found({**OTHER, "firewall": "ufw"}, reach_rendezvous=SILENT)
    assert only.text == f"{TO_HEAD}{SILENT}; ufw is active there"
    assert only.remedy == "on head1: sudo ufw allow from 10.0.0.2"


def test_packets_that_are_lost_for_their_size() -> None:
    (up,) = found(reach_head=LARGE_PACKETS_LOST)
    assert (up.verdict, up.text, up.remedy) == (
        "FAIL",
        "head1 receives no data from gpu2 over an open connection: packets of 9000 bytes, the "
        "MTU of eth0, seem to be dropped on the way",
        "on gpu2: sudo ip link set eth0 mtu 1500, or lower over a tunnel",
    )
    assert found(reach_head=LARGE_PACKETS_LOST, reach_rendezvous=LARGE_PACKETS_LOST) == (up,), (
        "once for both ports"
    )
    (down,) = found(reach_worker=LARGE_PACKETS_LOST)
    assert down.remedy.startswith("on head1: ")


@pytest.mark.parametrize(
    ("speed_mbit", "sums", "text"),
    [
        (100, False, "eth0 of gpu2 runs at 100 Mbit/s: long prompts wait"),
        (
            1000,
            True,
            "eth0 of gpu2 runs at 1.0 Gbit/s: all-reduces of every layer wait",
        ),
        (1000, False, ""),
        (5000, True, ""),
        (0, True, ""),
    ],
)
def test_an_interface_that_is_too_slow_is_named(speed_mbit: int, sums: bool, text: str) -> None:
    (only,) = results = found(worker={"speed_mbit": speed_mbit}, sums=sums)
    assert only.verdict == ("WARN" if text else "PASS")
    assert none_fails(results)
    if text:
        assert only.text == f"{text} for the link"
        assert only.remedy == (
            f"on gpu2: connect the nodes by {'10' if sums else '1'} Gbit/s or more, set [cluster]"
            " interface to that link's on each, and restart caovan there"
        )


def test_a_rate_is_written_as_interfaces_are() -> None:
    assert [rate(mbit * 125e3) for mbit in (0.4, 94, 941, 999.4, 1000, 9412)] == [
        "0 Mbit/s", "94 Mbit/s", "941 Mbit/s", "999 Mbit/s", "1.0 Gbit/s", "9.4 Gbit/s",
    ]  # fmt: skip


links = st.builds(
    LinkState, shown, st.integers(0, 65535), shown, failures, st.floats(0, 1e3), results
)


IN_USE = "Address already in use"
LISTENS = "head1 cannot listen at port 7071 of 10.0.0.1, where ranks meet: "


@pytest.mark.parametrize(
    ("link", "text", "remedy"),
    [
        (
            {"listen_rendezvous": IN_USE}, f"{LISTENS}{IN_USE}",
            "on head1: stop the process that uses the port (`sudo ss -ltnp sport = :7071`"
            " names it), or set another port in [cluster] head on every node",
        ),
        (
            {"listen_rendezvous": "Permission denied"}, f"{LISTENS}Permission denied",
            "on head1: set a port above 1023 in [cluster] head on every node",
        ),
        (
            {"listen_rendezvous": "Cannot assign requested address"},
            f"{LISTENS}Cannot assign requested address",
            "on head1: set [cluster] head to an address of this machine",
        ),
        (
            {"listen_worker": "Cannot assign requested address"},
            "gpu2 cannot listen at its own address 10.0.0.2, which its ranks need: Cannot "
            "assign requested address",
            "on gpu2: check that eth0 is up and has this address: `ip address show eth0`",
        ),
        (
            {"listen_head": "Cannot assign requested address"},
            "head1 cannot listen at its own address 10.0.0.1, which its ranks need: Cannot assign"
            " requested address",
            "on head1: check that eth0 is up and has this address: `ip address show eth0`",
        ),
        (
            {"report": "gpu2 reported nothing for 60 s"},
            "the link to gpu2 has not been measured: gpu2 reported nothing for 60 s",
            "on gpu2: `journalctl -u caovan` names the cause; sudo systemctl restart caovan",
        ),
    ],
)  # fmt: skip
def test_what_is_no_firewalls_fault_has_a_fix_of_its_own(
    link: dict[str, str], text: str, remedy: str
) -> None:
    (only,) = results = found({"firewall": "ufw"}, {"firewall": "ufw"}, **link)
    assert (only.text, only.remedy) == (text, remedy)
    assert not none_fails(results)


@given(links, st.booleans(), st.sampled_from(["", "ufw", "firewalld", "nftables", "other"]))
def test_any_link_can_be_judged(link: LinkState, sums: bool, firewall: str) -> None:
    head, worker = (replace(node, firewall=firewall) for node in (HEAD, WORKER))
    results = compare(head, worker, Measurements(0.0003, 0.0, link), Requirements(sums))
    assert none_fails(results) is link.works
    assert all("\n" not in one.text + one.remedy for one in results)
