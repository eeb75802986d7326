"""Plan, serve and status report a machine's shortages, not only the doctor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import Inventory
from caovand.core.facts.shortfalls import oldest_card
from caovand.core.plan import Plan
from caovand.engines.vllm.doctor import checkup
from tests.cli.test_offline_verbs import GOOD
from tests.core.machines import CPU, CUDA, H200, HOST, QWEN_27B, TINY_HYBRID, inventory, plan

SMALL = replace(HOST, ram_mib=32768, available_mib=30000, swap_mib=2048)
OLD = tuple(replace(gpu, driver="550.54", cuda="12.4") for gpu in H200)
CUDA_13 = replace(CUDA, cuda="13.0")
IN_ONE_FILE = replace(QWEN_27B, largest_file=QWEN_27B.size())


def told(machine: Inventory, part: str, **sections: Any) -> list[str]:
    return [text for text in plan(machine, **sections).warnings if part in text]


def diagnosed(machine: Inventory, made: Plan) -> list[CheckResult]:
    facts = replace(
        GOOD, gpus=machine.gpus, host=machine.host, engine=machine.engine, model=machine.model
    )
    return list(checkup(replace(facts, caveats=made.caveats)))


@pytest.mark.parametrize(
    ("machine", "part", "verdict", "remedy"),
    [
        (inventory(QWEN_27B, H200, host=SMALL), "2048 MiB swap: loading is slow", "WARN",
         "a smaller checkpoint"),
        (inventory(IN_ONE_FILE, H200, host=SMALL), "2048 MiB swap: mapping its largest file",
         "FAIL", "swapon"),
        (inventory(QWEN_27B, OLD, CUDA_13), "driver 550.54 supports CUDA 12.4", "FAIL",
         "driver 580.65"),
    ],
)  # fmt: skip
def test_what_the_machine_lacks_is_in_the_plan_and_once_in_the_doctors_report(
    machine: Inventory, part: str, verdict: str, remedy: str
) -> None:
    (text,) = told(machine, part)
    fact = text.partition("; ")[0]
    found = [finding for finding in diagnosed(machine, plan(machine)) if part in finding.text]
    assert [(finding.verdict, finding.text) for finding in found] == [(verdict, fact)]
    assert remedy in found[0].remedy


@pytest.mark.parametrize(
    "machine",
    [
        inventory(QWEN_27B, H200),
        inventory(QWEN_27B, H200, host=replace(SMALL, swap_mib=32768)),
        inventory(QWEN_27B, tuple(replace(gpu, cuda="13.1") for gpu in OLD), CUDA_13),
        inventory(QWEN_27B, tuple(replace(gpu, cuda="") for gpu in OLD), CUDA_13),
        inventory(QWEN_27B, OLD),  # an engine that does not tell its CUDA
        inventory(TINY_HYBRID, (), CPU, replace(SMALL, ram_mib=1024)),
    ],
)
def test_a_machine_that_lacks_nothing_is_told_nothing(machine: Inventory) -> None:
    assert not told(machine, "RAM and")
    assert not told(machine, "supports CUDA")


def test_weights_that_are_made_up_need_no_room_to_be_read() -> None:
    machine = inventory(QWEN_27B, H200, host=SMALL)
    assert not told(machine, "RAM and", engine={"extra_args": ["--load-format", "dummy"]})


@pytest.mark.parametrize("version", ["0.20.2", "0.35.0"])
def test_a_release_that_nobody_tried_is_in_the_plan_and_once_in_the_doctors_report(
    version: str,
) -> None:
    machine = inventory(QWEN_27B, H200, replace(CUDA, version=version))
    assert len(told(machine, "tested with (0.21 to 0.33)")) == 1
    found = diagnosed(machine, plan(machine))
    assert len([one for one in found if "tested with" in one.text]) == 1
    assert told(inventory(QWEN_27B, H200), "tested with") == []


def test_each_cuda_has_an_oldest_card() -> None:
    assert [oldest_card(cuda) for cuda in ("12.9", "13.0.96", None, "")] == [
        (5, 0), (7, 5), (5, 0), (5, 0),
    ]  # fmt: skip
