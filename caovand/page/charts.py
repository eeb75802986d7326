"""Convert the daemon's replies to columns for charts: a list of times, and one list per series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

Column = list["float | None"]
OVER_CARDS = (
    ("power_w", "gpu_power_w", sum),
    ("temperature", "gpu_temperature_c", max),
    ("utilization", "gpu_utilization", mean),
    ("used_mib", "gpu_used_mib", sum),
    ("throttled", "gpu_throttled", max),
)
"""The combination of several cards, and the series' name."""
AGES = ("age_s", "card_age_s")


def history_columns(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Columns for the reply of `history`; a step without data is null in every series."""
    step = answer["step_s"]
    known = sorted({*answer["at"], *(at for card in answer["cards"].values() for at in card["at"])})
    times = list(range(known[0], known[-1] + step, step)) if known else []
    series = {
        name: _spread(answer["at"], values, times) for name, values in answer["figures"].items()
    }
    cards = {
        gpu: {name: _spread(card["at"], card[name], times) for name, _, _ in OVER_CARDS}
        for gpu, card in answer["cards"].items()
    }
    for name, shown, combine in OVER_CARDS if cards else ():
        columns = [card[name] for card in cards.values()]
        series[shown] = [
            combine(values) if (values := [v for v in row if v is not None]) else None
            for row in zip(*columns, strict=True)
        ]
    return {
        "times": times,
        "series": series,
        "cards": cards,
        "marks": answer["marks"],
        "marks_left_out": answer["marks_left_out"],
        "since": answer["since"],
        "until": answer["until"],
        "problem": answer["problem"],
    }


def recent_columns(answer: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Columns for the reply of `recent`; `now` is Unix time.

    Cards are sampled at other times than the engine: values not read at a time are null.
    """
    own, of_cards = ([round(now - age, 1) for age in answer.get(name, ())] for name in AGES)
    times = sorted({*own, *of_cards})
    return {
        "times": times,
        "series": {
            name: _spread(own, values, times)
            for name, values in answer.items()
            if name not in (*AGES, "cards")
        },
        "cards": {
            gpu: {name: _spread(of_cards, values, times) for name, values in card.items()}
            for gpu, card in answer.get("cards", {}).items()
        },
        "marks": [],
        "problem": "",
    }


def _spread(at: Sequence[float], values: Sequence[float | None], times: Sequence[float]) -> Column:
    by_age = dict(zip(at, values, strict=False))
    return [by_age.get(moment) for moment in times]
