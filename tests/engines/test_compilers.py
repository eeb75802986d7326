"""How many threads torch.compile has, of the cores and the host memory that a start leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.facts.inventory import Host, Inventory
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import LadderRules, decide
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.planning.environment import JOBS, MAX_COMPILE_THREADS, THREAD_MIB, THREADS
from tests.core.machines import CPU, CUDA, H200, HOST, QWEN_27B, TINY_HYBRID, inventory, plan
from tests.core.machines import turing as turing_cards

FAST = {"mode": "fast"}

WITH_PLUGIN = replace(CUDA, plugin="0.1.0")


def machine(cards: int = 1, **host: Any) -> Inventory:
    found = inventory(gpus=H200 if cards == 1 else turing_cards(cards), engine=WITH_PLUGIN)
    return replace(found, host=replace(HOST, **host))


def threads(seen: Inventory, **sections: Any) -> str | None:
    sections["policy"] = {**FAST, **sections.get("policy", {})}
    setting = plan(seen, **sections).env.get(THREADS)
    return setting and str(setting.value)


@pytest.mark.parametrize(
    ("seen", "count", "reason"),
    [
        (machine(cpus=6), "6", "6 cores"),
        (machine(2, cpus=12), "6", "for each of 2 workers: 12 cores"),
        (machine(cpus=64, ram_mib=400_000), str(MAX_COMPILE_THREADS), "at most"),
        (machine(cpus=16, ram_mib=30_000), "4", "MiB of host memory that loading leaves"),
        (machine(cpus=16, ram_mib=12_000), "1", "0 MiB of host memory"),
    ],
)
def test_cores_and_the_memory_that_loading_leaves_bound_the_threads(
    seen: Inventory, count: str, reason: str
) -> None:
    setting = plan(seen, policy=FAST).env[THREADS]
    assert setting.value == count
    assert reason in setting.reason


@given(
    cards=st.sampled_from((1, 2)),
    cpus=st.integers(0, 256),
    available=st.integers(0, 1 << 21),
)
def test_all_workers_together_stay_within_cores_and_memory(
    cards: int, cpus: int, available: int
) -> None:
    seen = machine(cards, cpus=cpus, ram_mib=available)
    found = plan(seen, policy=FAST)
    workers, each = len(found.cards or ()), int(found.env[THREADS].value)
    assert 1 <= each <= MAX_COMPILE_THREADS
    if each > 1:
        assert each * workers <= cpus
        assert each * workers * THREAD_MIB <= available - (seen.model.size() >> 20)


def test_no_threads_are_planned_where_nothing_compiles_or_nothing_would_set_them() -> None:
    assert threads(inventory()) is None  # no plugin
    assert threads(machine(), policy={"cuda_graphs": "none"}) is None
    assert threads(machine(), policy={"mode": "auto"}) is None  # measured on no card yet
    assert threads(inventory(TINY_HYBRID, (), CPU)) is None


def test_what_the_operator_typed_for_torch_reaches_it_though_vllm_sets_one() -> None:
    typed = {"engine": {"env": {"TORCHINDUCTOR_COMPILE_THREADS": "3"}}}
    assert threads(machine(), **typed) == "3"
    ours = {"engine": {"env": {THREADS: "2"}}}
    assert threads(machine(), **ours) == "2"


@pytest.mark.parametrize("failure", ["host-oom", "compile-failed"])
def test_one_thread_is_tried_first_where_many_may_have_failed(failure: Any) -> None:
    found = plan(machine(cpus=8), policy=FAST)
    compiling = Finding(failure, "it was killed", "compile")
    step = decide(found, compiling, 99, LadderRules(HEALING))
    assert step.text == "threads of torch.compile 8 -> 1"
    assert step.plan is not None
    assert not step.plan.degraded
    loading = replace(compiling, phase="load")
    assert "torch.compile" not in decide(found, loading, 99, LadderRules(HEALING)).text


def test_a_large_machine_uses_its_cores() -> None:
    host = Host(ram_mib=1 << 20, available_mib=900_000, swap_mib=0, shm_mib=1 << 18, cpus=16)
    seen = replace(inventory(QWEN_27B, H200, WITH_PLUGIN), host=host)
    assert threads(seen) == "16"


def test_memory_that_happens_to_be_free_changes_no_plan() -> None:
    free = [machine(cpus=16, available_mib=mib) for mib in (2_000, 60_000)]
    first, second = (plan(seen, policy=FAST).env for seen in free)
    assert first == second


@pytest.mark.parametrize(("ram_mib", "count"), [(1_000, "1"), (8_192, "4"), (65_536, "16")])
def test_compilers_of_kernels_are_bounded_by_memory_too(ram_mib: int, count: str) -> None:
    assert plan(machine(cpus=16, ram_mib=ram_mib)).env[JOBS].value == count
