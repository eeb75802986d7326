"""Plans and forecasts as documents."""

from __future__ import annotations

import json

import pytest

from caovand.core.plan import Plan
from caovand.core.reporting.report import compare, describe, forecast_figures
from caovand.engines.vllm.planning.decisions import forecast
from tests.core.machines import inventory, plan


def test_a_plan_is_a_document_with_a_reason_for_every_setting() -> None:
    found = plan()
    document = json.loads(json.dumps(describe(found, ["vllm"], {}, forecast(found, inventory()))))
    assert document["settings"]["dtype"] == {
        "value": "half",
        "origin": "policy",
        "reason": "cards before SM80 do not support bfloat16",
    }
    assert set(document["memory"]) >= {
        "fits", "gpu_memory_utilization", "weights_gib", "kv_gib", "kv_tokens", "max_model_len",
        "reserve_mib", "advice",
    }  # fmt: skip
    assert document["identity"] == found.identity


def test_a_forecast_that_was_wrong_is_seen() -> None:
    memory = forecast(plan(), inventory())
    assert memory is not None
    reported = {"kv_tokens": memory.kv_tokens * 2, "weights_gib": memory.weights_mib / 1024}
    found = compare(forecast_figures(memory), reported)
    assert found["kv_tokens"]["off"] == -0.5
    assert found["weights_gib"]["off"] == 0
    assert "kv_gib" not in found


def test_each_stage_is_compared_with_what_it_reports_itself() -> None:
    """A figure without a stage is that of whichever reported first."""
    staged = plan(engine={"extra_args": ["--pipeline-parallel-size", "2"]})
    memory = forecast(staged, inventory())
    first, last = (dict(rank.parts)["weights"] / 1024 for rank in memory.ranks)
    reported = {
        "kv_tokens": memory.kv_tokens, "weights_gib": 1.0, "kv_gib": 1.0,
        "stage_0_weights_gib": first, "stage_1_weights_gib": 2 * last,
    }  # fmt: skip
    found = compare(forecast_figures(memory), reported)
    assert found.keys() == {"kv_tokens", "stage_0_weights_gib", "stage_1_weights_gib"}
    assert found["stage_0_weights_gib"]["off"] == pytest.approx(0, abs=0.001)
    assert found["stage_1_weights_gib"]["off"] == pytest.approx(-0.5, abs=0.001)


def test_a_secret_of_the_environment_is_shown_to_nobody() -> None:
    plan = Plan("m", {}, {})
    told = describe(
        plan, (), {"VLLM_API_KEY": "sesame", "HF_TOKEN": "hf_x", "OMP_NUM_THREADS": "4"}, None
    )
    assert told["env"] == {"VLLM_API_KEY": "***", "HF_TOKEN": "***", "OMP_NUM_THREADS": "4"}
