"""Shorter steps where they lengthen a context that ends below the model's limit."""

from __future__ import annotations

from dataclasses import replace

from caovand.engines.sglang.engine import ENGINE
from tests.boxes.models import model
from tests.core.machines import named
from tests.engines.sglang.test_planner import machine, plan

EXACT = {"kv_cache_dtype": "bfloat16"}


def test_a_shorter_step_lengthens_a_context_that_is_cut() -> None:
    gpus = tuple(replace(gpu, free_mib=gpu.free_mib - 700) for gpu in named("RTX 3090"))
    inventory = machine(gpus, model("Qwen3-8B"))
    usual = plan(inventory, policy={**EXACT, "max_num_batched_tokens": 4096})
    found = plan(inventory, policy=EXACT)
    assert found.value("chunked_prefill_size") == 2048
    assert found.value("max_model_len") >= 1.08 * usual.value("max_model_len")
    assert ENGINE.planning.forecast(found, inventory).fits
    batch = plan(inventory, policy={**EXACT, "workload": "batch"})
    assert batch.value("chunked_prefill_size") == 4096
