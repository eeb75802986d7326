"""The verdict on a soak: one check per watched property."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from caovand.lab.core.soak import drift, leaks
from caovand.lab.core.soak.judged import Outcome, SoakCheck
from caovand.lab.core.soak.known import FREQUENCY_SIGNIFICANCE, more_often
from caovand.lab.core.soak.seen import AnswerComparison, Mishap, SoakRecord

MAX_NAMED = 5
STARTED = "spawn"
DAEMON_EVENT = "daemon"
"""Kind of events added by the soak itself: the daemon does not answer, or was restarted."""
FAILING_EVENTS = frozenset({"failure", "incident", DAEMON_EVENT})
"""Kinds of events that fail a soak."""
NOTABLE_EVENTS = frozenset({"suspicion", "noticed", "reload", "mode", "tune", "gpu"})
EMPTY = "empty answer"
"""Kind of error for an answer that has tokens, but no text."""
MAX_EMPTY_SHARE = 0.1
"""Tolerated share of requests: a model can stop at once, or begin with invisible tokens."""
NAMED = FAILING_EVENTS | NOTABLE_EVENTS | {STARTED}


def checks(seen: SoakRecord) -> tuple[SoakCheck, ...]:
    """All checks, in display order."""
    return (
        _answers_alone([answer for answer in seen.compared if answer.alone]),
        _answers_under_load([answer for answer in seen.compared if not answer.alone], seen.seconds),
        _errors(seen),
        _breaks(seen),
        *drift.checks(seen),
        *leaks.checks(seen),
        _events(seen),
    )


def has_passed(checks: Sequence[SoakCheck]) -> bool:
    """Whether no check failed."""
    return all(check.outcome is not Outcome.FAILED for check in checks)


def _answers_alone(compared: Sequence[AnswerComparison]) -> SoakCheck:
    name = "answers alone"
    if not compared:
        return SoakCheck(name, Outcome.UNKNOWN, "no known prompt was repeated")
    other = [answer for answer in compared if answer.difference]
    bad = [answer for answer in other if _fails_alone(answer)]
    if bad:
        return SoakCheck(
            name, Outcome.FAILED, f"{_format_count(bad, compared)}; {_first_difference(bad)}"
        )
    if other:
        text = f"{_format_count(other, compared)}, within rounding and not reproducible"
        return SoakCheck(name, Outcome.NOTED, text)
    return SoakCheck(name, Outcome.PASSED, f"{len(compared)} of {len(compared)} as at the start")


def _fails_alone(answer: AnswerComparison) -> bool:
    assert answer.difference is not None
    return answer.again or answer.difference.wrong or answer.difference.margin is None


def _answers_under_load(compared: Sequence[AnswerComparison], seconds: float) -> SoakCheck:
    name = "answers under load"
    if not compared:
        return SoakCheck(name, Outcome.UNKNOWN, "no known prompt ran alongside other requests")
    other = [answer for answer in compared if answer.difference]
    if not other:
        text = f"{len(compared)} of {len(compared)} as at the start"
        return SoakCheck(name, Outcome.PASSED, text)
    counted = _format_count(other, compared)
    bad = [answer for answer in other if answer.difference and answer.difference.wrong]
    if bad:
        return SoakCheck(
            name, Outcome.FAILED, f"{_format_count(bad, compared)}; {_first_difference(bad)}"
        )
    first = [answer for answer in compared if answer.at_s <= seconds / 2]
    early = sum(1 for answer in first if answer.difference)
    later = len(other) - early
    chance = more_often(early, len(first), later, len(compared) - len(first))
    if chance <= FREQUENCY_SIGNIFICANCE:
        text = (
            f"{counted}, increasingly: {early} of {len(first)} in the first half, {later} of "
            f"{len(compared) - len(first)} in the second"
        )
        return SoakCheck(name, Outcome.FAILED, text)
    known = all(answer.difference and answer.difference.margin is not None for answer in other)
    reason = (
        "within rounding" if known else "which batching can explain; the engine reports no logprobs"
    )
    return SoakCheck(name, Outcome.NOTED, f"{counted}, {reason}, not more often in the second half")


def _format_count(some: Sequence[AnswerComparison], compared: Sequence[AnswerComparison]) -> str:
    return f"{len(some)} of {len(compared)} differ"


def _first_difference(bad: Sequence[AnswerComparison]) -> str:
    answer = bad[0]
    assert answer.difference is not None
    return f"first after {clock(answer.at_s)}, prompt {answer.prompt + 1}: {answer.difference.text}"


def _errors(seen: SoakRecord) -> SoakCheck:
    empty = sum(1 for error in seen.errors if error.kind == EMPTY)
    few = empty <= MAX_EMPTY_SHARE * sum(seen.requests.values())
    errors = [error for error in seen.errors if error.kind != EMPTY or not few]
    if not errors and empty:
        text = f"no request failed; {empty} answers had tokens but no text"
        return SoakCheck("errors", Outcome.NOTED, text)
    if not errors:
        return SoakCheck("errors", Outcome.PASSED, "no request failed")
    kinds = Counter(error.kind for error in errors)
    counted = ", ".join(f"{count} x {kind}" for kind, count in kinds.most_common())
    first = f"first after {clock(errors[0].at_s)}: {errors[0].text}"
    return SoakCheck("errors", Outcome.FAILED, f"{counted}; {first}")


def _breaks(seen: SoakRecord) -> SoakCheck:
    """Restarts, incidents and rungs."""
    starts = [event for event in seen.events if event.kind == STARTED]
    bad = [event for event in seen.events if event.kind in FAILING_EVENTS]
    parts = []
    if starts:
        times = "once" if len(starts) == 1 else f"{len(starts)} times"
        parts.append(f"the engine was restarted {times}, first after {clock(starts[0].at_s)}")
    if seen.rungs:
        parts.append(f"its plan was degraded: {', '.join(seen.rungs)}")
    parts += _texts(bad)
    if not parts:
        return SoakCheck("restarts", Outcome.PASSED, "no restart, no incident, no rung")
    return SoakCheck("restarts", Outcome.FAILED, "; ".join(parts))


def _events(seen: SoakRecord) -> SoakCheck:
    notable = [event for event in seen.events if event.kind in NOTABLE_EVENTS]
    if not notable:
        return SoakCheck("events", Outcome.PASSED, "the daemon reported nothing else")
    return SoakCheck("events", Outcome.NOTED, "; ".join(_texts(notable)))


def _texts(mishaps: Sequence[Mishap]) -> Iterator[str]:
    for mishap in mishaps[:MAX_NAMED]:
        yield f"after {clock(mishap.at_s)}: {mishap.text}"
    if len(mishaps) > MAX_NAMED:
        yield f"and {len(mishaps) - MAX_NAMED} more"


def clock(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
