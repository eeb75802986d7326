"""Card activity of the last five minutes, for charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caovand.core.figures.track import RECENT_S, round_figure
from caovand.core.health.observation import GpuSample

STEP_S = 4.0
"""Minimum interval between rounds: cards may be sampled twice a second."""
FIGURES = ("power_w", "utilization", "temperature")


@dataclass(frozen=True)
class SampleRound:
    """Each card's FIGURES at one moment, by card index."""

    at: float
    cards: Mapping[int, tuple[float | None, ...]]


def follow(
    rounds: tuple[SampleRound, ...], samples: Iterable[GpuSample]
) -> tuple[SampleRound, ...]:
    """Append a round, and drop rounds older than RECENT_S."""
    current = list(samples)
    at = max((sample.at for sample in current), default=float("-inf"))
    if not current or (rounds and at < rounds[-1].at + STEP_S):
        return rounds
    round_ = SampleRound(
        at, {s.index: tuple(round_figure(getattr(s, name), 1) for name in FIGURES) for s in current}
    )
    return (*(before for before in rounds if before.at > at - RECENT_S), round_)


def series(rounds: Sequence[SampleRound], now: float) -> dict[str, Any]:
    """One list per card and metric, with None for unknown values; `card_age_s` decreases."""
    known = [sample for sample in rounds if sample.at > now - RECENT_S]
    indices = sorted({index for sample in known for index in sample.cards})
    nothing = (None,) * len(FIGURES)
    return {
        "card_age_s": [round(now - sample.at, 1) for sample in known],
        "cards": {
            str(index): {
                name: [sample.cards.get(index, nothing)[place] for sample in known]
                for place, name in enumerate(FIGURES)
            }
            for index in indices
        },
    }
