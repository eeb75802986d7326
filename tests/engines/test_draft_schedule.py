"""Drafts by batch size: which plans have them, what they take, and how the ladder undoes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import EngineInfo, Inventory
from caovand.core.healing.failure import Finding
from caovand.core.healing.rung import ANY
from caovand.core.plan import Plan
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.healing.sizes import mtp_even, mtp_less
from caovand.engines.vllm.memory.settings import DEPTHS, candidate_of_plan
from caovand.engines.vllm.memory.steps import captured_mib
from caovand.engines.vllm.planning.draft_schedule import with_depth
from tests.boxes.models import model
from tests.core.machines import CUDA, H200, inventory, named, plan, turing
from tests.engines.test_drafters import drafted
from tests.engines.test_real_flags import engine

NEW = engine("0.33.0")
FEW = model("Qwen3.5-35B-A3B-AWQ")
DENSE = model("R1-Distill-Qwen-32B")
CRASH = Finding("illegal-access", "cuda.illegal", "serving")


def machine(release: EngineInfo = NEW, **changes: Any) -> Inventory:
    return replace(inventory(FEW, H200[:1], release), **changes)


def drafts(found: Plan) -> Any:
    return found.value("speculative_config")


def test_a_mixture_drafts_nothing_where_many_requests_share_a_step() -> None:
    setting = plan(machine()).settings["speculative_config"]
    rows = setting.value[DEPTHS]
    (first, last, depth), (begin, end, none) = rows
    assert (first, depth, none) == (1, setting.value["num_speculative_tokens"], 0)
    assert begin == last + 1 > 2
    assert end == plan(machine()).value("max_num_seqs")
    assert f"none from {begin} on" in setting.reason
    assert setting.origin == "policy"
    assert not ENGINE.planning.conflicts(plan(machine()), machine())


@pytest.mark.parametrize(
    ("release", "sections"),
    [
        (CUDA, {}),
        (NEW, {"how": {"mode": "stable"}}),
        (NEW, {"policy": {"mtp": 1}}),
        (NEW, {"how": {"environ": {"CAOVAN_AUTO_SPEC": "1"}}}),
        (NEW, {"policy": {"max_num_seqs": 4}}),
        (NEW, {"engine": {"env": {"VLLM_USE_V2_MODEL_RUNNER": "0"}}}),
        (NEW, {"how": {"mode": "fast"}}),  # more drafts than are fastest for one request
    ],
)
def test_the_depth_is_the_same_for_every_step(release: EngineInfo, sections: Any) -> None:
    found = plan(machine(release), **sections)
    assert found.mtp
    assert DEPTHS not in drafts(found)


def test_a_typed_schedule_stands() -> None:
    typed = '{"method":"mtp","num_speculative_tokens":3,"' + DEPTHS + '":[[1,2,3],[3,9,0]]}'
    found = plan(machine(), engine={"extra_args": ["--speculative-config", typed]})
    assert "modelled" not in found.settings["speculative_config"].reason


def test_replicas_ignore_a_schedule_and_have_none() -> None:
    words = {"extra_args": ["--data-parallel-size", "2"]}
    found = plan(replace(machine(), gpus=H200), engine=words)
    assert found.mtp
    assert DEPTHS not in drafts(found)


def test_a_drafters_block_is_halved() -> None:
    found = drafts(plan(inventory(drafted(), H200[:1], NEW)))
    depths = [depth for _, _, depth in found[DEPTHS]]
    assert depths[:2] == [15, 7]
    assert depths == sorted(depths, reverse=True)


def test_full_graphs_of_every_depth_are_forecast() -> None:
    found = plan(machine())
    with_all = candidate_of_plan(found, machine())
    assert with_all.narrower == (0,)
    alone = with_all.but(narrower=())
    assert captured_mib(FEW, with_all) > captured_mib(FEW, alone)
    cut = {"compilation": {"cudagraph_mode": "PIECEWISE"}}
    assert captured_mib(FEW, with_all.but(**cut)) == captured_mib(FEW, alone.but(**cut))
    two = replace(found.settings["max_num_seqs"], value=2)
    few = replace(found, settings={**found.settings, "max_num_seqs": two})
    assert candidate_of_plan(few, machine()).narrower == ()


def test_one_rung_drafts_evenly_before_any_drafts_less() -> None:
    found = plan(machine())
    step = mtp_even(found, CRASH)
    assert step is not None
    even = step.settings["speculative_config"]
    assert DEPTHS not in even
    assert even["num_speculative_tokens"] == found.mtp
    assert mtp_even(plan(machine(CUDA)), CRASH) is None
    cures = HEALING.cures["illegal-access", ANY]
    assert cures.index("mtp-even") < cures.index("mtp-safe")


def test_fewer_drafts_keep_the_rows_that_are_still_fewer() -> None:
    config = {"method": "mtp", "num_speculative_tokens": 3, DEPTHS: [[1, 4, 3], [5, 9, 1]]}
    assert with_depth(config, 2)[DEPTHS] == [[1, 4, 2], [5, 9, 1]]
    assert DEPTHS not in with_depth(config, 1)
    assert mtp_less(plan(machine()), CRASH) is not None


def adaptive(**changes: Any) -> list[str]:
    """Why this plan cannot choose how many drafts it verifies."""
    where = machine(model=changes.pop("model", FEW), gpus=changes.pop("gpus", H200[:1]))
    config = '{"method":"mtp","num_speculative_tokens":1,"enable_adaptive_verification":true}'
    words = ["--speculative-config", config, *changes.pop("words", ())]
    found = ENGINE.planning.conflicts(plan(where, engine={"extra_args": words}, **changes), where)
    return [str(one) for one in found if "adaptive" in str(one)]


def test_adaptive_verification_has_its_conditions() -> None:
    assert "Gated DeltaNet" in adaptive()[0]
    assert adaptive(model=DENSE) == []
    cut = {"policy": {"cuda_graphs": "piecewise"}}
    assert "whole steps in CUDA graphs" in adaptive(model=DENSE, **cut)[0]
    assert "whole steps in CUDA graphs" in adaptive(model=DENSE, words=("--enforce-eager",))[0]
    assert "LoRA" in adaptive(model=DENSE, words=("--enable-lora",))[0]
    stages = ("--pipeline-parallel-size", "2")
    assert "pipeline stages" in adaptive(model=DENSE, gpus=H200, words=stages)[0]
    flashinfer = ("--attention-backend", "FLASHINFER")
    assert "SM100 alone" in adaptive(model=DENSE, words=flashinfer)[0]
    assert "SM100 alone" in adaptive(model=DENSE, gpus=turing(2), words=flashinfer)[0]
    assert "FlashAttention 2" in adaptive(model=DENSE, gpus=named("A100", 1))[0]
    triton = ("--attention-backend", "TRITON_ATTN")
    assert adaptive(model=DENSE, gpus=named("A100", 1), words=triton) == []
