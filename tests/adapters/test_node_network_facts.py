"""Facts that decide whether nodes reach each other: speed, firewall, fabric, host name, cards."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.files import safe_files
from caovand.adapters.node_facts import firewall, gather, interfaces, rdma
from caovand.adapters.privileges import capabilities
from caovand.core.facts.inventory import Inventory
from tests.adapters.test_node_facts import ENGINE
from tests.core.machines import ABSENT, HOST, named
from tests.daemon_process import ROOT
from tests.two_nodes import two_nodes

# -- the interface ---


SPEEDS = """
from caovand.adapters.node_facts.interfaces import speed_mbit
print(speed_mbit("eth0"), speed_mbit("lo"))
"""


def test_the_speed_is_the_interfaces_own() -> None:
    with two_nodes() as nodes:
        done = nodes.run(0, "env", f"PYTHONPATH={ROOT}", sys.executable, "-c", SPEEDS)
    assert done.stdout == "10000 0\n", done.stderr


def test_an_interface_that_is_gone_has_no_speed() -> None:
    assert interfaces.speed_mbit("none") == 0


@pytest.mark.parametrize(
    ("low", "high", "speed"), [(10000, 0, 10000), (34464, 1, 100000), (0xFFFF, 0xFFFF, 0)]
)
def test_speeds_beyond_16_bits_and_unknown_ones(
    low: int, high: int, speed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(asked: socket.socket, question: int, request: bytes) -> None:
        at = interfaces._POINTER.unpack(request)[1]
        fields = [0] * 18
        fields[interfaces._SPEED], fields[interfaces._SPEED_HIGH] = low, high
        packed = interfaces._SETTINGS.pack(*fields)
        ctypes.memmove(at, packed, len(packed))

    monkeypatch.setattr("fcntl.ioctl", answer)
    assert interfaces.speed_mbit("eth0") == speed


# -- the firewall ---

DROPS = """#!/usr/sbin/nft -f
flush ruleset
table inet filter {
    chain input {
        type filter hook input priority filter; policy drop;
        tcp dport { 22, 80 } accept
    }
}
"""


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """/etc, with no process that is a firewall."""
    monkeypatch.setattr(firewall, "ETC", tmp_path)
    monkeypatch.setattr(firewall.processes, "all_processes", list)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_any_sign_no_firewall_is_named(etc: Path) -> None:
    assert firewall.active_firewall() == ""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# comment\nENABLED=yes\nLOGLEVEL=low\n", "ufw"),
        ("ENABLED=no\n", ""),
        ("#ENABLED=yes\n", ""),
    ],
)
def test_ufw_is_on_where_its_file_says_so(etc: Path, text: str, found: str) -> None:
    write(etc / "ufw/ufw.conf", text)
    assert firewall.active_firewall() == found


def test_firewalld_is_on_while_it_runs(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = firewall.processes.read(os.getpid())
    assert process is not None
    monkeypatch.setattr(
        firewall.processes, "all_processes", lambda: [replace(process, name="firewalld")]
    )
    assert firewall.active_firewall() == "firewalld"


@pytest.mark.parametrize(
    ("text", "enabled", "found"),
    [
        (DROPS, True, "nftables"),
        (DROPS, False, ""),
        (DROPS.replace("drop", "accept"), True, ""),
        (DROPS.replace("input", "forward"), True, ""),
        (DROPS.replace("policy drop", "# policy drop"), True, ""),
        ("", True, ""),
    ],
)
def test_nftables_is_on_where_its_service_drops_what_comes(
    etc: Path, text: str, enabled: bool, found: str
) -> None:
    write(etc / "nftables.conf", text)
    if enabled:
        write(etc / "systemd/system/sysinit.target.wants/nftables.service", "")
    assert firewall.active_firewall() == found


def test_rules_that_are_not_ours_to_read_are_none(
    etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> bytes:
        raise PermissionError

    monkeypatch.setattr(safe_files, "read", closed)
    assert firewall.active_firewall() == ""


# -- InfiniBand and RoCE ---


@pytest.fixture
def fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with the library and no device."""
    monkeypatch.setattr(rdma, "SYS", tmp_path / "sys")
    monkeypatch.setattr(rdma, "DEV", tmp_path / "dev")
    monkeypatch.setattr(rdma, "_has_library", lambda: True)
    return tmp_path


