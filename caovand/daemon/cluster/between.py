"""What is known and wrong of the links between workers, which rings and stages send over, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations

from caovand.core.cluster.checks import agreed
from caovand.core.cluster.link import Link
from caovand.core.cluster.link_checks import is_slow, pair_checks
from caovand.core.cluster.node import NodeFacts
from caovand.core.facts.checks import CheckResult
from caovand.daemon.cluster.measuring import Links
from caovand.daemon.cluster.members import Member


class Between:
    """The links between these workers, as `links` knows them; `sums` and `tcp_only` as in
    `checks.compare`."""

    def __init__(
        self, members: Mapping[str, Member], links: Links, sums: bool, tcp_only: bool
    ) -> None:
        self._facts = {name: one.facts for name, one in members.items() if one.facts}
        self._boots = {name: one.report.boot for name, one in members.items()}
        self._links, self._use = links, (sums, tcp_only)

    def wants_trial(self) -> bool:
        """Whether one of them is not known to work, or was slower than it should be."""
        for pair in combinations(sorted(self._facts), 2):
            link = self._of(*pair)
            if link is None or not link.works or self.is_slow(*pair):
                return True
        return False

    def is_slow(self, one: str, other: str) -> bool:
        """Whether that link was slower than it should be, which may have passed."""
        link, facts = self._of(one, other), self._facts
        return link is not None and is_slow(facts[one], facts[other], link, *self._use)

    def findings(self) -> list[tuple[str, CheckResult]]:
        """What is wrong, each with the worker to do without: the one with more links that fail."""
        found = {
            pair: tuple(pair_checks(*self._of_both(pair), self._of(*pair), *self._use))
            for pair in combinations(sorted(self._facts), 2)
        }
        failing = Counter(
            name for pair, results in found.items() if not agreed(results) for name in pair
        )
        return [
            (max(pair, key=lambda name: (failing[name], name)), result)
            for pair, results in found.items()
            for result in results
        ]

    def _of(self, one: str, other: str) -> Link | None:
        return self._links.between(one, other, self._boots)

    def _of_both(self, pair: tuple[str, str]) -> tuple[NodeFacts, NodeFacts]:
        return self._facts[pair[0]], self._facts[pair[1]]
