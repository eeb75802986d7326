"""Which cards are used, and over how many a model may be split."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.core.devices import indivisible
from caovand.core.forecast import forecast, gpus_of
from caovand.core.inventory import Gpu
from caovand.core.policy import Unplannable
from tests.core.machines import (
    A100,
    QWEN_27B,
    SMALL_HYBRID,
    inventory,
    plan,
    turing,
)

PASCAL = Gpu(0, "GTX 1080 Ti", (6, 1), 11264, 11000)
VOLTA = Gpu(0, "Tesla V100", (7, 0), 32768, 32000)
PARTS = tuple(
    replace(A100[0], name="A100 MIG 3g.40gb", total_mib=40192, free_mib=free, mig=True, uuid=uuid)
    for free, uuid in ((40000, "MIG-aaaa"), (39000, "MIG-bbbb"))
)


@pytest.mark.parametrize("old", [PASCAL, VOLTA])
def test_a_card_older_than_vllm_serves_is_left_out_and_said(old: Gpu) -> None:
    gpus = (old, *(replace(gpu, index=gpu.index + 1) for gpu in turing(2)))
    found = plan(inventory(gpus=gpus))
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "1,2"
    assert any(old.name in text and "SM75" in text for text in found.warnings)


@pytest.mark.parametrize("old", [PASCAL, VOLTA])
def test_only_cards_that_are_too_old_are_no_plan(old: Gpu) -> None:
    for engine in ({}, {"gpus": [0]}):
        with pytest.raises(Unplannable, match="no kernels before SM75; ") as caught:
            plan(inventory(SMALL_HYBRID, (old,)), engine=engine)
        assert caught.value.failure == "backend-unsupported"


def test_a_part_of_a_partitioned_card_is_planned_with_its_own_memory() -> None:
    machine = inventory(SMALL_HYBRID, PARTS)
    found = plan(machine)
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "MIG-aaaa"
    assert found.value("tensor_parallel_size") == 1
    assert gpus_of(found, machine) == PARTS[:1]
    assert plan(machine, engine={"gpus": [0]}).env["CUDA_VISIBLE_DEVICES"].value == "MIG-aaaa"


def test_a_partitioned_card_whose_parts_are_unknown_is_never_planned_whole() -> None:
    whole = replace(A100[0], mig=True, uuid="GPU-1")
    with pytest.raises(Unplannable, match=r"MIG.*CUDA_VISIBLE_DEVICES"):
        plan(inventory(SMALL_HYBRID, (whole,)))
    beside = replace(A100[0], index=1)
    found = plan(inventory(SMALL_HYBRID, (whole, beside)))
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "1"
    assert any("partitioned" in text for text in found.warnings)


def test_the_freest_cards_are_taken_where_not_all_are_needed() -> None:
    first, *rest = turing(3)
    found = plan(inventory(gpus=(replace(first, free_mib=9000), *rest)))
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "1,2"
    assert "most free memory" in found.env["CUDA_VISIBLE_DEVICES"].reason


def test_experts_are_cut_at_their_own_width() -> None:
    """Qwen3-30B-A3B: 6144 wide outside its experts, which are 768 wide, six groups of 128."""
    moe = replace(
        QWEN_27B, heads=32, kv_heads=4, linear=None, experts=128, expert_size=768,
        intermediate_size=6144, group_size=128,
    )  # fmt: skip
    assert indivisible(moe, 2) == ""
    assert "experts of 768" in indivisible(moe, 4)
    assert indivisible(replace(moe, experts=0), 4) == ""


def test_a_card_that_the_environment_names_is_the_one_forecast() -> None:
    gpus = tuple(replace(gpu, uuid=f"GPU-{gpu.index}f00") for gpu in turing(2))
    machine = inventory(SMALL_HYBRID, gpus)
    for name, seen in (("1", gpus[1:]), ("GPU-1f", gpus[1:]), ("", ())):
        found = plan(machine, engine={"env": {"CUDA_VISIBLE_DEVICES": name}})
        assert gpus_of(found, machine) == seen
    assert "names no card" in forecast(found, machine).reason
