"""Failures that people published, and how well `caovanctl explain` handles them.

`python -m tests.public_reports` prints the score of each set by engine and by cause, and lists the
mistakes. `tests/samples/README.md` explains how the sets are made and extended.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from caovand.core.engine.log import Explanation
from caovand.engines.explaining import answer
from caovand.engines.writer import explain_log

FOLDER = Path(__file__).parent / "samples" / "public"
SETS = ("first", "working", "aside", "later")
Verdict = Literal["right", "not known", "wrong"]
NOT_A_LOG = "none"
UNCITED = ("", "exception")
"""Signatures too generic to cite."""
MAX_LINE = 100
MAX_CITED = 2
CITED = Path(answer.__file__).with_name(answer.REPORTS_FILE)


@dataclass
class Report:
    """One report: where it was published, which program wrote the lines, and what they mean.

    Any of `failures` is right; "-" stands for none. The advice must match every pattern of `needs`
    and none of `never`.
    """

    source: str
    writer: str
    failures: tuple[str, ...]
    needs: list[str] = field(default_factory=list)
    never: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


@dataclass(frozen=True)
class Judged:
    """A report and the verdict on its diagnosis."""

    report: Report
    verdict: Verdict
    told: str


def reports(name: str) -> list[Report]:
    """The reports of a set, in the format of tests/samples/README.md."""
    found: list[Report] = []
    for path in sorted(FOLDER.glob(f"{name}*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            sign, _, text = line.partition(" ")
            if sign == "==":
                source, _, truth = text.rpartition(" | ")
                writer, _, failures = truth.partition(": ")
                found.append(Report(source, writer, tuple(failures.split())))
            elif sign in ("?", "!"):
                (found[-1].needs if sign == "?" else found[-1].never).append(text)
            elif sign == "|":
                found[-1].lines.append(text)
            elif line and sign != "#":
                raise ValueError(f"{path.name}: unknown line {line!r}")
    return found


def judged(report: Report) -> Judged:
    """Whether writer, failure and advice are right, honestly unknown, or wrong."""
    found = explain_log(report.text)
    if found is None:
        right = report.writer == NOT_A_LOG
        return Judged(report, "right" if right else "not known", "no log of an engine")
    writer, explanation = found
    finding = explanation.finding
    failure = finding.failure if finding else "-"
    told = f"{writer.name}: {failure} ({finding.signature if finding else ''})"
    return Judged(report, _verdict(report, writer.name, failure, explanation), told)


def _verdict(report: Report, writer: str, failure: str, explanation: Explanation) -> Verdict:
    advice = "\n".join(explanation.advice)
    if failure in report.failures and (report.writer == "any" or writer in (report.writer, "")):
        fits = all(re.search(pattern, advice) for pattern in report.needs)
        return "right" if fits and not _spoiled(report, advice) else "wrong"
    unknown = failure in ("-", "unknown") and not _spoiled(report, advice)
    return "not known" if unknown else "wrong"


def _spoiled(report: Report, advice: str) -> bool:
    return any(re.search(pattern, advice) for pattern in report.never)


def table(every: Iterable[Judged], cause: bool) -> Iterator[str]:
    """Counts by engine or by cause, as a Markdown table."""
    counts: dict[str, Counter[str]] = {}
    for one in every:
        name = f"`{one.report.failures[0]}`" if cause else one.report.writer
        counts.setdefault(name, Counter())[one.verdict] += 1
    yield f"| {'cause' if cause else 'engine'} | reports | right | not known | wrong |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, count in sorted(counts.items(), key=lambda row: -row[1].total()):
        cells = (count.total(), count["right"], count["not known"], count["wrong"])
        yield f"| {name} | {' | '.join(map(str, cells))} |"


def shortened(words: Sequence[str]) -> str:
    """As many of the words as fit on one line."""
    line = " ".join(words)
    return line if len(line) <= MAX_LINE else shortened(words[:-1])


def cited() -> str:
    """The table that `explain` cites: correctly diagnosed reports by cause.

    It leaves out the held-out set, so that the table does not reveal it.
    """
    rows: dict[tuple[str, str, str], list[str]] = {}
    for report in (report for name in SETS if name != "aside" for report in reports(name)):
        found = explain_log(report.text)
        finding = found[1].finding if found else None
        if found is None or finding is None or finding.signature in UNCITED:
            continue
        if finding.failure == "unknown":
            continue
        if judged(report).verdict == "right":
            key = (finding.failure, finding.signature, found[0].name or report.writer)
            rows.setdefault(key, []).append(report.source.split(", ")[0])
    lines = (shortened((*key, *cell[:MAX_CITED])) for key, cell in sorted(rows.items()))
    return "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Print the scores; for the held-out set, only the counts."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cite", action="store_true", help="write the table of cited reports")
    parser.add_argument("sets", nargs="*", default=SETS, metavar="SET")
    args = parser.parse_args()
    if args.cite:
        CITED.write_text(cited(), encoding="utf-8")
        return
    for name in args.sets:
        every = [judged(report) for report in reports(name)]
        counts = Counter(one.verdict for one in every)
        print(f"\n## {name}: {len(every)} reports, {dict(counts)}")
        for line in (*table(every, False), "", *table(every, True)):
            print(line)
        for one in every if name != "aside" else ():
            if one.verdict != "right":
                print(f"{one.verdict}: {one.report.source}: {one.told}")


if __name__ == "__main__":
    main()
