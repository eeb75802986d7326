"""The checks that all engines share, and the order of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from caovand.core.doctor.checks import make_checkup, orphan_checks
from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.checks import CheckResult
from caovand.core.problem import Problem
from tests.cli.test_offline_verbs import GOOD


def old_driver(facts: DoctorFacts) -> Iterator[CheckResult]:
    yield CheckResult("driver", "FAIL", "the driver is old", "sudo apt install it")


def test_a_warning_of_the_plan_that_a_check_reports_is_not_repeated() -> None:
    warnings = ("the driver is old; install another", "the driver is older than that; wait")
    results = make_checkup(old_driver)(replace(GOOD, caveats=tuple(map(Problem.stated, warnings))))
    assert [(result.group, result.text, result.remedy) for result in results[:2]] == [
        ("driver", "the driver is old", "sudo apt install it"),
        ("plan", "the driver is older than that", "wait"),
    ]


def test_root_needs_no_sudo_for_any_engine() -> None:
    results = make_checkup(old_driver)(replace(GOOD, as_root=True))
    assert results[0].remedy == "apt install it"


def test_processes_that_outlived_their_engine_fail_together() -> None:
    orphans = ((7, "llama-server"), (9, "VLLM::EngineCore"))
    (result,) = orphan_checks(replace(GOOD, orphans=orphans))
    assert (result.group, result.verdict, result.remedy) == ("GPUs", "FAIL", "kill -9 7 9")
    assert "VLLM::EngineCore, llama-server (pid 7, 9)" in result.text
