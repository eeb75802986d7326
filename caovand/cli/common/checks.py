"""Print check results by group, each with its verdict and fix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from caovand.cli.common.console import console
from caovand.cli.common.errors import Exit
from caovand.core.facts.checks import CheckResult

COLOURS = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red"}


def report(checks: Sequence[CheckResult], *, as_json: bool) -> Exit:
    """Print the results; FAILED if any of them is FAIL."""
    described = document(checks)
    if as_json:
        print(json.dumps(described))
    else:
        _show(checks)
    return Exit.DONE if described["ok"] else Exit.FAILED


def document(checks: Sequence[CheckResult]) -> dict[str, Any]:
    """The results as plain JSON values."""
    ok = all(finding.verdict != "FAIL" for finding in checks)
    return {"ok": ok, "checks": [asdict(finding) for finding in checks]}


def _show(checks: Sequence[CheckResult]) -> None:
    out = console()
    group = ""
    for finding in checks:
        if finding.group != group:
            group = finding.group
            out.print(Text(group, style="bold"))
        line = Text("  ").append(finding.verdict, style=COLOURS[finding.verdict])
        out.print(line.append(f"  {finding.text}"))
        if finding.remedy and finding.verdict != "PASS":
            out.print(Text(f"        fix: {finding.remedy}", style="dim"))
