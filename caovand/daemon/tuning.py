"""One slot's draft tuner: it collects measured steps, suggests a depth, and moves.

Measurements outlive the daemon, in the slot's folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from caovand.adapters.files import state_file
from caovand.adapters.system import wall_clock
from caovand.core.config.schema import PolicySection
from caovand.core.figures.track import Track, TrackPoint
from caovand.core.healing.ladder import Decision
from caovand.core.lifecycle.state import Snapshot, State
from caovand.core.plan import Plan
from caovand.core.tuning import moves
from caovand.core.tuning.evidence import MAX_MEASURED_DEPTH, context_after, measure_steps
from caovand.core.tuning.moves import Moment, Suggestion
from caovand.core.tuning.planning import depth_for, may_tune
from caovand.core.tuning.record import MAX_MOVES, TuningRecord, begin, from_document, to_document

SAVE_EVERY_S = 600.0
WARM_STEPS = 50  # an engine's first steps compile kernels


@dataclass(frozen=True)
class Serving:
    """The serving engine: its plan and generation.

    `replanning` means that another plan is being made, `stable` that its failures are forgotten.
    `probed_at` is when caovan's last test completion finished.
    """

    plan: Plan
    generation: int
    replanning: bool
    stable: bool
    probed_at: float


def serving_of(snapshot: Snapshot, probed_at: float | None) -> Serving | None:
    """The engine that serves, None without one; `probed_at` is None if none was started."""
    if snapshot.state is not State.SERVING or snapshot.plan is None or probed_at is None:
        return None
    if snapshot.refusal is not None:
        return None  # planning again would yield the refused plan
    return Serving(
        plan=snapshot.plan,
        generation=snapshot.generation,
        replanning=snapshot.replanning,
        stable=snapshot.deadline is None,
        probed_at=probed_at,
    )


class DraftTuner:
    """Stores its records in the file `path`; `notice` informs people, `mark` the history.

    `warn` receives problems with the file.
    """

    def __init__(
        self,
        path: Path,
        policy: PolicySection,
        notice: Callable[[str, str], None],
        mark: Callable[[str, str], None],
        warn: Callable[[str], None],
    ) -> None:
        self.policy = policy
        self._path, self._notice, self._mark, self._warn = path, notice, mark, warn
        self._records, self._failed_at = from_document(state_file.read_or_none(path)) or ({}, 0.0)
        self._generation = -1
        self._before: TrackPoint | None = None
        self._context: float | None = None
        self._warm = self._busy_at = 0.0
        self._saved_at = float("-inf")
        self._unsaved = False
        self._found: Suggestion | None = None
        self._text = ""
        self._shown: tuple[int, int] | None = None

    # -- queries -----------------------------------------------------------------------------

    def depth_for(self, plan: Plan) -> int | None:
        """The depth to plan with; None leaves it to the policy. Callable from any thread."""
        return depth_for(plan, self.policy, self._records)

    def after(self, plan: Plan, decision: Decision) -> Decision:
        """The decision after a failure: a depth on trial gives way to the previous one."""
        record = self._records.get(plan.step_time_key)
        ours = record is not None and record.trying and record.depth == plan.mtp
        if not ours or record is None or decision.excused or decision.verdict == "hold":
            return decision
        self._give_up(record, record.failed(wall_clock.now()), "failed on trial")
        text = f"drafting depth {record.depth} failed on trial: back to {record.home}"
        return Decision("degrade", text=text)

    def failed(self) -> None:
        """Note a failure: no move follows for a while, not even after the daemon restarts."""
        self._failed_at = wall_clock.now()
        if self.policy.tune == "apply":
            self._save()

    def describe(self) -> dict[str, Any] | None:
        """Suggestion and state as a document; None while there is nothing to report."""
        if not self._text:
            return None
        return {**(self._found.describe() if self._found else {}), "text": self._text}

    # -- every few seconds -------------------------------------------------------------------

    def poll(self, serving: Serving | None, track: Track) -> bool:
        """Process the counters since the last poll; return True to make a new plan."""
        latest = track.recent[-1] if track.last else None
        if self.policy.tune == "off" or serving is None or latest is None:
            self._before, self._found, self._text = None, None, ""
            return False
        if serving.generation != self._generation:
            self._generation, self._before, self._warm = serving.generation, None, 0.0
            self._busy_at = latest.at
        before, self._before = self._before, latest
        if before is None:
            self._context = None
        if before is None or latest is before:
            return False
        if is_busy(before, latest, serving.probed_at):
            self._busy_at = latest.at
        record = self._measure(serving, before, latest)
        applies = self.policy.tune == "apply" and not serving.replanning
        if applies and may_tune(serving.plan):
            return self._apply(record, serving, latest.at - self._busy_at)
        self._show(record, serving.plan)
        if applies and self._found:
            self._text += "; the plan is degraded"
        return False

    def _measure(self, serving: Serving, before: TrackPoint, latest: TrackPoint) -> TuningRecord:
        """The plan's record, with the steps between two scrapes if they count."""
        plan, basis = serving.plan, serving.plan.step_time_key
        record = self._records.get(basis) or begin(basis, plan.mtp)
        earlier, self._context = self._context, context_after(self._context, before, latest)
        measurement = measure_steps(before, latest, earlier, self._context)
        if measurement is None or plan.mtp > MAX_MEASURED_DEPTH:
            return record
        band, seen = measurement
        warm, self._warm = self._warm, self._warm + seen.steps
        if warm < WARM_STEPS:
            return record
        record = replace(record.with_steps(plan.mtp, band, seen), used=wall_clock.now())
        self._records[basis] = record
        if latest.at - self._saved_at > SAVE_EVERY_S:
            self._saved_at = latest.at
            self._save()
        return record

    def _apply(self, record: TuningRecord, serving: Serving, idle_s: float) -> bool:
        plan, now = serving.plan, wall_clock.now()
        if plan.mtp != record.depth:
            if plan.mtp != record.own:  # the policy has changed
                record = replace(record, own=plan.mtp, depth=plan.mtp, home=plan.mtp)
                self._records[record.basis] = record
            elif record.trying:
                reason = "cannot be planned without a shorter context or fewer requests"
                self._give_up(record, record.refuse_unplanned(), reason)
                return False
            else:
                self._show(record, plan)
                self._text += f"; depth {record.depth}, used so far, cannot be planned at present"
                return False
        kept = moves.judge(record)
        if kept.text and self._decide(kept.record, kept.text):
            record = kept.record
        self._show(record, plan)
        step = moves.move(record, now)
        if not step.text:
            self._text = moves.trial_progress(record, plan.mtp) or self._text
            if self._found and self._found.best != plan.mtp and not record.trying:
                self._text += f"; at most {MAX_MOVES} moves a week are allowed"
            return False
        self._failed_at = min(self._failed_at, now)
        moment = Moment(
            stable=serving.stable,
            failed_s=now - self._failed_at if self._failed_at else None,
            idle_s=idle_s,
            quiet_s=self.policy.tune_quiet_s,
        )
        if moment.obstacle:
            self._text = f"{step.text}; {moment.obstacle}"
            return False
        return self._decide(step.record, step.text)

    def _decide(self, record: TuningRecord, text: str) -> bool:
        """Apply and report a decision if it can be saved; return True on success."""
        before, self._records = self._records, {**self._records, record.basis: record}
        if not self._save():
            self._records = before
            return False
        self._notice("tune", text)
        self._mark("tune", f"depth {record.depth}{' on trial' if record.trying else ''}")
        return True

    def _give_up(self, record: TuningRecord, after: TuningRecord, reason: str) -> None:
        text = f"drafting depth {record.depth} {reason}: back to {record.home}, and not tried again"
        self._records = {**self._records, record.basis: after}  # even on a full disk
        if not self._decide(after, text):
            self._notice("tune", text)

    def _show(self, record: TuningRecord, plan: Plan) -> None:
        """Suggest a depth; the operator's own depth is only measured."""
        suggestion = moves.suggestion(record, plan.mtp) if plan.policy_drafts else None
        waits = moves.awaited_evidence(record, plan.mtp) if plan.policy_drafts else ""
        self._found, self._text = suggestion, suggestion.text if suggestion else waits
        if (
            suggestion
            and self.policy.tune == "suggest"
            and (suggestion.depth, suggestion.best) != self._shown
        ):
            self._shown = (suggestion.depth, suggestion.best)
            self._notice("tune", suggestion.text)

    def _save(self) -> bool:
        """Save the records; return True on success."""
        document = to_document(self._records.values(), self._failed_at)
        self._records = (from_document(document) or ({}, 0.0))[0]
        try:
            state_file.write(self._path, document)
        except OSError as problem:
            if not self._unsaved:
                self._warn(f"cannot save what the draft tuner measured: {problem}")
            self._unsaved = True
            return False
        self._unsaved = False
        return True


def is_busy(before: TrackPoint, latest: TrackPoint, probed_at: float) -> bool:
    """Whether clients sent requests between two scrapes."""
    if latest.running or latest.waiting:
        return True
    more = latest.total.generation_tokens > before.total.generation_tokens
    return more and probed_at < before.at
