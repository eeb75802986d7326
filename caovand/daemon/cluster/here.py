"""The facts that this node reports to the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from caovand.adapters import node_facts
from caovand.adapters.engine.pump import RING_BYTES
from caovand.adapters.system import processes
from caovand.core import addresses
from caovand.core.cluster.link import LinkState, link_document
from caovand.core.cluster.node import NodeFacts
from caovand.core.cluster.node_document import public_facts
from caovand.core.engine.log import TRANSPORT
from caovand.core.engine.record import UNTITLED, MultiNode
from caovand.core.facts.inventory import Inventory
from caovand.core.facts.occupancy import card_of
from caovand.core.problem import ProblemError
from caovand.daemon.cluster.part import ClusterSlot, Membership
from caovand.daemon.shared import now
from caovand.daemon.start.inspection import StartObstacle

RANKS_S = 2.0
SIZES = ("weights_gib", "kv_gib")
MAX_NETWORK = 120  # characters: one response covers 64 nodes
KnownRanks = tuple[tuple[str, int, int | None], ...]
"""Names of ranks, such as "TP1", each with its process's pid and its card, if known."""


async def facts(membership: Membership, slot: ClusterSlot, inventory: Inventory) -> NodeFacts:
    """The facts of this node.

    Raises StartObstacle without a route to the head, and Unplannable if ranks can use no card here.
    """
    config, nodes = slot.config, membership.nodes
    head, _ = addresses.split_address(membership.head)
    by_host_name = partial(nodes.by_host_name, dict(config.engine.env))
    cards = nodes.usable_cards(config, inventory)
    try:
        return await asyncio.to_thread(
            node_facts.read, membership.name, inventory, head, config.cluster.interface,
            kind=slot.engine.name, cards=cards, cache=slot.directories.cache,
            by_host_name=by_host_name,
        )  # fmt: skip
    except ProblemError as problem:
        raise StartObstacle("node-missing", str(problem), hold=True) from problem


@dataclass(frozen=True)
class NodeEntry:
    """A node's entry in the document of the op `cluster`.

    It has been in its `state` for `since_s`. `link` is the link to the head, if probed; `sizes` is
    the ranks' reported memory, `network` what NCCL uses there.
    """

    name: str
    state: str
    since_s: float
    facts: NodeFacts | None = None
    ranks: KnownRanks = ()
    address: str = ""
    link: LinkState | None = None
    sizes: Mapping[str, float] = field(default_factory=dict)
    network: str = ""

    def document(self) -> dict[str, Any]:
        """Encode the entry."""
        # The cards have a list of their own, because one response covers 512 ranks.
        gpus = [gpu for _, _, gpu in self.ranks]
        return {
            "name": self.name,
            "address": self.address or (self.facts.address if self.facts else ""),
            "state": self.state,
            "since_s": round(self.since_s, 1),
            "facts": public_facts(self.facts),
            "link": link_document(self.link),
            "ranks": [{"rank": rank, "pid": pid} for rank, pid, _ in self.ranks],
            "gpus": gpus if any(gpu is not None for gpu in gpus) else [],
            "reported": dict(self.sizes),
            "network": self.network[:MAX_NETWORK],
        }


def own_entry(
    slot: ClusterSlot,
    name: str,
    since_s: float,
    facts: NodeFacts | None,
    ranks: KnownRanks,
    address: str = "",
) -> dict[str, Any]:
    """The entry of this node."""
    return NodeEntry(
        name, "here", since_s, facts, ranks, address, sizes=sizes(slot), network=network(slot)
    ).document()


def sizes(slot: ClusterSlot) -> dict[str, float]:
    """The ranks' memory in GiB that the engine reports; for pipeline stages, by stage only."""
    reported = dict(slot.run.reported)  # a thread reads the log
    staged = {name.split("_", 2)[2] for name in reported if name.startswith("stage_")}
    return {
        name: float(size)
        for name, size in reported.items()
        if name.endswith(SIZES) and name not in staged
    }


def network(slot: ClusterSlot) -> str:
    """The transports that NCCL reports towards other nodes, such as "0 -> 1 Socket/0"; "" if it
    reports none."""
    sends = (
        f"{name.removeprefix(TRANSPORT).replace('_', ' -> ')} {used}"
        for name, used in dict(slot.run.reported).items()
        if name.startswith(TRANSPORT)
    )
    return ", ".join(sends)[:MAX_NETWORK]


def engine_pids(slot: ClusterSlot) -> list[int]:
    """The engine's processes on this node."""
    child = slot.run.child
    return [process.pid for process in child.members] if child else []


class Ranks:
    """The engine's ranks on this node; `known` lists them by process title.

    Ranks without a descriptive title are recognised by their log lines, which scroll out of the
    log. Reading a title can hang if its process hangs.
    """

    def __init__(self, slot: ClusterSlot, nodes: MultiNode) -> None:
        self.known: KnownRanks = ()
        self._slot, self._nodes = slot, nodes
        self._next = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._by_log: dict[int, str] = {}

    def refresh(self) -> None:
        """Reread the process titles, at most once per RANKS_S."""
        if now() < self._next or (self._reading is not None and not self._reading.done()):
            return
        self._next = now() + RANKS_S
        if pids := engine_pids(self._slot):
            self._reading = asyncio.ensure_future(self._read(pids))
        else:
            self.known = ()

    async def _read(self, pids: Sequence[int]) -> None:
        with contextlib.suppress(RuntimeError):  # too many threads: the next attempt follows soon
            titles = await asyncio.to_thread(lambda: [(processes.command_of(p), p) for p in pids])
            named = {pid: self._nodes.rank_of(title) for title, pid in titles}
            untitled = [pid for pid, rank in named.items() if rank == UNTITLED]
            if set(untitled) - self._by_log.keys():
                found = self._nodes.ranks_in(self._slot.run.ring.since(0, RING_BYTES)[0])
                known = {**self._by_log, **found}
                self._by_log = {pid: rank for pid, rank in known.items() if pid in named}
            named.update({pid: self._by_log.get(pid, UNTITLED) for pid in untitled})
            samples = self._slot.run.samples()
            ranks = sorted((rank, pid) for pid, rank in named.items() if rank)
            self.known = tuple((rank, pid, card_of(pid, samples)) for rank, pid in ranks)
