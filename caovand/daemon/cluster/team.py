"""The workers of a start, each as it was when it was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from caovand.core.cluster.node import node_of
from caovand.core.facts.inventory import Node
from caovand.daemon.cluster.members import Member

_kind = attrgetter("kind")


class Team:
    """These workers, in the order of their ranks: the first has rank 1, after the head's 0."""

    def __init__(self, chosen: Mapping[str, Member]) -> None:
        self._chosen = dict(chosen)
        self.ranks = {name: rank for rank, name in enumerate(self._chosen, 1)}
        self.boots = {name: one.report.boot for name, one in self._chosen.items()}

    @property
    def count(self) -> int:
        """How many nodes that is with the head."""
        return 1 + len(self._chosen)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What a plan has to know of them, by rank."""
        known = ((name, one.facts) for name, one in self._chosen.items())
        return tuple(node_of(name, facts.cards, facts.ram_mib) for name, facts in known if facts)

    def outdated(self, members: Mapping[str, Member]) -> str:
        """Who is not as it was chosen, by what the head knows now; "" where all are."""
        found = ((name, self._change(name, members.get(name))) for name in self._chosen)
        return "; ".join(f"node {name}: {change}" for name, change in found if change)

    def _change(self, name: str, member: Member | None) -> str:
        if member is None or member.away:
            return "its link has ended"
        if member.report.boot != self.boots[name]:
            return "its daemon was started anew"
        same = standing(member) == standing(self._chosen[name])
        return "" if same else "it is not as it was chosen"


def standing(member: Member) -> Any:
    """The part of a worker's facts that a start depends on.

    It excludes free GPU memory, and the order of the cards, which follows free memory.
    """
    facts = member.facts and replace(
        member.facts, clock=0.0, shm_free_mib=0,
        cards=tuple(replace(card, free_mib=0) for card in sorted(member.facts.cards, key=_kind)),
    )  # fmt: skip
    return facts, member.report.running, member.report.stopped
