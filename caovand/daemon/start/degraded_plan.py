"""The degraded plan between starts: the ladder's steps that the next start keeps.

A plan is stored once it has served stably. `retry --full` omits the steps once; the plan that
served remains the fallback until the full plan has served stably itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caovand.adapters.files import state_file
from caovand.adapters.system import wall_clock
from caovand.core.config.schema import Mode
from caovand.core.healing import degraded, ladder
from caovand.core.healing.rung import Healing
from caovand.core.plan import Plan


class PlanMemory:
    """The degraded plan in the file `path`; `since` is when the current plan was degraded."""

    def __init__(self, path: Path, healing: Healing) -> None:
        self._path, self._healing = path, healing
        self._full = False
        self._fallback: Plan | None = None
        self.since: float | None = None

    def forget(self) -> None:
        """Forget the degraded plan; the next plan omits the ladder's steps."""
        self._path.unlink(missing_ok=True)
        self._full, self._fallback = True, None

    def leave_out_once(self, plan: Plan | None) -> None:
        """Plan once without the ladder's steps, with the current `plan` as the fallback."""
        self._fallback = plan if plan and plan.taken else None
        self._full = True

    def discard_fallback(self) -> None:
        """Discard the fallback: the operator changed the settings it was made for."""
        self._fallback = None

    def take_fallback(self) -> Plan | None:
        """Pop the plan to return to after a failure; None leaves the decision to the ladder."""
        good, self._fallback, self._full = self._fallback, None, False
        return good

    def document(self, living: Plan | None, fingerprint: str, mode: Mode) -> Any:
        """The steps that the next plan keeps: the living engine's, or those in the file.

        Its fingerprint decides whether they still apply. None if all steps are omitted.
        """
        if self._full:
            return None
        if living is not None and living.taken:
            return degraded.to_document(living, fingerprint, mode)
        return state_file.read_or_none(self._path)

    def date(self, plan: Plan | None) -> None:
        """Set `since` for this plan; a degraded plan from the file has its own date."""
        if plan is None or not plan.degraded:
            self.since = None
        elif self.since is None:
            try:
                kept = state_file.read_or_none(self._path)
            except OSError:  # the degraded plan's date is not worth losing an engine
                kept = None
            since = kept.get(degraded.SINCE) if degraded.well_formed(kept, self._healing) else None
            settings = (*plan.settings.values(), *plan.env.values())
            remembered = any(setting.origin == "remembered" for setting in settings)
            self.since = wall_clock.now() if since is None or not remembered else float(since)

    def served_stably(self, plan: Plan, fingerprint: str, mode: Mode) -> None:
        """Store the plan for the next start if the ladder degraded it; raises OSError.

        A plan that is just being replaced by the full one is not stored: the operator asked to
        forget it.
        """
        if self._full and plan.taken:
            return
        self._full, self._fallback = False, None
        if not ladder.worth_remembering(plan):
            return
        if plan.taken:
            document = degraded.to_document(plan, fingerprint, mode)
            state_file.write(self._path, {**document, degraded.SINCE: self.since})
        else:
            self._path.unlink(missing_ok=True)
