"""Explain a complete log after the fact: phases, figures, the failure, advice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from caovand.core.engine.log import Explanation, PhaseTime
from caovand.core.healing.failure import Finding
from caovand.core.health.observation import LogMark
from caovand.core.plan import Plan, Setting
from caovand.core.secrets import hide
from caovand.engines.common.healing.backends import DRIVEN_BY, backend_in_log
from caovand.engines.common.healing.programs import RUN_BY, program_in_log
from caovand.engines.common.logs.signature import MAX_LINE, Signature, first
from caovand.engines.common.logs.wrapping import unwrap, without_colours

HIDDEN = "(hidden)"
_ANSWERED = re.compile(
    r"(?:^|.{0,120} )\"(?:GET|POST) /\S{0,300} HTTP/[\d.]{1,3}\" \d{3}\b"
    r"|(?:^|.{0,120} )\[GIN\] .{0,40}\| 200 \|.{0,100}\bPOST\b"
)
"""A server's line about a request that it answered (uvicorn, Ollama's GIN)."""
FigureSample = tuple[str, float]


@dataclass(frozen=True, kw_only=True)
class Explainer:
    """Explains the logs of one engine; call it with the text of a log file.

    `begins` matches the first line of a start, and `at_s` reads a line's time in seconds, None
    without one. `read` is the function of the engine's Log; the engine serves once the phase `last`
    is complete. `harmless` rows look like failures. `sample` reads one measurement of a figure that
    the log repeats: its median counts.
    """

    begins: Callable[[str], bool]
    at_s: Callable[[str], float | None]
    read: Callable[[str], tuple[LogMark | None, Mapping[str, Any]]]
    harmless: Iterable[Signature]
    find_cause: Callable[[Sequence[str], str], Finding | None]
    advise: Callable[[Finding], tuple[str, ...]]
    last: str = "http"
    sample: Callable[[str], FigureSample | None] = lambda line: None

    def __call__(self, text: str) -> Explanation:
        """Explain the text; of several starts, the last one, or the last that failed before it."""
        every = lines_of(text)
        ends = len(every)
        last = None
        for begin in (*reversed([n for n, line in enumerate(every) if n and self.begins(line)]), 0):
            explanation = self._start(every[begin:ends], begin)
            last = last or explanation
            if explanation.finding is not None or explanation.reached == "serving":
                return explanation if explanation.finding is not None else last
            ends = begin
        return last or self._start([], 0)

    def _start(self, lines: Sequence[str], begin: int) -> Explanation:
        """Explain the lines of one start, the first of which has the index `begin` in the text."""
        figures: dict[str, Any] = {}
        samples: dict[str, list[float]] = {}
        harmless: dict[str, int] = {}
        times: dict[str, list[float]] = {}
        reached = "resolve"
        for line in lines:
            mark, reported = self.read(line)
            for name, value in reported.items():
                figures.setdefault(name, value)
            if sample := self.sample(line):
                samples.setdefault(sample[0], []).append(sample[1])
            if row := first(self.harmless, line):
                harmless[row[0].id] = harmless.get(row[0].id, 0) + 1
            if reached == "resolve" and answers(line):
                reached = "serving"
            if mark is not None and mark.phase is not None and reached != "serving":
                serves = mark.phase == self.last and mark.progress == 1.0
                reached = "serving" if serves else mark.phase
                if (at_s := self.at_s(line)) is not None:
                    times.setdefault(mark.phase, []).append(at_s)
        figures |= {name: round(median(values), 2) for name, values in samples.items()}
        version = figures.pop("version", None)
        finding = self.find_cause(lines, "resolve")
        if finding is not None:
            finding = without_secrets(finding, finding.line + begin)
            if backend := backend_in_log(lines):
                finding = replace(finding, captures={**finding.captures, DRIVEN_BY: backend})
            if program := program_in_log(finding, lines):
                finding = replace(finding, captures={**finding.captures, RUN_BY: program})
        return Explanation(
            None if version is None else str(version), durations(times), reached, finding,
            self.advise(finding) if finding else (), figures, {}, harmless,
        )  # fmt: skip


def answers(line: str) -> bool:
    """Whether a line shows that the server answers requests: an excerpt may begin there."""
    return _ANSWERED.match(line[:MAX_LINE]) is not None


def lines_of(text: str) -> list[str]:
    """The lines of a log file as the engine printed them, without colours."""
    return [unwrap(line) for line in re.split(r"\r?\n", without_colours(text))]


def without_secrets(finding: Finding, line: int) -> Finding:
    """The finding at this line of the file, without anything that resembles a secret."""
    return replace(
        finding,
        line=line,
        text=hide(finding.text, mark=HIDDEN),
        captures={name: hide(value, mark=HIDDEN) for name, value in finding.captures.items()},
    )


def plan_from_log(configured: Mapping[str, Any]) -> Plan | None:
    """The plan that the arguments in a log describe; None without arguments."""
    if not configured:
        return None
    settings = {name: Setting(value, "user", "") for name, value in configured.items()}
    return Plan(str(configured.get("model", "")), settings, {}, device="cuda")


def durations(times: Mapping[str, Sequence[float]]) -> tuple[PhaseTime, ...]:
    """Each phase from its first mark to the next phase's."""
    names = list(times)
    phases = []
    for place, name in enumerate(names):
        end = times[names[place + 1]][0] if place + 1 < len(names) else times[name][-1]
        phases.append(PhaseTime(name, round(max(end - times[name][0], 0.0), 3)))
    return tuple(phases)
