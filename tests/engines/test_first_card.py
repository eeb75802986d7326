"""vLLM chooses the kernels for all cards by the first one, so the oldest comes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.engines.vllm.memory.settings import gpus_of
from caovand.engines.vllm.planning.foreseen import foreseen_failure
from tests.boxes.models import model
from tests.core.machines import inventory, named, plan

AMPERE, ADA, BLACKWELL = (named(f"RTX {name}")[0] for name in ("3090", "4090", "5090"))
FP8, AWQ = model("Qwen3.6-27B-FP8"), model("Qwen3.6-27B-AWQ")
NVFP4 = replace(AWQ, quantization="modelopt_fp4", group_size=16)


def in_slots(*gpus: Gpu) -> tuple[Gpu, ...]:
    return tuple(replace(gpu, index=index) for index, gpu in enumerate(gpus))


@pytest.mark.parametrize("card", [FP8, AWQ, NVFP4])
@pytest.mark.parametrize(
    ("gpus", "visible"),
    [
        (in_slots(ADA, AMPERE), "1,0"),
        (in_slots(BLACKWELL, ADA), "1,0"),
        (in_slots(AMPERE, ADA), "0,1"),
        (in_slots(ADA, ADA), "0,1"),
    ],
)
def test_the_oldest_card_comes_first(card: ModelCard, gpus: tuple[Gpu, ...], visible: str) -> None:
    machine = inventory(card, gpus)
    found = plan(machine)
    setting = found.env["CUDA_VISIBLE_DEVICES"]
    assert setting.value == visible
    assert ("the oldest comes first" in setting.reason) == (gpus[0].name != gpus[1].name)
    assert [str(gpu.index) for gpu in gpus_of(found, machine)] == visible.split(",")
    assert foreseen_failure(found, machine) is None
    assert not any("the kernels for all cards" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("card", "gpus", "kind"),
    [
        (FP8, in_slots(ADA, AMPERE), "fp8 weights on GPU 1 (SM86)"),
        (NVFP4, in_slots(BLACKWELL, ADA), "NVFP4 weights on GPU 1 (SM89)"),
    ],
)
def test_an_operators_order_whose_kernels_the_oldest_lacks_is_refused(
    card: ModelCard, gpus: tuple[Gpu, ...], kind: str
) -> None:
    machine = inventory(card, gpus)
    failure = foreseen_failure(plan(machine, engine={"gpus": [0, 1]}), machine)
    assert failure is not None
    assert f"cannot compute {kind}" in failure.finding.text
    assert "set [engine] gpus = [1, 0]" in failure.finding.text
    assert foreseen_failure(plan(machine, engine={"gpus": [1, 0]}), machine) is None


@pytest.mark.parametrize(
    ("card", "gpus", "policy", "told"),
    [
        (FP8, in_slots(BLACKWELL, ADA), {}, "fp8 weights on GPU 1 (SM89)"),
        (NVFP4, in_slots(ADA, AMPERE), {}, "NVFP4 weights on GPU 1 (SM86)"),
        (AWQ, in_slots(BLACKWELL, ADA), {"kv_cache_dtype": "fp8"}, "an fp8 cache on GPU 1 (SM89)"),
        (AWQ, in_slots(ADA, AMPERE), {"kv_cache_dtype": "auto"}, ""),
        (FP8, in_slots(ADA, ADA), {}, ""),
    ],
)
def test_an_order_that_may_select_kernels_the_oldest_lacks_is_warned_of(
    card: ModelCard, gpus: tuple[Gpu, ...], policy: dict[str, str], told: str
) -> None:
    machine = inventory(card, gpus)
    found = plan(machine, engine={"gpus": [0, 1]}, policy=policy)
    assert foreseen_failure(found, machine) is None
    texts = [text for text in found.warnings if "the kernels for all cards" in text]
    assert len(texts) == bool(told)
    assert not told or f"can fail to compute {told}" in texts[0]


def test_replicas_each_choose_by_their_own_card() -> None:
    small = replace(model("Qwen3-8B"), quantization="fp8")
    machine = inventory(small, in_slots(ADA, AMPERE))
    words = {"gpus": [0, 1], "extra_args": ["--data-parallel-size", "2"]}
    assert foreseen_failure(plan(machine, engine=words), machine) is None
