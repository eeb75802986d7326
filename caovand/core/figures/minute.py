"""One minute of a slot or a card, as the history stores it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import mean

from caovand.core.figures.counters import NOTHING, Counters
from caovand.core.figures.track import TrackPoint, quantiles_of
from caovand.core.health.observation import GpuSample

MINUTE_S = 60


@dataclass(frozen=True)
class Minute:
    """A minute starting `at` (Unix time); `seconds` were observed, of which the engine served for
    `up_s`. Fields are means, the maximum cache use, counts and quantiles; None is unknown."""

    slot: str
    at: int
    seconds: float
    up_s: float
    prompt_tokens: float
    generation_tokens: float
    requests: float
    preemptions: float
    running: float | None
    waiting: float | None
    kv_cache_usage: float | None
    prefix_queries: float
    prefix_hits: float
    drafts: float
    accepted_tokens: float
    first_token_p50_s: float | None
    first_token_p99_s: float | None
    token_p50_s: float | None
    token_p99_s: float | None


@dataclass(frozen=True)
class CardMinute:
    """Maximum memory and temperature of a minute, means of the other metrics, and energy in
    joules.
    """

    gpu: int
    at: int
    used_mib: float
    temperature: float | None
    utilization: float | None
    power_w: float | None
    energy_j: float | None
    throttled: float
    """Share of samples in which the card was throttled."""


@dataclass(frozen=True)
class HistoryMark:
    """An event in the history: `kind` is daemon, restart, mode, tune, rung or incident."""

    at: float
    slot: str
    kind: str
    text: str


@dataclass(frozen=True)
class Tally:
    """Observations of a slot in the current minute; `total` were its counters at the minute's
    start."""

    total: Counters = NOTHING
    seconds: float = 0.0
    up_s: float = 0.0
    points: tuple[TrackPoint, ...] = ()
    latest_at: float = float("-inf")
    """Time of the latest scrape, possibly in an earlier minute."""

    def add(self, seconds: float, serves: bool, point: TrackPoint | None) -> Tally:
        """Add a reading, `seconds` after the last one; `point` is the latest scrape if it is
        new."""
        seen = replace(self, seconds=self.seconds + seconds, up_s=self.up_s + seconds * serves)
        if point is None or point.at <= self.latest_at:
            return seen
        return replace(seen, points=(*self.points, point), latest_at=point.at)

    def minute(self, slot: str, at: int, total: Counters) -> Minute:
        """The finished minute, at whose end the counters are `total`."""
        more, points = total.since(self.total), self.points
        return Minute(
            slot=slot,
            at=at,
            seconds=round(self.seconds, 1),
            up_s=round(self.up_s, 1),
            prompt_tokens=more.prompt_tokens,
            generation_tokens=more.generation_tokens,
            requests=more.requests,
            preemptions=more.preemptions,
            running=_mean([point.running for point in points]),
            waiting=_mean([point.waiting for point in points]),
            kv_cache_usage=max((point.kv_cache_usage for point in points), default=None),
            prefix_queries=more.prefix_queries,
            prefix_hits=more.prefix_hits,
            drafts=more.drafts,
            accepted_tokens=sum(more.accepted),
            **quantiles_of(more),
        )


def card_minute(
    samples: Sequence[GpuSample], before: GpuSample | None, at: int
) -> CardMinute | None:
    """A card's minute from its samples and the one before; None if all samples have faults."""
    well = [sample for sample in samples if not sample.fault]
    if not well:
        return None
    counted = (before, *well) if before else well
    energy = [sample.energy_j for sample in counted if sample.energy_j is not None]
    joules = energy[-1] - energy[0] if len(energy) > 1 and energy[-1] >= energy[0] else None
    return CardMinute(
        gpu=well[0].index,
        at=at,
        used_mib=max(sample.used_mib for sample in well),
        temperature=max((s.temperature for s in well if s.temperature is not None), default=None),
        utilization=_mean([s.utilization for s in well if s.utilization is not None]),
        power_w=_mean([s.power_w for s in well if s.power_w is not None]),
        energy_j=joules,
        throttled=round(sum(bool(sample.throttled) for sample in well) / len(well), 3),
    )


def _mean(values: Sequence[float]) -> float | None:
    return round(mean(values), 3) if values else None


HistoryRow = Minute | CardMinute | HistoryMark
COLUMNS = {
    kind: tuple(entry.name for entry in fields(kind)) for kind in (Minute, CardMinute, HistoryMark)
}
