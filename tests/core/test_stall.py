"""How long each phase of a start may stand still, in the detector and in the machine alike."""

from __future__ import annotations

import pytest

from caovand.core import detector, machine
from caovand.core.config import WatchSection
from caovand.core.events import Planned, Progressed, Start
from caovand.core.events import Tick as Passed
from caovand.core.observation import LogLine, Mark, Tick
from caovand.core.plan import Plan
from caovand.core.stall import STALL_S, stall_s
from caovand.engines.vllm.phases import PHASES

EVERY = ("", *PHASES)


def test_the_times_are_of_phases_that_are() -> None:
    assert set(STALL_S) <= set(PHASES)


def test_reading_and_compiling_have_longer_than_what_says_something_every_few_seconds() -> None:
    assert stall_s("http", None) < stall_s("engine", None) < stall_s("load", None)
    assert stall_s("load", None) == stall_s("drafter", None) == stall_s("compile", None) == 1800


@pytest.mark.parametrize("given", [None, 10.0])
@pytest.mark.parametrize("phase", EVERY)
def test_the_detector_waits_for_the_phases_time_and_no_longer(
    phase: str, given: float | None
) -> None:
    rules = detector.rules_of(WatchSection(stall_s=given))
    mark = LogLine("x", 100.0, Mark(phase, "x") if phase else None)
    watch, _ = detector.observe(detector.begin(0.0), mark, rules)
    due = 100.0 + stall_s(phase, given)
    assert detector.observe(watch, Tick(due - 0.1), rules)[1] == ()
    (sign,) = detector.observe(watch, Tick(due), rules)[1]
    assert isinstance(sign, detector.Broken)
    assert sign.finding.failure == "start-stall"


@pytest.mark.parametrize("given", [None, 10.0])
@pytest.mark.parametrize("phase", PHASES)
def test_the_machine_waits_for_the_phases_time_and_no_longer(
    phase: str, given: float | None
) -> None:
    rules = machine.Rules(stall_s=given)
    s, _ = machine.step(machine.Snapshot(), Start(0.0), rules)
    s, _ = machine.step(s, Planned(1.0, 0.5, s.inspection, Plan("m", {}, {})), rules)
    s, _ = machine.step(s, Progressed(100.0, 0.5, s.generation, phase, None, ""), rules)
    due = 100.0 + stall_s(phase, given)
    assert s.deadline == due
    assert machine.step(s, Passed(due - 0.1, 0.5), rules) == (s, ())
    failed, _ = machine.step(s, Passed(due, 0.5), rules)
    assert failed.finding is not None
    assert failed.finding.text == f"no progress in phase {phase} for {stall_s(phase, given):.0f} s"
