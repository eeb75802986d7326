"""Model tokens per second at each draft depth from measurements of some depths.

A step has a fixed cost and a cost per draft. A draft counts only if all drafts before it in the
step were accepted. Both costs and acceptance are learned from every measured depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, log1p
from statistics import fmean

from caovand.core.tuning.evidence import DEPTHS, Measurements, MeasurementsByBand

ENOUGH_STEPS = 1000  # with fewer, noise is as large as the difference between depths
NOISE = 0.05
"""Relative error of one depth's mean step time."""
_SHARES = tuple(percent / 100 for percent in (*range(0, 40, 2), *range(40, 201, 8)))
"""Possible cost of a draft relative to a step without any; large for a tiny model."""
_USUAL_SHARE, _SPREAD = 0.1, 0.08
"""A draft's usual relative cost and its spread; far higher costs are unusual, not impossible."""
_OF_A_BLOCK, _SPREAD_OF_A_BLOCK = 0.02, 0.02
"""The same for a drafter, which makes a block in one pass: a draft more is only verified."""


@dataclass(frozen=True)
class Estimate:
    """Modelled tokens per second of one request by depth, in each band with enough measurements.

    `weights` are the bands' shares of the tokens; `depths` have enough measurements, `tokens` in
    total.
    """

    by_band: Mapping[int, tuple[float, ...]]
    weights: Mapping[int, float]
    depths: tuple[int, ...]
    tokens: int

    @cached_property
    def per_s(self) -> tuple[float, ...]:
        """Rates over all these bands, weighted by each band's share."""
        return tuple(
            1 / sum(weight / self.by_band[band][depth] for band, weight in self.weights.items())
            for depth in range(len(next(iter(self.by_band.values()))))
        )

    def gain(self, depth: int, over: int) -> float:
        """Relative speed-up of `depth` over another one."""
        return self.per_s[depth] / self.per_s[over] - 1


def estimate(evidence: MeasurementsByBand, *depths: int, among: range = DEPTHS) -> Estimate | None:
    """Estimate of the depths `among` others, over the bands with enough measurements of each of
    `depths`; None without any.

    Acceptance is only known from steps that drafted.
    """
    known = dict[int, dict[int, Measurements]]()
    for (depth, band), seen in evidence.items():
        if seen.steps >= ENOUGH_STEPS and depth in among:
            known.setdefault(band, {})[depth] = seen
    known = {
        band: seen for band, seen in known.items() if max(seen) and all(d in seen for d in depths)
    }
    tokens = {band: sum(counts.tokens for counts in seen.values()) for band, seen in known.items()}
    if not known:
        return None
    return Estimate(
        {band: _rates(seen, among) for band, seen in known.items()},
        {band: count / sum(tokens.values()) for band, count in tokens.items()},
        tuple(sorted({depth for seen in known.values() for depth in seen})),
        round(sum(tokens.values())),
    )


def _rates(known: Mapping[int, Measurements], among: range) -> tuple[float, ...]:
    """Tokens per second at each depth.

    The model smooths the noise of each depth's measured steps; a measurement that is far off
    overrides it.
    """
    chances, speeds = _chances(known, among[-1]), _speeds(known, among)
    rates, tokens, chance = list[float](), 1.0, 1.0
    for depth in among:
        if depth:
            chance *= chances[depth - 1]
            tokens += chance
        speed = speeds[depth]
        if depth in known and abs(log(known[depth].step_s * speed)) > 3 * NOISE:
            speed = 1 / known[depth].step_s
        rates.append(tokens * speed)
    return tuple(rates)


def _chances(known: Mapping[int, Measurements], positions: int) -> list[float]:
    """Conditional acceptance probability of a draft after an accepted one, by position.

    Positions beyond the deepest measured one reuse its probability: acceptance seldom rises.
    """
    chances = list[float]()
    for position in range(positions):
        reached = accepted = 0.0
        for depth, seen in known.items():
            if position < min(depth, len(seen.accepted)):
                reached += seen.accepted[position - 1] if position else seen.steps
                accepted += seen.accepted[position]
        chance = min(accepted / reached, 1.0) if reached else (chances[-1] if chances else 0.0)
        chances.append(chance)
    return chances


def _speeds(known: Mapping[int, Measurements], among: range) -> list[float]:
    """Steps per second at each depth: the mean over all plausible costs, weighted by likelihood."""
    fits = list[tuple[float, float, float]]()
    head = len(among) <= len(DEPTHS)
    usual, spread = (_USUAL_SHARE, _SPREAD) if head else (_OF_A_BLOCK, _SPREAD_OF_A_BLOCK)
    for share in _SHARES:
        starts = [log(seen.step_s / (1 + share * depth)) for depth, seen in known.items()]
        middle = fmean(starts)
        misfit = sum((start - middle) ** 2 for start in starts) / NOISE**2
        unlikely = misfit / 2 + log1p(((share - usual) / spread) ** 2)
        fits.append((unlikely, share, exp(middle)))
    least = min(fits)[0]
    weights = [exp(least - unlikely) for unlikely, _, _ in fits]
    return [
        sum(
            weight / (start * (1 + share * depth))
            for weight, (_, share, start) in zip(weights, fits, strict=True)
        )
        / sum(weights)
        for depth in among
    ]
