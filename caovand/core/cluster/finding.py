"""Format findings about two nodes."""

from __future__ import annotations

from caovand.core.cluster.node import NodeFacts
from caovand.core.facts.checks import CheckResult, CheckVerdict
from caovand.core.facts.inventory import version_numbers

GROUP = "cluster"


def finding(
    verdict: CheckVerdict, text: str, remedy: str = "", on: NodeFacts | None = None
) -> CheckResult:
    """A check result; `on` is the node where the remedy applies."""
    return CheckResult(GROUP, verdict, text, f"on {on.name}: {remedy}" if on else remedy)


def both_values(head: NodeFacts, at_head: str, worker: NodeFacts, at_worker: str) -> str:
    """Both nodes' values."""
    return f"{at_head or 'none'} on {head.name}, {at_worker or 'none'} on {worker.name}"


def older_release(head: NodeFacts, at_head: str, worker: NodeFacts, at_worker: str) -> NodeFacts:
    """The node with the older release; the worker if the numbers do not show it."""
    return head if version_numbers(at_head) < version_numbers(at_worker) else worker


def finding_text(result: CheckResult) -> str:
    """A finding and its remedy as one sentence."""
    return f"{result.text}; {result.remedy}"
