"""The durations of a start's phases."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.health import detector
from caovand.core.health.observation import LogLine
from caovand.core.health.signs import Advanced
from caovand.core.lifecycle.events import Progressed, Proven
from caovand.core.lifecycle.state import Snapshot, State
from caovand.core.plan import Plan
from caovand.core.reporting import starts
from caovand.core.reporting.starts import CompletedStart, StartInProgress
from caovand.engines.vllm.log.reader import LOG
from tests.daemon_process import ROOT

LAUNCHES = frozenset({"resolve"})
STOPPED = Snapshot()
SERVING = Snapshot(state=State.SERVING, plan=Plan("/m", {}, {}), generation=1)
BEGUN = replace(SERVING, state=State.STARTING, phase="plan")


def progressed(at: float, phase: str, *, heartbeat: bool = False) -> Progressed:
    return Progressed(at=at, generation=1, phase=phase, heartbeat=heartbeat)


def timed(steps: Sequence[tuple[float, str]], serves_at: float) -> StartInProgress:
    """The course of a start that shows these phases at these times, and begins at 0."""
    course, before = starts.follow(None, STOPPED, BEGUN, progressed(0, "plan"), LAUNCHES), BEGUN
    for at, phase in steps:
        after = replace(before, phase=phase)
        course = starts.follow(course, before, after, progressed(at, phase), LAUNCHES)
        before = after
    proven = Proven(at=serves_at, generation=1)
    last = starts.follow(course, before, SERVING, proven, LAUNCHES)
    assert last is not None
    return last


def test_phases_are_timed_and_a_silent_end_is_the_launch_of_a_process() -> None:
    steps = [
        (1.0, "launch"),
        (21.0, "resolve"),
        (41.0, "resolve"),
        (53.0, "engine"),
        (54.0, "load"),
        (76.0, "compile"),
        (80.0, "load"),
        (82.0, "compile"),
    ]
    assert timed(steps, 100.0).spent == {
        "plan": 1.0, "launch": 32.0, "resolve": 20.0, "engine": 1.0, "load": 24.0, "compile": 22.0,
    }  # fmt: skip


@given(
    st.lists(st.tuples(st.floats(0, 500), st.sampled_from(["resolve", "load", "http"]))),
    st.floats(0, 500),
)
def test_no_second_is_lost_or_counted_twice(steps: list[tuple[float, str]], more_s: float) -> None:
    at, told = 0.0, []
    for seconds, phase in steps:
        at += seconds
        told.append((at, phase))
    spent = timed(told, at + more_s).spent
    assert sum(spent.values()) == pytest.approx(at + more_s)
    assert all(seconds > 0 for seconds in spent.values())


def test_a_heartbeat_is_no_progress_and_a_failed_start_is_not_timed() -> None:
    course = StartInProgress(1, "resolve", 0.0, 5.0)
    resolving = replace(BEGUN, phase="resolve")
    waiting = progressed(9.0, "resolve", heartbeat=True)
    assert starts.follow(course, resolving, resolving, waiting, LAUNCHES) == course
    for state in (State.RECYCLING, State.STOPPING, State.HOLD):
        failed = replace(SERVING, state=state)
        assert starts.follow(course, resolving, failed, waiting, LAUNCHES) is None


def test_another_attempt_is_timed_anew() -> None:
    again = replace(BEGUN, generation=2)
    course = starts.follow(
        StartInProgress(1, "load", 0.0, 5.0), BEGUN, again, progressed(9.0, ""), LAUNCHES
    )
    assert course == StartInProgress(2, "plan", 9.0, 9.0)


def test_a_real_log_is_told_apart() -> None:
    """vLLM 0.21 on an H200: 13 of its 134 s are the import of the engine core."""
    log = (ROOT / "tests/samples/logs/vllm-0.21.0-h200-q27_mtp3.log").read_text()
    rules, watch = detector.DetectorRules(), detector.begin(0.0)
    first, steps, figures = None, list[tuple[float, str]](), dict[str, Any]()
    for line in log.splitlines():
        clock = re.search(r" (\d\d):(\d\d):(\d\d) \[", line)
        if clock is None:
            continue
        hours, minutes, seconds = map(int, clock.groups())
        at = hours * 3600.0 + minutes * 60 + seconds
        first = at if first is None else first
        mark, found = LOG.read(line)
        figures = {**found, **figures}
        watch, signs = detector.observe(watch, LogLine(line, at - first, mark), rules)
        steps += [(s.at, s.phase) for s in signs if isinstance(s, Advanced)]
        if mark and mark.phase == LOG.listening:
            break
    start = starts.finish_start(timed(steps, steps[-1][0]), "plan", 0.0, figures)
    assert start.phases["launch"] == 13
    assert start.phases["compile"] == 101
    assert start.seconds == sum(start.phases.values()) == 134
    assert start.reported == {
        "load_s": 0.833299, "dynamo_s": 8.71, "compile_s": 43.4, "profile_s": 55.45,
        "capture_s": 1.0, "engine_init_s": 116.48,
    }  # fmt: skip


def start(plan: str = "a", seconds: float = 96.0, **phases: float) -> CompletedStart:
    return CompletedStart(plan, 1000.0, seconds, phases, {"load_s": 22.04})


def test_the_start_before_is_the_latest_of_the_same_plan_or_of_any() -> None:
    one, two, three = start("a", 1), start("b", 2), start("a", 3)
    assert starts.earlier_start((one, two, three), "a") == three
    assert starts.earlier_start((one, two), "a") == one
    assert starts.earlier_start((one, two), "c") == two
    assert starts.earlier_start((), "a") is None


def test_people_read_whole_seconds_and_the_rest_together() -> None:
    now = start(seconds=248.3, launch=60.2, load=22.4, compile=84.1, kv=0.3, http=80.9)
    assert starts.duration_text(now.seconds, now.phases) == (
        "248 s: launch 60, load 22, compile 84, http 81, other 1"
    )
    before = start(seconds=96.2, load=96.2)
    assert starts.start_text(now, None).endswith("http 81, other 1")
    assert starts.start_text(now, before).endswith("; the previous one took 96 s: load 96")
    other = starts.start_text(now, replace(before, plan="b"))
    assert other.endswith("; the previous one, with another plan, took 96 s: load 96")


def test_what_is_kept_is_read_again_and_is_bounded() -> None:
    many = tuple(start(str(n), n, load=float(n)) for n in range(20))
    document = json.loads(json.dumps(starts.to_document(many)))
    assert starts.from_document(document) == many[-starts.MAX_STARTS :]


GOOD = starts.to_document([start(load=3.0)])["starts"][0]


@pytest.mark.parametrize(
    "one",
    [
        {**GOOD, "seconds": -1},
        {**GOOD, "seconds": True},
        {**GOOD, "seconds": float("nan")},
        {**GOOD, "at": "today"},
        {**GOOD, "plan": 3},
        {**GOOD, "phases": {"load": None}},
        {**GOOD, "phases": {str(n): 1 for n in range(100)}},
        {**GOOD, "reported": {"x" * 100: 1}},
        {**GOOD, "more": 1},
        {},
        None,
    ],
)
def test_what_has_another_form_is_no_start(one: Mapping[str, Any] | None) -> None:
    assert starts.from_document({"starts": [one]}) is None
    assert starts.from_document({"starts": [GOOD, one]}) is None


@pytest.mark.parametrize("document", [None, [], {}, {"starts": {}}, {"starts": [GOOD] * 99}])
def test_what_has_another_form_is_no_list_of_starts(document: Any) -> None:
    assert starts.from_document(document) is None
