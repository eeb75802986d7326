"""Gather a node's facts: those of the inventory, the route to the head, and the model's digests."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from caovand import __version__
from caovand.adapters import model_folder
from caovand.adapters.network import own_address
from caovand.adapters.node_facts import digests, firewall, interfaces, rdma
from caovand.adapters.system import wall_clock
from caovand.core.cluster.node import NodeCard, NodeFacts, fits_report
from caovand.core.cluster.node_document import MAX_TEXT
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard
from caovand.core.printable import one_line
from caovand.core.problem import ProblemError, reason_of
from caovand.core.units import MIB

SHM = Path("/dev/shm")
KINDS: Mapping[int, str] = {socket.AF_INET: "IPv4", socket.AF_INET6: "global IPv6"}
COMPARE = "compare the model with that of the other nodes"


def read(
    name: str,
    inventory: Inventory,
    head_host: str,
    interface: str | None,
    *,
    kind: str,
    cards: tuple[Gpu, ...],
    cache: Path,
    by_host_name: Callable[[str], bool],
) -> NodeFacts:
    """Collect the facts of this machine as the node `name`; raises ProblemError.

    `kind` is the engine that it runs, `cards` the ones that engine may use.

    Blocking: the first time, it reads samples of the model's files. Without an `interface`, the
    interface of the route to the head is used. With `by_host_name`, ranks listen on the address
    that the host's name resolves to.
    """
    engine = inventory.engine
    address, used, mtu = _read_network(head_host, interface)
    folder, model = _read_model(inventory.model, cache)
    return NodeFacts(
        name=name,
        caovan=__version__,
        engine=kind,
        version=engine.version,
        torch=engine.torch,
        cuda=engine.cuda or "",
        nccl=engine.nccl or "",
        ray=engine.ray or "",
        flashinfer=engine.flashinfer or "",
        plugin=engine.plugin or "",
        nvcc=bool(engine.nvcc),
        jit_cache=engine.jit_cache or "",
        kernels=tuple(f"{card} {label}" for card, labels in engine.kernels for label in labels),
        python=engine.python_version,
        driver=inventory.gpus[0].driver if inventory.gpus else "",
        cards=tuple(
            NodeCard(gpu.name, gpu.total_mib, gpu.compute_capability, gpu.free_mib) for gpu in cards
        ),
        address=address,
        interface=used,
        mtu=mtu,
        speed_mbit=interfaces.speed_mbit(used),
        listens_at=interfaces.address_of_host_name() if by_host_name(used) else address,
        firewall=firewall.active_firewall(),
        rdma=rdma.devices(),
        memlock_mib=rdma.lockable_mib(),
        p2p=_all_reach_each_other(cards),
        ram_mib=inventory.host.ram_mib,
        shm_free_mib=_free_mib(SHM),
        model_folder=folder,
        model=model,
        clock=wall_clock.now(),
    )


def _all_reach_each_other(gpus: tuple[Gpu, ...]) -> bool | None:
    """Whether each card has peer access to every other; None for one card, or if unknown."""
    if len(gpus) < 2 or any(gpu.p2p is None for gpu in gpus):
        return None
    return all(other.index in (gpu.p2p or ()) for gpu in gpus for other in gpus if other is not gpu)


def _read_network(head_host: str, interface: str | None) -> tuple[str, str, int]:
    """Our address towards the head, its interface and the interface's MTU."""
    try:
        address, used = _find_route(head_host, interface)
        return address, used, interfaces.mtu(used)
    except OSError as problem:  # an interface that appeared or vanished meanwhile, or no netlink
        raise ProblemError(
            "read this machine's network interfaces",
            str(problem.strerror),
            "try again, or check RestrictAddressFamilies of the unit for AF_NETLINK",
        ) from problem


def _find_route(head_host: str, interface: str | None) -> tuple[str, str]:
    """Our address towards the head, and its interface. Raises OSError or ProblemError."""
    ends = _resolve_head(head_host)
    known = interfaces.addresses()
    if interface is not None:
        return _address_of(interface, [family for family, _ in ends], known), interface
    by_address = {entry.text: entry.interface for entry in reversed(known)}
    for _, host in ends:
        # we are the head; the route to ourselves may use another of our addresses
        if host in by_address:
            return host, by_address[host]
    address = _source(head_host, ends)
    used = by_address.get(address.partition("%")[0])
    if used is not None:
        return address, used
    raise ProblemError(
        f"find the interface that reaches the head {head_host}",
        f"no interface has {address}, which the route to the head uses",
        "set [cluster] interface",
    )


def _resolve_head(head_host: str) -> list[tuple[int, str]]:
    """Family and address of each entry for the head, in the system's order of preference."""
    try:
        addresses = socket.getaddrinfo(head_host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as problem:
        raise ProblemError(
            f"find the head {head_host}",
            reason_of(problem),
            "set [cluster] head to its address",
        ) from problem
    return [(family, str(end[0])) for family, *_, end in addresses]


def _source(head_host: str, ends: list[tuple[int, str]]) -> str:
    failure = OSError("it has no address")
    for family, host in ends:
        try:
            return own_address.address_towards(family, host)
        except OSError as problem:
            failure = problem
    raise ProblemError(
        f"reach the head {head_host}",
        str(failure.strerror or failure),
        "check the network (`ip route`), and [cluster] head",
    ) from failure


def _address_of(interface: str, families: list[int], known: list[interfaces.Address]) -> str:
    """The first address of an interface in the first of the head's families for which it has
    one."""
    for family in families:
        for address in known:
            if address.interface == interface and address.family == family and address.complete:
                return address.text
    names = [name for _, name in socket.if_nameindex()]
    kinds = " or ".join(sorted({KINDS[family] for family in families}))
    exists = interface in names
    raise ProblemError(
        f"use the network interface {interface}",
        f"it has no {kinds} address" if exists else f"this machine has only {', '.join(names)}",
        "set [cluster] interface to another one" + (", or add an address to it" * exists),
    )


def _free_mib(folder: Path) -> int:
    """Free MiB; 0 if the folder does not exist."""
    try:
        seen = os.statvfs(folder)
    except OSError:
        return 0
    return seen.f_frsize * seen.f_bavail // MIB


def _read_model(card: ModelCard, cache: Path) -> tuple[str, dict[str, str]]:
    """The model's folder, and the digests of its files."""
    folder = model_folder.folder_of(card)
    if folder is None:
        return "", {}
    try:
        parts = [name for name, _ in card.gguf.files] if card.gguf else digests.names_in(folder)
        if not fits_report(parts):
            raise ProblemError(
                COMPARE,
                f"{folder} has {len(parts)} files, more than a node can report",
                "set [model] path to a folder that contains only the model",
            )
        hashes = digests.digests(folder, parts, cache)
    except OSError as problem:
        closed = isinstance(problem, PermissionError)
        raise ProblemError(
            COMPARE,
            f"{problem.filename or folder}: {problem.strerror}",
            f"run `chmod -R a+rX {folder}`" if closed else "check the disk",
        ) from problem
    return str(folder), {one_line(name)[:MAX_TEXT]: digest for name, digest in hashes.items()}
