"""Timing of one request, and metrics of concurrent requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from caovand.core.figures.counters import ratio

DIGITS = 6
COUNTERS = ("requests", "preemptions", "drafts", "prefix_hits", "prefix_queries")
MAX_REST = 0.5
"""Maximum share of the time between two samples in which cards may idle without invalidating the
energy."""


@dataclass(frozen=True)
class TimedAnswer:
    """One request: when it was sent, when each piece of its answer arrived, and its token counts.

    Times are seconds of one clock; token counts are the engine's.
    """

    sent: float
    pieces: tuple[float, ...]
    prompt_tokens: int
    tokens: int

    @property
    def first_token_s(self) -> float:
        """Time to the first token."""
        return self.pieces[0] - self.sent

    @property
    def token_s(self) -> float | None:
        """Mean time per token after the first; None if there is only one."""
        return (self.pieces[-1] - self.pieces[0]) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def steps_s(self) -> list[float]:
        """Times between pieces, each of which may have several tokens."""
        return [b - a for a, b in zip(self.pieces, self.pieces[1:], strict=False)]


def round_of(answers: Sequence[TimedAnswer]) -> dict[str, Any]:
    """The metrics of requests sent at the same time.

    Prefill lasts until the last first token. The decoding rate is the sum of each request's rate
    after its own first token, so it excludes the time of other requests' prefill.
    """
    begin = min(answer.sent for answer in answers)
    read_s = max(answer.pieces[0] for answer in answers) - begin
    seconds = max(answer.pieces[-1] for answer in answers) - begin
    prompts, tokens = sum(a.prompt_tokens for a in answers), sum(a.tokens for a in answers)
    token_s = [rate for answer in answers if (rate := answer.token_s)]
    return {
        "seconds": _rounded(seconds),
        "prompt_tokens": prompts,
        "tokens": tokens,
        "prefill_tokens_per_s": _rounded(ratio(prompts, read_s)),
        "decode_tokens_per_s": _rounded(sum(1 / each for each in token_s)) if token_s else None,
        "tokens_per_s": _rounded(ratio(tokens, seconds)),
        "first_token_s": [_rounded(answer.first_token_s) for answer in answers],
        "token_s": [_rounded(each) for each in token_s],
    }


def cell(
    prompt: int,
    at_once: int,
    rounds: Sequence[Sequence[TimedAnswer]],
    counted: Mapping[str, Any],
) -> dict[str, Any]:
    """All rounds with one prompt length and one concurrency.

    `counted` is the result of `counts` for that period.
    """
    steps = [step for answers in rounds for answer in answers for step in answer.steps_s]
    return {
        "prompt": prompt,
        "at_once": at_once,
        "rounds": [round_of(answers) for answers in rounds],
        "step_s": {"p50": _rounded(quantile(steps, 0.5)), "p99": _rounded(quantile(steps, 0.99))},
        **counted,
    }


def values(cell: Mapping[str, Any], name: str) -> list[float]:
    """One metric of every round; for a list within a round, its median."""
    values = [round_[name] for round_ in cell["rounds"]]
    plain = [median(value) if isinstance(value, list) and value else value for value in values]
    return [value for value in plain if isinstance(value, (int, float))]


def pooled(cell: Mapping[str, Any], name: str, share: float) -> float | None:
    """A quantile over the requests of all rounds."""
    return quantile([each for round_ in cell["rounds"] for each in round_[name]], share)


def quantile(numbers: Sequence[float], share: float) -> float | None:
    """A quantile with linear interpolation."""
    if not numbers:
        return None
    ordered = sorted(numbers)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def counted_at(status: Mapping[str, Any], now: float) -> float:
    """The time of the oldest metrics and samples in a status document; `now` is the document's
    time.
    """
    age_s = status["figures"]["age_s"]
    samples = (gpu["at"] for gpu in status["gpus"] if not gpu["fault"])
    figures = -math.inf if age_s is None else now - float(age_s)
    return min([figures, *map(float, samples)])


def counts(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    answers: Sequence[TimedAnswer],
    busy: tuple[float, float],
) -> dict[str, Any]:
    """The daemon's counts between two status documents, between which `answers` arrived.

    `busy` is from the first request to the last token. `others` counts other clients' requests,
    whose drafts and energy are included in these metrics. None is unknown, and so is everything if
    the engine does not count every answered request.
    """
    old, new = before["figures"]["totals"], after["figures"]["totals"]
    more = {name: new[name] - old[name] for name in COUNTERS}
    others = more["requests"] - len(answers)
    joules = energy(before, after, busy)
    tokens = sum(answer.tokens for answer in answers)
    earlier = [*old["accepted"], *(0.0 for _ in new["accepted"])]
    accepted = [b - a for a, b in zip(earlier, new["accepted"], strict=False)]
    known = others >= 0
    return {
        "drafting": _drafting(accepted, more["drafts"]) if known else None,
        "prefix_hits": _rounded(ratio(more["prefix_hits"], more["prefix_queries"]))
        if known
        else None,
        "tokens_per_j": _rounded(tokens / joules) if joules else None,
        "preemptions": int(more["preemptions"]) if known else None,
        "others": int(others) if known else None,
    }


def _drafting(accepted: Sequence[float], drafts: float) -> dict[str, Any] | None:
    if drafts <= 0:
        return None
    return {
        "accepted": [round(count / drafts, 4) for count in accepted],
        "tokens_per_step": round(1 + sum(accepted) / drafts, 3),
    }


def energy(
    before: Mapping[str, Any], after: Mapping[str, Any], busy: tuple[float, float]
) -> float | None:
    """Energy in joules that the engine's cards used while busy.

    Idle time between the two samples counts with the last sample's power. None unless each card
    reports all values and was busy for most of that time.
    """
    old = {gpu["index"]: gpu for gpu in before["gpus"]}
    new = {gpu["index"]: gpu for gpu in after["gpus"]}
    begin, end = busy
    total = 0.0
    for card in {card["gpu"] for card in after["figures"]["memory"]}:
        first, last = old.get(card), new.get(card)
        if not first or not last or None in (first["energy_j"], last["energy_j"], last["power_w"]):
            return None
        used, span = last["energy_j"] - first["energy_j"], last["at"] - first["at"]
        rest_s = span - (end - begin)
        if not first["at"] <= begin <= end <= last["at"] or rest_s > span * MAX_REST:
            return None
        used -= rest_s * last["power_w"]
        if used <= 0:  # the driver was reloaded, or its counter is too coarse
            return None
        total += used
    return total or None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
