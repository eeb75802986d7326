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
    found = list(samples)
    at = max((sample.at for sample in found), default=float("-inf"))
    if not found or (rounds and at < rounds[-1].at + STEP_S):
        return rounds
    one = SampleRound(
        at, {s.index: tuple(round_figure(getattr(s, name), 1) for name in FIGURES) for s in found}
    )
    return (*(before for before in rounds if before.at > at - RECENT_S), one)


def series(rounds: Sequence[SampleRound], now: float) -> dict[str, Any]:
    """One list for each card and figure, with None for unknown values; `card_age_s` decreases."""
    known = [one for one in rounds if one.at > now - RECENT_S]
    indices = sorted({index for one in known for index in one.cards})
    nothing = (None,) * len(FIGURES)
    return {
        "card_age_s": [round(now - one.at, 1) for one in known],
        "cards": {
            str(index): {
                name: [one.cards.get(index, nothing)[place] for one in known]
                for place, name in enumerate(FIGURES)
            }
            for index in indices
        },
    }
