"""Format an incident's report for people, for the command line and the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from caovand.core.reporting import answer_text, card_text

REPORT = "incident.json"
"""Name of the incident's report file."""
LOG_LINES, KERNEL_LINES = 10, 5  # the latest lines of another node
NodeReports = Mapping[str, Mapping[str, Any]]


def node_files(report: Mapping[str, Any], files: Mapping[str, int]) -> list[str]:
    """The incident's files with evidence from other nodes."""
    # Incidents from earlier releases have no nodes.
    return [node["file"] for node in report.get("nodes", ()) if node["file"] in files]


def lines(report: Mapping[str, Any], files: Mapping[str, int], nodes: NodeReports) -> Iterator[str]:
    """Format an incident; `nodes` are the documents in its `node_files`."""
    finding = report["finding"]
    yield f"incident {report['number']}, {report['at']}: {report['failure']}"
    yield f"  phase     {finding['phase'] or '-'}"
    yield f"  what      {finding['text']}"
    for request in report.get("requests", ()):
        yield (
            f"  request   {request}: crashed an engine twice, the second time with no other "
            "request running"
        )
    answer = report.get("answer")  # incidents from earlier releases have none
    yield from answer_text.evidence(answer) if answer else ()
    decision = report["decision"]
    if decision:
        yield f"  action    {decision['text'] or decision['verdict']}"
        for obstacle in decision["obstacles"]:
            yield f"            {obstacle}"
    yield from answer_text.remedy(answer) if answer else ()
    plan = report["plan"]
    if plan:
        yield f"  plan      {plan['model']}, rungs: {', '.join(plan['rungs']) or 'none'}"
    for process in report["processes"]:
        yield f"  process   {process['name']} (pid {process['pid']}) {process.get('State', '')}"
    cause = report["cause"]
    if cause:
        yield "  log"
        yield from (f"    {line}" for line in cause["before"][-5:])
        yield f"  > {cause['line']}"
        yield from (f"    {line}" for line in cause["after"][:5])
    yield f"  files     {', '.join(f'{name} ({size} B)' for name, size in files.items())}"
    for node in report.get("nodes", ()):
        yield from _node(node, nodes.get(node["file"]))


def _node(node: Mapping[str, Any], evidence: Mapping[str, Any] | None) -> Iterator[str]:
    """Evidence from another node, which arrives a few seconds after the rest."""
    title = f"node {node['name']}, rank {node['rank']}"
    if evidence is None:
        yield f"{title}: its evidence has not arrived"
        return
    if "missing" in evidence:
        yield f"{title}: no evidence: {evidence['missing']}"
        return
    finding = evidence["finding"]
    yield (
        f"{title}, {evidence['at']}: {finding['failure'] if finding else 'stopped with the others'}"
    )
    if finding:
        yield f"  phase     {finding['phase'] or '-'}"
        yield f"  what      {finding['text']}"
    if evidence["lacks"]:
        yield f"  lacks     {evidence['lacks']}"
    for card in evidence["cards"]:
        label = f"GPU {card['index']}"
        yield f"  {label:<9} {card_text.reading(card)}"
    for name, most in (("kernel", KERNEL_LINES), ("log", LOG_LINES)):
        if evidence[name]:
            yield f"  {name}"
            yield from (f"    {line}" for line in evidence[name][-most:])
    if evidence["stacks"]:
        yield f"  stacks    {len(evidence['stacks'])} lines in {node['file']}"
