"""How long each phase of a start may stall, equal in detector and machine."""

from __future__ import annotations

import pytest

from caovand.core.config.schema import WatchSection
from caovand.core.health import detector
from caovand.core.health.observation import LogLine, LogMark, WatchTick
from caovand.core.health.signs import Broken
from caovand.core.health.stall import STALL_S, stall_s
from caovand.core.lifecycle.events import Planned, Progressed, Start, TimePassed
from caovand.core.lifecycle.state import LifecycleRules, Snapshot
from caovand.core.lifecycle.transitions import step
from caovand.core.plan import Plan
from caovand.engines.vllm.log.phases import PHASES

NAMES = tuple(phase.name for phase in PHASES)
EVERY = ("", *NAMES)


def test_the_times_are_of_phases_that_are() -> None:
    assert set(STALL_S) <= set(NAMES)


def test_reading_and_compiling_have_longer_than_what_says_something_every_few_seconds() -> None:
    assert stall_s("http", None) < stall_s("engine", None) < stall_s("load", None)
    assert stall_s("load", None) == stall_s("drafter", None) == stall_s("compile", None) == 1800


@pytest.mark.parametrize("given", [None, 10.0])
@pytest.mark.parametrize("phase", EVERY)
def test_the_detector_waits_for_the_phases_time_and_no_longer(
    phase: str, given: float | None
) -> None:
    rules = detector.DetectorRules(WatchSection(stall_s=given))
    mark = LogLine("x", 100.0, LogMark(phase, "x") if phase else None)
    watch, _ = detector.observe(detector.begin(0.0), mark, rules)
    due = 100.0 + stall_s(phase, given)
    assert detector.observe(watch, WatchTick(due - 0.1), rules)[1] == ()
    (sign,) = detector.observe(watch, WatchTick(due), rules)[1]
    assert isinstance(sign, Broken)
    assert sign.finding.failure == "start-stall"


@pytest.mark.parametrize("given", [None, 10.0])
@pytest.mark.parametrize("phase", NAMES)
def test_the_machine_waits_for_the_phases_time_and_no_longer(
    phase: str, given: float | None
) -> None:
    rules = LifecycleRules(WatchSection(stall_s=given))
    s, _ = step(Snapshot(), Start(at=0.0), rules)
    s, _ = step(s, Planned(at=1.0, inspection=s.inspection, plan=Plan("m", {}, {})), rules)
    s, _ = step(
        s,
        Progressed(at=100.0, generation=s.generation, phase=phase, progress=None, detail=""),
        rules,
    )
    due = 100.0 + stall_s(phase, given)
    assert s.deadline == due
    assert step(s, TimePassed(at=due - 0.1), rules) == (s, ())
    failed, _ = step(s, TimePassed(at=due), rules)
    assert failed.finding is not None
    assert failed.finding.text == f"no progress in phase {phase} for {stall_s(phase, given):.0f} s"
