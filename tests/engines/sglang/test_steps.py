"""Shorter steps where they lengthen a context that ends below the model's limit."""

from __future__ import annotations

from caovand.engines.sglang.engine import ENGINE
from tests.boxes.models import model
from tests.core.machines import named
from tests.engines.sglang.test_planner import machine, plan


def test_a_shorter_step_lengthens_a_context_that_is_cut() -> None:
    inventory = machine(named("RTX 3090"), model("Qwen3-8B"))
    usual = plan(inventory, policy={"max_num_batched_tokens": 4096})
    found = plan(inventory)
    assert found.value("chunked_prefill_size") == 2048
    assert found.value("max_model_len") >= 1.08 * usual.value("max_model_len")
    assert ENGINE.planning.forecast(found, inventory).fits
    batch = plan(inventory, policy={"workload": "batch"})
    assert batch.value("chunked_prefill_size") == 4096