def device(root: Path, number: int, *, state: str = "4: ACTIVE", layer: str = "InfiniBand") -> Path:
    """The device mlx5_N; the file that opens it."""
    name = f"mlx5_{number}"
    write(root / f"sys/infiniband/{name}/ports/1/state", f"{state}\n")
    write(root / f"sys/infiniband/{name}/ports/1/link_layer", f"{layer}\n")
    write(root / f"sys/infiniband_verbs/uverbs{number}/ibdev", f"{name}\n")
    write(root / "sys/infiniband_verbs/abi_version", "6\n")
    opened = root / f"dev/uverbs{number}"
    write(opened, "")
    return opened


def test_devices_that_are_up_are_named_with_their_layer(fabric: Path) -> None:
    assert rdma.devices() == {}
    device(fabric, 0)
    device(fabric, 1, layer="Ethernet")
    device(fabric, 2, state="1: DOWN")
    assert rdma.devices() == {"mlx5_0": "InfiniBand", "mlx5_1": "Ethernet"}


def test_a_device_that_a_container_does_not_show_is_none(fabric: Path) -> None:
    device(fabric, 0).unlink()
    assert rdma.devices() == {}


def test_without_the_library_there_is_no_device(
    fabric: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device(fabric, 0)
    monkeypatch.undo()
    monkeypatch.setattr(rdma, "SYS", fabric / "sys")
    monkeypatch.setattr(rdma, "DEV", fabric / "dev")
    monkeypatch.setattr(rdma, "LIBRARY", "libof.no.machine.so.1")
    assert rdma.devices() == {}
    monkeypatch.setattr(rdma, "LIBRARY", "libc.so.6")
    assert rdma.devices() == {"mlx5_0": "InfiniBand"}


@pytest.mark.parametrize(
    ("effective", "limit", "found"),
    [
        ("0000000000000000", 8 << 20, 8),
        ("0000000000000000", resource.RLIM_INFINITY, None),
        ("000001ffffffffff", 8 << 20, None),
        ("0000000000003fff", 8 << 20, 8),
        ("0000000000004000", 8 << 20, None),
    ],
)
def test_the_memory_to_lock_has_a_limit_unless_a_capability_lifts_it(
    effective: str, limit: int, found: int | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    write(tmp_path / "status", f"Name:\tpython\nCapInh:\t0\nCapEff:\t{effective}\nCapBnd:\t0\n")
    monkeypatch.setattr(capabilities, "STATUS", tmp_path / "status")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert rdma.lockable_mib() == found


# -- the host's name ---


def resolving(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    def resolve(*_: object, **__: object) -> list[Any]:
        if not hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        (("127.0.1.1",), "127.0.1.1"),
        (("192.0.2.1", "127.0.0.1"), "127.0.0.1"),  # the first is another machine's
        (("192.0.2.1",), "127.0.0.1"),
        ((), "127.0.0.1"),
    ],
)
def test_the_hosts_name_means_what_gloo_takes_it_for(
    hosts: tuple[str, ...], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, *hosts)
    assert interfaces.address_of_host_name() == found


@pytest.mark.parametrize("by_name", [True, False])
def test_only_ranks_without_an_interface_go_by_that_name(
    by_name: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interfaces, "address_of_host_name", lambda: "127.0.1.1")
    asked: list[str] = []

    def ask(interface: str) -> bool:
        asked.append(interface)
        return by_name

    inventory = Inventory((), HOST, ENGINE, ABSENT)
    facts = gather.read(
        "gpu2",
        inventory,
        "127.0.0.1",
        None,
        kind="vllm",
        cards=(),
        cache=tmp_path,
        by_host_name=ask,
    )
    assert asked == ["lo"]
    assert facts.listens_at == ("127.0.1.1" if by_name else "127.0.0.1")


# -- the cards ---


@pytest.mark.parametrize(
    ("peers", "found"),
    [
        (((1,), (0,)), True),
        (((1,), ()), False),
        (((), ()), False),
        ((None, (0,)), None),
        (((),), None),
        ((), None),
        (((1, 2), (0, 2), (0, 1)), True),
        (((1, 2), (0, 2), (0,)), False),
    ],
)
def test_cards_reach_each_other_if_each_reaches_all(
    peers: tuple[tuple[int, ...] | None, ...], found: bool | None
) -> None:
    gpus = named("T4", len(peers))
    linked = (replace(gpu, p2p=one) for gpu, one in zip(gpus, peers, strict=True))
    assert gather._all_reach_each_other(tuple(linked)) is found
