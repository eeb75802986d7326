"""Tokens a second at each drafting depth, from what was measured at some of them.

A step costs a part that every depth has and a part for each draft; a draft counts only if all those
before it in the step were accepted. Both are learned from every depth that was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, log1p
from statistics import fmean

from caovand.core.tuning.evidence import DEPTHS, Evidence, Measurements

ENOUGH_STEPS = 1000  # the noise of fewer is as large as what a depth gains
NOISE = 0.05
"""How far the mean step of one depth is off, as a share."""
_SHARES = tuple(percent / 100 for percent in (*range(0, 40, 2), *range(40, 201, 8)))
"""What a draft may add to a step, as a share of a step without any: much for a tiny model."""
_USUAL_SHARE, _SPREAD = 0.1, 0.08
"""What it adds usually, and how far that varies; far more is unusual, not impossible."""


@dataclass(frozen=True)
class Estimate:
    """Modelled tokens a second of one request by depth, in each band that was measured enough.

    `weights` are the bands' shares of the tokens; `depths` were measured enough, with `tokens`.
    """

    by_band: Mapping[int, tuple[float, ...]]
    weights: Mapping[int, float]
    depths: tuple[int, ...]
    tokens: int

    @cached_property
    def per_s(self) -> tuple[float, ...]:
        """Over all these bands, in proportion to the requests in each."""
        return tuple(
            1 / sum(weight / self.by_band[band][depth] for band, weight in self.weights.items())
            for depth in DEPTHS
        )

    def gain(self, depth: int, over: int) -> float:
        """How much faster `depth` is than another one, as a share."""
        return self.per_s[depth] / self.per_s[over] - 1


def estimate(evidence: Evidence, *depths: int) -> Estimate | None:
    """The estimate over the bands in which each of `depths` was measured enough; None without any.

    Draft yield is only known for steps that drafted.
    """
    known = dict[int, dict[int, Measurements]]()
    for (depth, band), seen in evidence.items():
        if seen.steps >= ENOUGH_STEPS and depth in DEPTHS:
            known.setdefault(band, {})[depth] = seen
    known = {
        band: seen for band, seen in known.items() if max(seen) and all(d in seen for d in depths)
    }
    tokens = {band: sum(one.tokens for one in seen.values()) for band, seen in known.items()}
    if not known:
        return None
    return Estimate(
        {band: _rates(seen) for band, seen in known.items()},
        {band: count / sum(tokens.values()) for band, count in tokens.items()},
        tuple(sorted({depth for seen in known.values() for depth in seen})),
        round(sum(tokens.values())),
    )


def _rates(known: Mapping[int, Measurements]) -> tuple[float, ...]:
    """Tokens a second at each depth.

    The model smooths the noise of each depth's own step; one that is off by far more is believed.
    """
    chances, speeds = _chances(known), _speeds(known)
    rates, tokens, chance = list[float](), 1.0, 1.0
    for depth in DEPTHS:
        if depth:
            chance *= chances[depth - 1]
            tokens += chance
        speed = speeds[depth]
        if depth in known and abs(log(known[depth].step_s * speed)) > 3 * NOISE:
            speed = 1 / known[depth].step_s
        rates.append(tokens * speed)
    return tuple(rates)


def _chances(known: Mapping[int, Measurements]) -> list[float]:
    """The chance that a draft is accepted if the one before it was, by position.

    Beyond the deepest position measured it is that of the deepest: acceptance seldom rises.
    """
    found = list[float]()
    for position in range(DEPTHS[-1]):
        reached = accepted = 0.0
        for depth, seen in known.items():
            if position < min(depth, len(seen.accepted)):
                reached += seen.accepted[position - 1] if position else seen.steps
                accepted += seen.accepted[position]
        chance = min(accepted / reached, 1.0) if reached else (found[-1] if found else 0.0)
        found.append(chance)
    return found


def _speeds(known: Mapping[int, Measurements]) -> list[float]:
    """Steps a second at each depth: the mean of all that fits, weighed by how likely it is."""
    fits = list[tuple[float, float, float]]()
    for share in _SHARES:
        starts = [log(seen.step_s / (1 + share * depth)) for depth, seen in known.items()]
        middle = fmean(starts)
        misfit = sum((start - middle) ** 2 for start in starts) / NOISE**2
        unlikely = misfit / 2 + log1p(((share - _USUAL_SHARE) / _SPREAD) ** 2)
        fits.append((unlikely, share, exp(middle)))
    least = min(fits)[0]
    weights = [exp(least - unlikely) for unlikely, _, _ in fits]
    return [
        sum(
            weight / (start * (1 + share * depth))
            for weight, (_, share, start) in zip(weights, fits, strict=True)
        )
        / sum(weights)
        for depth in DEPTHS
    ]
