"""The head's other nodes as its running daemon sees them, and assumptions about missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from caovand.cli.common.client import client_for
from caovand.cli.common.errors import CommandError
from caovand.core.cluster.node import node_of
from caovand.core.cluster.node_document import read_shown_cards
from caovand.core.document import BadDocument
from caovand.core.facts.inventory import Inventory, Node
from caovand.core.facts.network import Network
from caovand.core.problem import Problem

ASSUMED = "the other nodes are assumed to match this one, over a slow link"
UNASKED = "the head's daemon, which tracks them, was not asked"


@dataclass(frozen=True)
class OverNodes:
    """The machine with its other nodes, and why NCCL must not use InfiniBand or RoCE between them.

    `warning` names the assumptions about the nodes, None if there are none.
    """

    inventory: Inventory
    no_rdma: str = ""
    warning: Problem | None = None


def over_nodes(inventory: Inventory, runtime: Path | None, *, ask: bool) -> OverNodes:
    """The machine with the nodes that have joined the head on this machine, if `ask` permits the
    query.

    Nodes that have not joined are assumed to have the head's cards. Link measurements count only if
    the daemon has measured all links.
    """
    assumed = inventory.others
    if not assumed:
        return OverNodes(inventory)
    reason, remedy = UNASKED, ""
    try:
        answer = _ask_head(runtime) if ask else {}
        joined = _joined_workers(answer)[: len(assumed)]
    except CommandError as problem:
        answer, reason, remedy = {}, problem.message, problem.hint
    except BadDocument as problem:
        answer, reason = {}, f"cannot read a node's facts: {problem}"
    if not answer:
        return OverNodes(inventory, warning=Problem("", f"{ASSUMED}: {reason}", remedy))
    others = (*joined, *assumed[len(joined) :])
    if lacking := len(assumed) - len(joined):
        not_joined = Problem(
            "",
            f"{lacking} of {1 + len(assumed)} nodes have not joined: they are assumed to match"
            " this one, over a slow link",
            "see `caovanctl cluster nodes`",
        )
        return OverNodes(replace(inventory, others=others), warning=not_joined)
    link, no_rdma, ram_mib = _known_link(answer.get("planned"), [node.name for node in others])
    others = tuple(replace(node, ram_mib=ram_mib) for node in others)
    warning = (
        None
        if link
        else Problem(
            "",
            "the link between the nodes has not been checked, or its speed is unknown, so a "
            "slow link is assumed",
            "`caovanctl cluster check` checks it while no engine runs",
        )
    )
    return OverNodes(replace(inventory, others=others, link=link), no_rdma, warning)


def _ask_head(runtime: Path | None) -> Mapping[str, Any]:
    """Query the head's daemon; empty if it is no head."""
    with client_for(runtime) as client:
        answer = client.ask("cluster", answer_s=1.0)
    return answer if answer["role"] == "head" else {}


def _joined_workers(answer: Mapping[str, Any]) -> list[Node]:
    """The workers that have joined, by the ranks that a plan made now would use."""
    here = {
        node["name"]: node_of(node["name"], read_shown_cards(node["facts"]["cards"]))
        for node in answer.get("nodes", ())
        if node["state"] == "joined" and node["facts"]
    }
    first = (answer.get("planned") or {}).get("nodes", ())
    names = [*(name for name in first if name in here), *here]
    return [here[name] for name in dict.fromkeys(names)]


def _known_link(planned: Any, names: list[str]) -> tuple[Network | None, str, int | None]:
    """The link between these nodes, why it cannot use RDMA, and the least host memory; nothing if
    the daemon planned for other nodes."""
    if not planned or planned["nodes"] != names:
        return None, "", None
    link, no_rdma = planned["link"], planned["no_rdma"]
    network = link and Network(link["bytes_s"], link["round_trip_s"], not no_rdma)
    return network, no_rdma, planned.get("ram_mib")
