"""The draft tuner's decisions: what to suggest, where to move, and when a move must wait.

A move changes the depth, which costs a restart. A new depth is on trial until enough of its steps
are measured, and abandoned if it is not faster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from caovand.core.tuning.evidence import CONTEXT_BANDS, DEPTHS, Measurements
from caovand.core.tuning.model import ENOUGH_STEPS, Estimate, estimate
from caovand.core.tuning.record import MAX_MOVES, TuningRecord

MIN_GAIN = 0.02  # a smaller gain is not worth a restart
COOL_DOWN_S = 3600.0
REST_S = 7 * 86400.0
"""The period that allows at most MAX_MOVES moves."""
MAX_TRIAL_S, MAX_TRIAL_STEPS = 3 * 86400.0, 5 * ENOUGH_STEPS
"""Limits of a trial: a depth with too few comparable requests by then (other contexts, never a
single request) is abandoned."""
TRIAL = (1, 3)
"""Depths that, together with another one, reveal the cost of a draft."""


@dataclass(frozen=True)
class Suggestion:
    """The best depth, its modelled gain over the current one, and the basis of both.

    A `trial` promises no gain: its steps reveal the cost of drafts, which a single depth cannot.
    """

    depth: int
    best: int
    gain: float
    basis: Estimate
    trial: bool = False

    @property
    def text(self) -> str:
        """The suggestion in one sentence."""
        depths = ", ".join(map(str, self.basis.depths))
        measured = f"{self.basis.tokens:,} tokens measured at depth {depths}{self._losing_note}"
        if self.trial:
            return f"try drafting depth {self.best} to measure what a draft costs ({measured})"
        if self.best == self.depth:
            return f"drafting depth {self.depth} is the fastest ({measured})"
        gain = f"{self.gain:+.0%}" + ("" if self.best in self.basis.depths else " expected")
        return f"drafting depth {self.best} instead of {self.depth}: {gain} ({measured})"

    @property
    def loses_from(self) -> int | None:
        """The context length from which drafting loses at every depth; None if there is none."""
        bands = sorted(self.basis.by_band)
        drafts = [max(rates) > rates[0] for rates in map(self.basis.by_band.__getitem__, bands)]
        if all(drafts) or not any(drafts) or drafts != sorted(drafts, reverse=True):
            return None
        return CONTEXT_BANDS[bands[drafts.index(False)]]

    @property
    def _losing_note(self) -> str:
        if self.loses_from is None:
            return ""
        return f"; drafts lose in contexts from {self.loses_from:,} tokens on"

    def describe(self) -> dict[str, Any]:
        """Return it as a document."""
        return {
            "depth": self.depth,
            "best": self.best,
            "gain": round(self.gain, 3),
            "trial": self.trial,
            "tokens": self.basis.tokens,
            "measured": list(self.basis.depths),
            "tokens_per_s": _rounded(self.basis.per_s),
            "by_context": [
                {"from": CONTEXT_BANDS[band], "tokens_per_s": _rounded(rates)}
                for band, rates in sorted(self.basis.by_band.items())
            ],
            "drafts_lose_from": self.loses_from,
        }


def _rounded(rates: tuple[float, ...]) -> list[float]:
    return [round(rate, 2) for rate in rates]


def suggestion(record: TuningRecord, depth: int) -> Suggestion | None:
    """The suggestion at the current `depth`; None until it has enough measurements."""
    among = record.depths
    basis = estimate(record.evidence, depth, among=among) if depth in among else None
    if basis is None:
        return None
    allowed = [d for d in among if d == depth or d not in record.refused]
    best = max(allowed, key=basis.per_s.__getitem__)
    if basis.gain(best, depth) >= MIN_GAIN:
        return Suggestion(depth, best, basis.gain(best, depth), basis)
    halves = (depth // 2,) if depth > DEPTHS[-1] else ()
    trials = [d for d in (*halves, *TRIAL) if d in allowed and d != depth]
    if len(basis.depths) == 1 and trials:
        return Suggestion(depth, trials[0], 0.0, basis, trial=True)
    return Suggestion(depth, depth, 0.0, basis)


@dataclass(frozen=True)
class Moment:
    """Conditions for a move, apart from its reason.

    `failed_s` is the time since the slot's last engine failure, None without one; `idle_s` the time
    since its last request.
    """

    stable: bool
    failed_s: float | None
    idle_s: float
    quiet_s: float

    @property
    def obstacle(self) -> str:
        """Why the engine must not be restarted now; "" if it may be."""
        if self.failed_s is not None and self.failed_s < COOL_DOWN_S:
            minutes = (COOL_DOWN_S - self.failed_s) / 60
            return f"an engine failed: no change for {minutes:.0f} min"
        if not self.stable:
            return "the engine has not served for [watch] stable_after_s yet"
        if self.idle_s < self.quiet_s:
            return f"waiting for {self.quiet_s:.0f} s without a request"
        return ""


@dataclass(frozen=True)
class TuningStep:
    """The record after a decision, and the decision in words; `text` is empty without one."""

    record: TuningRecord
    text: str = ""


def judge(record: TuningRecord) -> TuningStep:
    """Keep the depth on trial if it proved itself; otherwise leave the record alone. Needs no
    restart."""
    basis = _of_trial(record)
    if basis is None or basis.gain(record.depth, record.home) <= 0:
        return TuningStep(record)
    return TuningStep(record.keep(), f"drafting depth {_compare(basis, record)}: it stays")


def move(record: TuningRecord, at: float) -> TuningStep:
    """The next move, if any: to another depth on trial, or back from one that was not faster.

    Trying a depth without measurements requires two remaining moves, one of them for the way back.
    """
    basis = _of_trial(record)
    home = replace(record, depth=record.home)
    if record.trying:
        if basis is None and _is_over(record, at):
            text = (
                f"drafting depth {record.depth} had too few requests comparable with those at "
                f"{record.home}"
            )
            return TuningStep(record.move(record.home, at), f"{text}: back to {record.home}")
        if basis is None or basis.gain(record.depth, record.home) > 0:
            return TuningStep(record)
        home = replace(home, refused=record.refused | {record.depth})
    depth = suggestion(home, record.home)
    left = steps_left(record, at)
    target, measured = record.home, False
    if depth is not None:
        measured = depth.best in depth.basis.depths
        if left >= (1 if measured else 2):
            target = depth.best
    if target == record.depth:
        return TuningStep(record)
    moved = record.move(target, at)
    if basis is not None:
        how = f"back to {target}" if target == record.home else f"{target} is next"
        text = f"drafting depth {_compare(basis, record)}: {how}"
    else:
        text = depth.text if depth else ""
    return TuningStep(moved.keep() if measured else moved, text)


def steps_left(record: TuningRecord, at: float) -> int:
    """Number of moves that may still be made."""
    return MAX_MOVES - sum(at - REST_S < moved_at <= at for moved_at in record.moves)


def trial_progress(record: TuningRecord, depth: int) -> str:
    """Progress of a depth's trial; "" if none is running."""
    if not record.trying or depth != record.depth or _of_trial(record) is not None:
        return ""
    known = {band for (d, band), s in record.evidence.items()
             if d == record.home and s.steps >= ENOUGH_STEPS}  # fmt: skip
    steps = max(
        (record.evidence.get((depth, band), Measurements()).steps for band in known), default=0.0
    )
    return f"drafting depth {depth} on trial: {steps:,.0f} of {ENOUGH_STEPS:,} steps measured"


