"""Full CUDA graphs of a hybrid model need a block of the cache for each of its sequences."""

from __future__ import annotations

from typing import Any

import pytest

from caovand.engines.vllm.memory.estimate import kv_bytes
from caovand.engines.vllm.memory.kv_cache import layout_for
from caovand.engines.vllm.memory.settings import candidate_of_plan, gpus_of
from caovand.engines.vllm.memory.steps import graph_mode
from caovand.engines.vllm.planning.decisions import forecast
from tests.boxes.machines import box_with
from tests.boxes.models import model
from tests.core.machines import plan

MACHINE = box_with("3090", model("Qwen3.6-27B-AWQ-g32"))
WHOLE = ["--compilation-config", '{"cudagraph_mode": "FULL_AND_PIECEWISE"}']
SMALL: dict[str, Any] = {
    "model": {"max_model_len": 8192, "text_only": True},
    "policy": {"mtp": 0},
}


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"max_model_len": 8192}},
        {"model": {"max_model_len": 8192}, "policy": {"workload": "batch"}},
        {"policy": {"max_num_seqs": 64}},
        {"model": {"max_model_len": 8192}, "policy": {"max_num_seqs": 64}},
    ],
    ids=str,
)
def test_what_is_planned_can_be_captured(sections: dict[str, Any]) -> None:
    found = plan(MACHINE, **sections)
    candidate, gpus = candidate_of_plan(found, MACHINE), gpus_of(found, MACHINE)
    blocks = (
        kv_bytes(MACHINE.model, candidate, gpus) // layout_for(MACHINE.model, candidate).block_bytes
    )
    whole = not candidate.eager and "FULL" in graph_mode(candidate.compilation)
    assert candidate.sequences <= blocks or not whole
    assert forecast(found, MACHINE).fits


def test_a_typed_context_lets_in_as_many_as_the_cache_holds() -> None:
    found = plan(MACHINE, model={"max_model_len": 8192})
    assert found.value("max_num_seqs") <= max(forecast(found, MACHINE).concurrency * 2, 2)


def test_flags_that_leave_too_few_blocks_do_not_fit() -> None:
    few = plan(MACHINE, **SMALL, engine={"extra_args": ["--max-num-seqs", "16", *WHOLE]})
    assert forecast(few, MACHINE).fits
    many = plan(MACHINE, **SMALL, engine={"extra_args": ["--max-num-seqs", "128", *WHOLE]})
    memory = forecast(many, MACHINE)
    assert memory.fits is False
    assert "full CUDA graphs of this model need one for each of 128 sequences" in memory.lack
    assert [text for text in many.warnings if memory.lack in text]
    pieces = ["--compilation-config", '{"cudagraph_mode": "PIECEWISE"}']
    cut = plan(MACHINE, **SMALL, engine={"extra_args": ["--max-num-seqs", "128", *pieces]})
    assert not forecast(cut, MACHINE).lack
