"""The workers that a start uses, and how many it needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from caovand.core.cluster.finding import finding, finding_text
from caovand.core.cluster.link_checks import slowest_bytes_s
from caovand.core.cluster.node import NodeFacts, node_of
from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import Node
from caovand.core.facts.network import Network
from caovand.core.healing.failure import Failure
from caovand.core.lifecycle.state import State
from caovand.daemon.cluster.workers import Worker
from caovand.daemon.shared import now


class Quorum:
    """Number of nodes that must serve: all `nodes`, or at least `least` once the others have been
    missing for `wait_s`. The head counts as a node."""

    def __init__(self, nodes: int, least: int, wait_s: float) -> None:
        self.nodes, self._least, self._wait_s = nodes, least, wait_s
        self._since: float | None = None

    @property
    def strict(self) -> bool:
        """Whether all nodes are required."""
        return self._least >= self.nodes

    def must_wait(self, available: int) -> bool:
        """Whether a start must wait for more nodes than the `available` ones."""
        if available >= self.nodes:
            return False
        if self._since is None:
            self._since = now()
        return available < self._least or not self._long(self._since)

    def on_start(self, count: int) -> None:
        """Note that a start uses `count` nodes; with all of them, the wait for missing nodes is
        reset.

        Before a start, a check may still reject some of them.
        """
        if count >= self.nodes:
            self._since = None

    def justifies_restart(self, worker: Worker) -> bool:
        """Whether a worker has been present long enough to justify a restart that includes it."""
        return self._long(worker.since)

    def _long(self, since: float) -> bool:
        return now() - since >= self._wait_s


@dataclass(frozen=True)
class Team:
    """The workers of a start as they were when chosen, by rank: the first has rank 1, after the
    head's 0.

    `shortage` says why there are fewer than wanted, "" if there are enough. `failure` is its kind:
    the daemon waits for a missing node, but a present node that cannot take part needs someone to
    act.
    """

    workers: Mapping[str, Worker] = field(default_factory=dict)
    shortage: str = ""
    failure: Failure = "node-missing"

    @property
    def count(self) -> int:
        """Number of nodes, including the head."""
        return 1 + len(self.workers)

    @property
    def ranks(self) -> dict[str, int]:
        """The rank of each worker."""
        return {name: rank for rank, name in enumerate(self.workers, 1)}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in the planner's terms, by rank."""
        known = ((name, worker.facts) for name, worker in self.workers.items())
        return tuple(node_of(name, facts.cards, facts.ram_mib) for name, facts in known if facts)

    def outdated(self, workers: Mapping[str, Worker]) -> str:
        """Describe the workers that changed after they were chosen; "" if none did."""
        changes = ((name, _change(one, workers.get(name))) for name, one in self.workers.items())
        return "; ".join(f"node {name}: {change}" for name, change in changes if change)


def _change(chosen: Worker, worker: Worker | None) -> str:
    if worker is None or worker.absent:
        return "its link was lost"
    if worker.boot != chosen.boot:
        return "its daemon was restarted"
    return "" if worker.start_basis == chosen.start_basis else "it no longer matches the plan"


def choose(
    workers: Mapping[str, Worker],
    findings: Sequence[tuple[str, CheckResult]],
    wanted: int,
    also: Sequence[str] = (),
    ours: Collection[str] = (),
) -> Team:
    """Choose up to `wanted` workers that can take part.

    `findings` are about them, by name; `also` are other possible reasons why one is missing. A
    running rank of one of `ours` is no obstacle.
    """
    present = {
        name: worker
        for name, worker in sorted(workers.items())
        if not worker.lost and not worker.report.stopped and worker.facts is not None
    }
    unfit = {name: one for name, one in reversed(findings) if one.verdict == "FAIL"}
    busy = [name for name, one in present.items() if one.report.running and name not in ours]
    fit = [name for name in present if name not in unfit and name not in busy]
    chosen = {name: present[name] for name in fit[:wanted]}
    if len(chosen) == wanted:
        return Team(chosen)
    if (lacking := wanted - len(present)) > 0:
        obstacles = [_obstacle(one) for name, one in workers.items() if name not in present]
        reasons = "; ".join(filter(None, [*also, *obstacles])) or "start caovan there"
        text = f"{lacking} of {wanted + 1} nodes missing: {reasons}"
        return Team(chosen, text, "node-unfit" if any(also) else "node-missing")
    for name, first in unfit.items():
        if name in present:
            text = f"node {name}: {finding_text(first)}; see `caovanctl cluster check`"
            return Team(chosen, text, "node-unfit")
    return Team(chosen, "; ".join(unended_text(present[name]) for name in busy))


def network_of(head: NodeFacts | None, workers: Collection[Worker | None]) -> Network | None:
    """The network between the head and these workers.

    None if an interface's speed, or the round trip to a worker, is unknown.
    """
    facts = [head, *(worker and worker.facts for worker in workers)]
    known = [one for one in facts if one]
    trips_s = [worker.link.connect_s for worker in workers if worker and worker.link]
    if not workers or len(known) < len(facts) or len(trips_s) < len(workers) or not all(trips_s):
        return None
    bytes_s = slowest_bytes_s(known)
    return Network(bytes_s, max(trips_s)) if bytes_s else None


def unended_text(worker: Worker) -> str:
    """Describe a worker that still runs its rank of an earlier start."""
    return f"node {worker.name} still runs its rank of the previous start: {worker.report.state}"


def _obstacle(worker: Worker) -> str:
    """The reason why a known worker cannot take part."""
    if worker.lost:
        return f"{worker.name} is silent: check that its machine and caovan are up"
    result = cannot_compare(worker)
    return ": ".join(filter(None, [result.text, result.remedy]))


def cannot_compare(worker: Worker) -> CheckResult:
    """The finding about a present worker that cannot take part: it was stopped, or has sent no
    facts."""
    report = worker.report
    return lacks_facts(worker.name, report.state, stopped=report.stopped, joined="has joined and ")


def lacks_facts(name: str, state: str, *, stopped: bool, joined: str = "") -> CheckResult:
    """The finding about a node without comparable facts; `state` is as in a report."""
    if stopped:
        return finding("FAIL", f"{name} was stopped by its operator", "`caovanctl start` there")
    if state in State.__members__:
        text = f"{name} {joined}has yet to inspect its engine, model and cards: {state}"
        return finding("FAIL", text, "check again in a minute")
    return finding("FAIL", f"{name} {joined}cannot serve: {state}")
