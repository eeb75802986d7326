"""Detect steady growth during a soak: memory of host and cards, open descriptors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from caovand.lab.core.soak import trends
from caovand.lab.core.soak.judged import Outcome, SoakCheck, settled_samples
from caovand.lab.core.soak.seen import SoakRecord, SoakSample

WARM_UP = 0.25
"""Share of a soak in which caches fill and buffers reach their size."""
MIN_JUDGED_S = 900.0
"""Growth over less time after the warm-up is not a failure: buffers may still be filling."""


@dataclass(frozen=True)
class WatchedMetric:
    """A field of a sample, and its tolerated growth."""

    field: str
    label: str
    unit: str
    least: float


WATCHED = (
    WatchedMetric("engine_mib", "engine's memory", "MiB", 64.0),
    WatchedMetric("gpu_mib", "GPU memory", "MiB", 64.0),
    WatchedMetric("engine_files", "engine's open files", "", 16.0),
    WatchedMetric("daemon_mib", "daemon's memory", "MiB", 8.0),
    WatchedMetric("daemon_files", "daemon's open files", "", 8.0),
    WatchedMetric("shared_mib", "/dev/shm", "MiB", 16.0),
)


def checks(seen: SoakRecord) -> Iterator[SoakCheck]:
    """One check per observable metric."""
    kept = settled_samples(seen.samples, seen.seconds, WARM_UP)
    for figure in WATCHED:
        points = [
            (sample.at_s, value)
            for sample in kept
            if (value := getattr(sample, figure.field)) is not None
        ]
        # A machine without a card has no GPU memory to watch.
        if points or any(_known(seen.samples, figure)) or figure.field != "gpu_mib":
            yield _check(figure, points, any(_known(seen.samples, figure)))


def _known(samples: Sequence[SoakSample], figure: WatchedMetric) -> Iterator[bool]:
    return (getattr(sample, figure.field) is not None for sample in samples)


def _check(figure: WatchedMetric, points: Sequence[trends.TrendPoint], known: bool) -> SoakCheck:
    if not known:
        return SoakCheck(figure.label, Outcome.UNKNOWN, "cannot be read by this user")
    if len(points) < trends.MIN_BINS:
        return SoakCheck(figure.label, Outcome.UNKNOWN, "too short to judge")
    unit = f" {figure.unit}" if figure.unit else ""
    low, high = min(value for _, value in points), max(value for _, value in points)
    if grown := trends.growth(points, figure.least):
        text = (
            f"grew by {grown.gained:,.0f}{unit} from first to last, {grown.per_hour:,.0f}{unit} an"
            f" hour, to {points[-1][1]:,.0f}{unit}"
        )
        if points[-1][0] - points[0][0] >= MIN_JUDGED_S:
            return SoakCheck(figure.label, Outcome.FAILED, text)
        short = f"; judging a leak takes {MIN_JUDGED_S / 60:.0f} minutes after the warm-up"
        return SoakCheck(figure.label, Outcome.NOTED, text + short)
    return SoakCheck(
        figure.label, Outcome.PASSED, f"{low:,.0f} to {high:,.0f}{unit}, no steady growth"
    )
