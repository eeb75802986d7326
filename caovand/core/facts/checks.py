"""Results of checks: the doctor's, and those of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckVerdict = Literal["PASS", "WARN", "FAIL"]


@dataclass(frozen=True)
class CheckResult:
    """One line of the doctor's report; `remedy` is empty if nothing needs doing."""

    group: str
    verdict: CheckVerdict
    text: str
    remedy: str = ""
