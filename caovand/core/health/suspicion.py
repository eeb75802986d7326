"""The suspicion that an engine hangs, and the test completions that confirm or refute it."""

from __future__ import annotations

from dataclasses import dataclass, replace

CALM_S = 3600.0  # pause of early tests after one hit an engine that was merely slow


@dataclass(frozen=True)
class Suspicion:
    """Why an engine is suspected, and the results of its tests. Times are monotonic seconds.

    `since` is None while nothing is suspected. `probing` means that a test completion is running,
    even on an idle engine. Its answer is due by `answer_by`; a failure confirms a hang from
    `hung_from` on, and counts for nothing before. An early test failed at `refused_at`, or proved
    unnecessary at `needless_at`; None is never.
    """

    since: float | None = None
    reason: str = ""
    probing: bool = False
    answer_by: float = 0.0
    hung_from: float = 0.0
    refused_at: float | None = None
    needless_at: float | None = None

    def allows_early_test(self, standstill_since: float, at: float) -> bool:
        """Whether a test completion may be sent before a standstill has lasted the whole
        `hang_s`.
        """
        refused = self.refused_at is not None and self.refused_at >= standstill_since
        calm = self.needless_at is not None and at - self.needless_at < CALM_S
        return not refused and not calm

    def begin(self, at: float, reason: str, hung_from: float, answer_by: float) -> Suspicion:
        """Suspect the engine, and await the answer to a test."""
        test = {"hung_from": hung_from, "answer_by": answer_by}
        return replace(self, since=at, reason=reason, probing=True, **test)

    def refuse(self, at: float) -> Suspicion:
        """Resume waiting after an early test failed."""
        return replace(self, since=None, reason="", refused_at=at)

    def postpone(self, answer_by: float) -> Suspicion:
        """Await the answer until at least `answer_by`."""
        return replace(self, answer_by=max(self.answer_by, answer_by))

    def clear(self, at: float) -> Suspicion:
        """Drop the suspicion of an engine that works."""
        tested = self.since is not None
        early = (
            self.since < self.hung_from if self.since is not None else self.refused_at is not None
        )
        return replace(
            self,
            since=None,
            reason="",
            probing=self.probing and not tested,
            refused_at=None,
            needless_at=at if early else self.needless_at,
        )
