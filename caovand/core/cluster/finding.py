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


def both_values(head: NodeFacts, theirs: str, worker: NodeFacts, own: str) -> str:
    """Both nodes' values."""
    return f"{theirs or 'none'} on {head.name}, {own or 'none'} on {worker.name}"


def older_release(head: NodeFacts, theirs: str, worker: NodeFacts, own: str) -> NodeFacts:
    """The node with the older release; the worker if the numbers do not show it."""
    return head if version_numbers(theirs) < version_numbers(own) else worker


def finding_text(found: CheckResult) -> str:
    """A finding and its remedy as one sentence."""
    return f"{found.text}; {found.remedy}"
