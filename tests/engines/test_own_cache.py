"""On Turing the cache stays in 16 bits where these hold enough, and lose nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import ModelCard
from caovand.engines.vllm.planning.decisions import forecast
from tests.boxes.machines import box_with
from tests.boxes.models import model
from tests.core.machines import inventory, plan, turing

MOE, NINE = model("Qwen3-30B-A3B-AWQ"), model("Qwen3.5-9B")
LLAMA, DENSE = model("Llama-3.1-8B"), model("Qwen3.6-27B-AWQ")


@pytest.mark.parametrize(
    ("card", "box", "sections"),
    [
        (MOE, "t4-x4", {}),
        (NINE, "2080ti-22g-x2-nvlink", {}),  # 1.7 contexts, and as many sequences
        (DENSE, "2080ti-22g-x4", {}),
        (LLAMA, "2080ti-22g", {"model": {"max_model_len": 4096}}),
        (LLAMA, "2080ti-22g-x4", {"policy": {"workload": "long"}}),
    ],
)
def test_16_bits_that_hold_enough_are_kept(
    card: ModelCard, box: str, sections: dict[str, Any]
) -> None:
    machine = box_with(box, card)
    found = plan(machine, **sections)
    setting = found.settings["kv_cache_dtype"]
    assert (setting.value, setting.origin) == (None, "policy")
    assert found.value("attention_backend") == "FLASHINFER"
    rounded = plan(machine, **{**sections, "policy": {"kv_cache_dtype": "fp8"}})
    assert found.value("max_model_len") == rounded.value("max_model_len")
    times = forecast(found, machine).kv_tokens / found.value("max_model_len")
    assert times >= 1.5
    assert f"holds this context {times:.1f} times" in setting.reason
    assert '[policy] kv_cache_dtype = "fp8" for twice as much' in setting.reason


@pytest.mark.parametrize(
    ("card", "box", "sections", "why"),
    [
        (DENSE, "2080ti-22g-x2", {}, "in 16 bits the context would be "),
        (model("Qwen3.5-9B-AWQ"), "titan-rtx", {}, "this context 1.1 times"),
        (MOE, "2080ti-11g-x2", {}, "in 16 bits "),
        (LLAMA, "2080ti-22g-x4", {"policy": {"workload": "batch"}}, "cache would hold about "),
    ],
)
def test_8_bits_stay_where_16_would_cost_something_which_the_reason_names(
    card: ModelCard, box: str, sections: dict[str, Any], why: str
) -> None:
    found = plan(box_with(box, card), **sections)
    setting = found.settings["kv_cache_dtype"]
    assert setting.value == "fp8"
    assert why in setting.reason


def test_a_choice_of_the_operators_stands() -> None:
    machine = box_with("t4-x4", MOE)
    typed = plan(machine, policy={"kv_cache_dtype": "fp8"}).settings["kv_cache_dtype"]
    assert (typed.value, typed.origin) == ("fp8", "user")
    flag = plan(machine, engine={"extra_args": ["--kv-cache-dtype", "fp8"]})
    assert flag.settings["kv_cache_dtype"].origin == "user"


def test_other_processes_that_leave_room_for_8_bits_alone_do_not_stop_a_plan() -> None:
    busy = tuple(replace(gpu, free_mib=14_000) for gpu in turing(2))
    assert plan(inventory(DENSE, busy)).value("kv_cache_dtype") == "fp8"
