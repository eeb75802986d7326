"""The workers that a start uses."""

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


@dataclass(frozen=True)
class Team:
    """The workers of a start as they were when chosen, by rank: the first has rank 1, after the
    head's 0.

    `shortage` says why there are fewer than wanted, "" if there are enough. `failure` is its kind:
    a missing node is waited for, while a present node that cannot take part needs someone.
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
    if worker is None or worker.away:
        return "its link has ended"
    if worker.boot != chosen.boot:
        return "its daemon was restarted"
    return "" if worker.standing == chosen.standing else "it is not as it was chosen"


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
    return f"node {worker.name} still has its rank of the start before: {worker.report.state}"


def _obstacle(worker: Worker) -> str:
    """The reason why a known worker cannot take part."""
    if worker.lost:
        return f"{worker.name} is silent: see whether its machine and caovan are up"
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
