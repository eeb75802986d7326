"""Which workers a start takes, and for how long it waits for those that are missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from caovand.core.cluster.finding import finding, in_words
from caovand.core.facts.checks import CheckResult
from caovand.core.healing.failure import Failure
from caovand.core.lifecycle.state import State
from caovand.daemon.cluster.members import Member
from caovand.daemon.shared import now


class Quorum:
    """How many nodes serve: all `nodes`, or fewer, at least `least`, once those were missing long.

    `wait_s` is how long that is. Numbers count the head.
    """

    def __init__(self, nodes: int, least: int, wait_s: float) -> None:
        self.nodes, self._least, self._wait_s = nodes, least, wait_s
        self._since: float | None = None

    @property
    def strict(self) -> bool:
        """Whether only all of them serve."""
        return self._least >= self.nodes

    def waits(self, here: int) -> bool:
        """Whether a start that so many nodes can take part in has to wait for the others."""
        if here >= self.nodes:
            return False
        if self._since is None:
            self._since = now()
        return here < self._least or not self._long(self._since)

    def chosen(self, count: int) -> None:
        """A start takes so many: with all of them, what will be missing is missing from then on.

        Before that a trial may still show that one of them cannot take part.
        """
        if count >= self.nodes:
            self._since = None

    def is_back(self, member: Member) -> bool:
        """Whether a worker has been here long enough for a restart that takes it in."""
        return self._long(member.since)

    def _long(self, since: float) -> bool:
        return now() - since >= self._wait_s


class Choice(NamedTuple):
    """Workers that can take part; `why` there are fewer than wanted, "" where there are not.

    `failure` is what that is: a node that is missing is waited for, one that is here and cannot
    take part needs somebody.
    """

    workers: dict[str, Member]
    why: str = ""
    failure: Failure = "node-missing"


def choose(
    members: Mapping[str, Member],
    found: Sequence[tuple[str, CheckResult]],
    wanted: int,
    also: Sequence[str] = (),
    ours: Collection[str] = (),
) -> Choice:
    """At most `wanted` workers that can take part.

    `found` are the findings about them by name, `also` other reasons why one may be missing. The
    rank of one of `ours` is no obstacle.
    """
    present = {
        name: member
        for name, member in sorted(members.items())
        if not member.lost and not member.report.stopped and member.facts is not None
    }
    wrong = {name: one for name, one in reversed(found) if one.verdict == "FAIL"}
    busy = [name for name, one in present.items() if one.report.running and name not in ours]
    fit = [name for name in present if name not in wrong and name not in busy]
    chosen = {name: present[name] for name in fit[:wanted]}
    if len(chosen) == wanted:
        return Choice(chosen)
    if (lacking := wanted - len(present)) > 0:
        away = [_obstacle(one) for name, one in members.items() if name not in present]
        why = "; ".join(filter(None, [*also, *away])) or "start caovan there"
        text = f"{lacking} of {wanted + 1} nodes missing: {why}"
        return Choice(chosen, text, "node-unfit" if any(also) else "node-missing")
    for name, first in ((name, one) for name, one in wrong.items() if name in present):
        text = f"node {name}: {in_words(first)}; see `caovanctl cluster check`"
        return Choice(chosen, text, "node-unfit")
    return Choice(chosen, "; ".join(unended(present[name]) for name in busy))


def unended(member: Member) -> str:
    """What keeps a worker that still has its rank of an earlier start."""
    return (
        f"node {member.report.name} still has its rank of the start before: {member.report.state}"
    )


def _obstacle(member: Member) -> str:
    """Why a worker that was heard of cannot take part."""
    if member.lost:
        return f"{member.report.name} is silent: see whether its machine and caovan are up"
    found = uncompared(member)
    return ": ".join(filter(None, [found.text, found.remedy]))


def uncompared(member: Member) -> CheckResult:
    """That a worker which is here cannot take part, since it was stopped or has sent no facts."""
    report = member.report
    return unfit(report.name, report.state, stopped=report.stopped, joined="has joined and ")


def unfit(name: str, state: str, *, stopped: bool, joined: str = "") -> CheckResult:
    """That nothing of a node can be compared; `state` is as in a report."""
    if stopped:
        return finding("FAIL", f"{name} was stopped by its operator", "`caovanctl start` there")
    if state in State.__members__:
        text = f"{name} {joined}has yet to inspect its engine, model and cards: {state}"
        return finding("FAIL", text, "check again in a minute")
    return finding("FAIL", f"{name} {joined}cannot serve: {state}")
