"""Detect that an engine becomes slower, or its drafts useless, while it serves.

The last third is compared with the first by the rank test of `bench`. Speeds come from requests of
equal length that ran alone, so that other load does not matter. Time to the first token is also
compared under load, where only a larger change counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from caovand.lab.core.bench import ranks
from caovand.lab.core.soak.judged import Outcome, SoakCheck, settled_samples
from caovand.lab.core.soak.seen import AnswerTimes, SoakRecord, SoakSample
from caovand.lab.core.soak.trends import bin_points

WARM_UP = 0.05
NOISE = 0.0025
"""Significance level: a change with a higher probability under noise counts as noise."""
MIN_SLOWDOWN = 0.06
"""Minimum relevant change of a third's median; an even slowdown of 15 % is 10 % between the middles
of the first and last third."""
SLOWER_LOADED = 0.25
MAX_IN_A_THIRD = 16
"""Values per third, as medians of adjacent ones: the exact test is slow for hundreds."""
HEAT = 0.2
"""Increase in throttled samples over the first third that explains slowness."""
COLLAPSED_SHARE = 0.5
"""Share of the first third's acceptance below which drafting has collapsed."""
MIN_DRAFTS = 200


def checks(seen: SoakRecord) -> Iterator[SoakCheck]:
    """Check decoding, prefill, first tokens under load, and drafts."""
    heat = _throttling_note(seen)
    alone = settled_samples(seen.paces, seen.seconds, WARM_UP)
    loaded = settled_samples(seen.loaded, seen.seconds, WARM_UP)
    token_s = [(answer.at_s, answer.token_s) for answer in alone if answer.token_s is not None]
    yield _check("decoding alone", "a token", token_s, MIN_SLOWDOWN, heat)
    yield _check("prefill alone", "the first token", _first(alone), MIN_SLOWDOWN, heat)
    yield _check("first token under load", "it", _first(loaded), SLOWER_LOADED, heat)
    yield from _drafts(settled_samples(seen.samples, seen.seconds, WARM_UP))


def _first(paces: Sequence[AnswerTimes]) -> list[tuple[float, float]]:
    return [(pace.at_s, pace.first_token_s) for pace in paces]


def _check(
    name: str, what: str, points: Sequence[tuple[float, float]], least: float, heat: str
) -> SoakCheck:
    values = [value for _, value in bin_points(points, 3 * MAX_IN_A_THIRD)]
    third = len(values) // 3
    first, last = values[:third], values[len(values) - third :]
    if not third or ranks.least_chance(third, third) > NOISE:
        return SoakCheck(name, Outcome.UNKNOWN, f"too few to judge: {len(values)}")
    a, b = median(first), median(last)
    change = (b - a) / a if a else 0.0
    text = f"{what} took {a * 1000:,.1f} ms in the first third, {b * 1000:,.1f} in the last"
    if change < least or ranks.chance(first, last) > NOISE:
        return SoakCheck(name, Outcome.PASSED, f"{text} ({change:+.1%})")
    text = f"{text}: {change:.0%} slower"
    return SoakCheck(name, Outcome.NOTED if heat else Outcome.FAILED, text + heat)


def _throttling_note(seen: SoakRecord) -> str:
    """Name what throttled the cards more than in the first third, as the end of a sentence."""
    samples = settled_samples(seen.samples, seen.seconds, WARM_UP)
    third = len(samples) // 3
    first, last = samples[:third], samples[len(samples) - third :]
    before, after = _throttled(first), _throttled(last)
    if after < before + HEAT:
        return ""
    reason = next(sample.throttled for sample in reversed(last) if sample.throttled)
    return (
        f"; {reason} slowed the cards down in {after:.0%} of the last third, and in {before:.0%} of"
        " the first"
    )


def _throttled(samples: Sequence[SoakSample]) -> float:
    return sum(1 for sample in samples if sample.throttled) / len(samples) if samples else 0.0


def _drafts(samples: Sequence[SoakSample]) -> Iterator[SoakCheck]:
    third = len(samples) // 3
    if not third or samples[-1].drafts <= samples[0].drafts:
        return
    drafts, accepted = zip(
        *(
            (part[-1].drafts - part[0].drafts, part[-1].accepted - part[0].accepted)
            for part in (samples[: third + 1], samples[len(samples) - third - 1 :])
        ),
        strict=True,
    )
    if min(drafts) < MIN_DRAFTS:
        yield SoakCheck("drafts", Outcome.UNKNOWN, "too few to judge")
        return
    a, b = (count / of for count, of in zip(accepted, drafts, strict=True))
    text = f"{a:.2f} tokens per draft were accepted in the first third, {b:.2f} in the last"
    outcome = Outcome.FAILED if b < a * COLLAPSED_SHARE else Outcome.PASSED
    yield SoakCheck("drafts", outcome, text)
