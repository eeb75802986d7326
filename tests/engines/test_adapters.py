"""Memory that vLLM sets aside for LoRA adapters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import ModelCard
from caovand.engines.vllm.memory.candidate import adapters_bytes, adapters_of
from caovand.engines.vllm.planning.decisions import forecast
from tests.core.machines import A100, LLAMA_70B_AWQ, QWEN_27B_MEASURED, inventory, plan, weights

LLAMA_8B = replace(
    LLAMA_70B_AWQ, architecture="LlamaForCausalLM", model_type="llama", quantization=None,
    layer_types=("full_attention",) * 32, hidden_size=4096, intermediate_size=14336, heads=32,
    kv_heads=8, head_dim=128, vocab_size=128_256, max_model_len=131_072,
    weights=weights(layers=13.0, embedding=0.98, head=0.98),
)  # fmt: skip
LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 64}
# By layer: qkv 3 x 4096 + 6144, o 2 x 4096, gate and up 2 x 4096 + 2 x 14336, down 14336 + 4096;
# and embedding and head, 128256 + 4096 each.
PER_RANK = 32 * (3 * 4096 + 6144 + 2 * 4096 + 2 * 4096 + 2 * 14336 + 14336 + 4096) + 2 * 132_352


@pytest.mark.parametrize(
    ("values", "ranks", "numbers"),
    [
        ({}, 1, PER_RANK * 64 * 2),
        ({"max_loras": 1, "max_lora_rank": None}, 1, PER_RANK * 16),
        ({"lora_target_modules": ["o_proj"]}, 1, 32 * 2 * 4096 * 128),
        ({"lora_target_modules": ["o_proj"]}, 4, 32 * (1024 + 4096) * 128),
        ({"lora_target_modules": ["o_proj"], "fully_sharded_loras": True}, 4, 32 * 2048 * 128),
        ({"enable_lora": False}, 1, 0),
    ],
)
def test_slots_of_the_largest_rank_are_counted(values: Any, ranks: int, numbers: int) -> None:
    adapters = adapters_of({**LORA, **values}, 2)
    assert adapters_bytes(LLAMA_8B, adapters, ranks) == 2 * numbers


def test_adapters_shorten_the_context_by_what_they_take() -> None:
    machine = inventory(LLAMA_8B, A100)
    words = ["--enable-lora", "--max-loras", "8", "--max-lora-rank", "256"]
    bare, found = plan(machine), plan(machine, engine={"extra_args": words})
    memory, before = forecast(found, machine), forecast(bare, machine)
    assert memory.fits
    adapters = adapters_of({**LORA, "max_loras": 8, "max_lora_rank": 256}, 2)
    taken = adapters_bytes(LLAMA_8B, adapters, 1) / (1 << 20)
    assert memory.weights_mib - before.weights_mib == pytest.approx(taken)
    assert 10_000 < taken < 12_000
    assert found.value("max_model_len") > 4096


@pytest.mark.parametrize("model", [QWEN_27B_MEASURED, replace(LLAMA_8B, experts=8)])
def test_adapters_of_other_layers_are_not_forecast(model: ModelCard) -> None:
    machine = inventory(model, A100)
    found = plan(machine, engine={"extra_args": ["--enable-lora"]})
    assert forecast(found, machine).reason.startswith("--enable-lora is set, and the adapters")


def test_a_real_engine_made_the_same_room() -> None:
    """The sum of lora_a_stacked and lora_b_stacked of the tiny dense model in vLLM 0.32."""
    tiny = replace(
        LLAMA_8B, model_type="qwen3", layer_types=("full_attention",) * 2, hidden_size=64,
        intermediate_size=128, heads=4, kv_heads=2, head_dim=32, vocab_size=512,
    )  # fmt: skip
    made = adapters_of({**LORA, "max_lora_rank": 8}, 2)
    assert adapters_bytes(tiny, made, 1) == 114_688