def awaited_evidence(record: TuningRecord, depth: int) -> str:
    """The evidence that a suggestion at the current `depth` still lacks."""
    steps = max((s.steps for (d, _), s in record.evidence.items() if d == depth), default=0.0)
    if steps >= ENOUGH_STEPS:
        return f"drafting depth {depth}: no suggestion, because no drafts have been measured yet"
    return (
        f"drafting depth {depth}: {steps:,.0f} of {ENOUGH_STEPS:,} steps measured; only steps "
        "with a single request count"
    )


def _is_over(record: TuningRecord, at: float) -> bool:
    """Whether a trial without a result has lasted long enough."""
    steps = sum(s.steps for (depth, _), s in record.evidence.items() if depth == record.depth)
    began = record.moves[-1] if record.moves else at
    return steps >= MAX_TRIAL_STEPS or at - began >= MAX_TRIAL_S


def _of_trial(record: TuningRecord) -> Estimate | None:
    """The estimate that compares the depth on trial with the previous one."""
    if not record.trying:
        return None
    return estimate(record.evidence, record.depth, record.home, among=record.depths)


def _compare(basis: Estimate, record: TuningRecord) -> str:
    new, old = record.depth, record.home
    speeds = f"{basis.per_s[new]:.1f} tokens/s, {basis.per_s[old]:.1f} at depth {old}"
    return f"{new} yields {speeds} ({basis.gain(new, old):+.1%})"
