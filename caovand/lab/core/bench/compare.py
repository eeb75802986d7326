"""Compare two results of `caovanctl bench`, and decide which differences exceed noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from caovand.lab.core.bench import ranks, record

NOISE = 0.01
"""Significance level: a difference with a higher probability under noise counts as noise."""
FIGURES = ("prefill_tokens_per_s", "decode_tokens_per_s", "first_token_s", "token_s")
TIMES = frozenset({"first_token_s", "token_s"})
"""Figures for which less is better."""
CONDITIONS = ("fingerprint", "engine", "model", "mode", "mtp", "tokens", "seed", "texts")
"""Conditions that a fair comparison either changes on purpose or keeps."""


@dataclass(frozen=True)
class RoundSpread:
    """Median, minimum and maximum of the rounds."""

    median: float
    least: float
    most: float


@dataclass(frozen=True)
class FigureChange:
    """One metric in both results. `change` is (B - A) / A; `verdict` completes "B is ...".

    `chance` is the probability that noise alone causes such a difference, by Wilcoxon's exact
    rank-sum test over the rounds; None with too few rounds for any verdict.
    """

    prompt: int
    at_once: int
    figure: str
    a: RoundSpread
    b: RoundSpread
    change: float
    chance: float | None
    verdict: str


def rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[FigureChange]:
    """Every metric that both results have, by prompt length and concurrency."""
    others = {(cell["prompt"], cell["at_once"]): cell for cell in b["cells"]}
    for cell in a["cells"]:
        other = others.get((cell["prompt"], cell["at_once"]))
        for figure in FIGURES if other else ():
            ours, theirs = record.values(cell, figure), record.values(other or {}, figure)
            if ours and theirs:
                yield _row(cell, figure, ours, theirs)


def _row(cell: Mapping[str, Any], figure: str, a: list[float], b: list[float]) -> FigureChange:
    before, after = _spread(a), _spread(b)
    able = ranks.least_chance(len(a), len(b)) <= NOISE
    chance = ranks.chance(a, b) if able else None
    change = (after.median - before.median) / before.median if before.median else 0.0
    if chance is None:
        verdict = "too few rounds"
    elif chance > NOISE or not change:
        verdict = "noise"
    else:
        verdict = "better" if (change < 0) == (figure in TIMES) else "worse"
    place = cell["prompt"], cell["at_once"]
    return FigureChange(*place, figure, before, after, change, chance, verdict)


def _spread(values: list[float]) -> RoundSpread:
    return RoundSpread(median(values), min(values), max(values))


def differing_conditions(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The conditions that differ."""
    return {name: (a[name], b[name]) for name in CONDITIONS if a[name] != b[name]}
