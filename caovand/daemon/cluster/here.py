"""The facts that this node reports to the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from caovand.adapters import node_facts
from caovand.adapters.system import processes
from caovand.core import addresses
from caovand.core.cluster.link import LinkState
from caovand.core.cluster.link import link_document as shown_link
from caovand.core.cluster.node import NodeFacts
from caovand.core.cluster.node_document import public_facts
from caovand.core.engine.log import TRANSPORT
from caovand.core.engine.record import UNTITLED, MultiNode
from caovand.core.facts.inventory import Inventory
from caovand.core.facts.occupancy import card_of
from caovand.core.problem import ProblemError
from caovand.daemon.cluster.part import ClusterSlotProtocol, Membership
from caovand.daemon.shared import now
from caovand.daemon.start.inspection import StartObstacle

RANKS_S = 2.0
SIZES = ("weights_gib", "kv_gib")
MAX_NETWORK = 120  # characters: one response covers 64 nodes
Known = tuple[tuple[str, int, int | None], ...]
"""Names of ranks, such as "TP1", each with its process's pid and its card, if known."""


async def facts(member: Membership, slot: ClusterSlotProtocol, inventory: Inventory) -> NodeFacts:
    """The facts of this node.

    Raises StartObstacle without a route to the head, and Unplannable if ranks can use no card here.
    """
    config, nodes = slot.config(), member.nodes
    head, _ = addresses.split_address(member.head)
    by_host_name = partial(nodes.by_host_name, dict(config.engine.env))
    cards = nodes.usable_cards(config, inventory)
    try:
        return await asyncio.to_thread(
            node_facts.read, member.name, inventory, head, config.cluster.interface,
            kind=slot.engine.name, cards=cards, cache=slot.cache, by_host_name=by_host_name,
        )  # fmt: skip
    except ProblemError as problem:
        raise StartObstacle("node-missing", str(problem), hold=True) from problem


def entry(
    name: str,
    state: str,
    since_s: float,
    facts: NodeFacts | None,
    ranks: Known,
    address: str = "",
    link: LinkState | None = None,
    sizes: Mapping[str, float] | None = None,
    network: str = "",
) -> dict[str, Any]:
    """A node's entry in the document of the op `cluster`.

    `link` is the link to the head, if checked; `sizes` is the ranks' reported memory, `network`
    what NCCL uses there.
    """
    gpus = [gpu for _, _, gpu in ranks]  # a list of its own, because one response covers 512 ranks
    return {
        "name": name,
        "address": address or (facts.address if facts else ""),
        "state": state,
        "since_s": round(since_s, 1),
        "facts": public_facts(facts),
        "link": shown_link(link),
        "ranks": [{"rank": rank, "pid": pid} for rank, pid, _ in ranks],
        "gpus": gpus if any(gpu is not None for gpu in gpus) else [],
        "reported": dict(sizes or {}),
        "network": network[:MAX_NETWORK],
    }


def sizes(slot: ClusterSlotProtocol) -> dict[str, float]:
    """The ranks' memory in GiB that the engine reports; for pipeline stages, by stage only."""
    reported = slot.reported()
    staged = {name.split("_", 2)[2] for name in reported if name.startswith("stage_")}
    return {
        name: float(size)
        for name, size in reported.items()
        if name.endswith(SIZES) and name not in staged
    }


def network(slot: ClusterSlotProtocol) -> str:
    """What NCCL reports to use towards other nodes, such as "0 -> 1 Socket/0"; "" if it reports
    nothing."""
    sends = (
        f"{name.removeprefix(TRANSPORT).replace('_', ' -> ')} {used}"
        for name, used in slot.reported().items()
        if name.startswith(TRANSPORT)
    )
    return ", ".join(sends)[:MAX_NETWORK]


class Ranks:
    """The engine's ranks on this node; `known` lists them by process title.

    Ranks without a descriptive title are recognised by their log lines, which scroll out of the
    log. Reading a title may hang together with its process.
    """

    def __init__(self, slot: ClusterSlotProtocol, nodes: MultiNode) -> None:
        self.known: Known = ()
        self._slot, self._nodes = slot, nodes
        self._next = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._by_log: dict[int, str] = {}

    def refresh(self) -> None:
        """Reread the process titles, at most once per RANKS_S."""
        if now() < self._next or (self._reading is not None and not self._reading.done()):
            return
        self._next = now() + RANKS_S
        if pids := self._slot.pids():
            self._reading = asyncio.ensure_future(self._read(pids))
        else:
            self.known = ()

    async def _read(self, pids: Sequence[int]) -> None:
        with contextlib.suppress(RuntimeError):  # too many threads: the next attempt follows soon
            titles = await asyncio.to_thread(lambda: [(processes.command_of(p), p) for p in pids])
            named = {pid: self._nodes.rank_of(title) for title, pid in titles}
            untitled = [pid for pid, rank in named.items() if rank == UNTITLED]
            if set(untitled) - self._by_log.keys():
                found = self._nodes.ranks_in(self._slot.lines())
                known = {**self._by_log, **found}
                self._by_log = {pid: rank for pid, rank in known.items() if pid in named}
            named.update({pid: self._by_log.get(pid, UNTITLED) for pid in untitled})
            samples = self._slot.samples()
            ranks = sorted((rank, pid) for pid, rank in named.items() if rank)
            self.known = tuple((rank, pid, card_of(pid, samples)) for rank, pid in ranks)
