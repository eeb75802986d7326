"""A checkpoint with the scales of an fp8 cache: vLLM keeps that cache unless asked for another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.checkpoint.config_json import describe
from caovand.core.facts.inventory import LatentAttention
from caovand.engines.vllm.memory.candidate import FLASHINFER_MIB
from caovand.engines.vllm.planning.decisions import forecast
from tests.boxes.machines import box_with
from tests.core.machines import inventory, named, plan, turing
from tests.engines.test_eight_bits import LLAMA, QWEN_2_5, WITH_NVCC, WITHOUT_FLASHINFER

DECLARED = replace(LLAMA, fp8_cache=True)
SCHEME = {"dynamic": False, "num_bits": 8, "type": "float"}


@pytest.mark.parametrize(
    ("quantised", "declared"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": SCHEME}, True),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, True),
        ({"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}, True),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": SCHEME}, True),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, False),
        ({"quant_method": "modelopt", "kv_cache_scheme": {**SCHEME, "num_bits": 4}}, False),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}, False),
        ({"quant_method": "awq", "kv_cache_scheme": SCHEME}, False),
        ({}, False),
    ],
)
def test_a_declared_cache_is_read(quantised: dict[str, Any], declared: bool) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1,
        "quantization_config": quantised,
    }  # fmt: skip
    assert describe(config).fp8_cache is declared


@pytest.mark.parametrize("card", ["RTX 3090", "RTX 5090", "A100"])
def test_it_is_planned_with_all_that_it_takes(card: str) -> None:
    machine = inventory(DECLARED, named(card), WITH_NVCC)
    found = plan(machine)
    assert found.value("kv_cache_dtype") == "fp8"
    assert "scales" in found.settings["kv_cache_dtype"].reason
    own = plan(machine, policy={"kv_cache_dtype": "bfloat16"})
    sizes = {"policy": {"max_num_seqs": 4, "max_num_batched_tokens": 2048}}
    parts = [
        dict(forecast(plan(machine, model={"max_model_len": 8192}, **one), machine).parts)
        for one in (sizes, {"policy": {**sizes["policy"], "kv_cache_dtype": "bfloat16"}})
    ]
    assert parts[0]["activations"] - parts[1]["activations"] == FLASHINFER_MIB
    assert own.value("kv_cache_dtype") == "bfloat16"


def test_auto_is_that_cache() -> None:
    machine = inventory(DECLARED, named("RTX 3090"), WITH_NVCC)
    tokens = [
        forecast(plan(machine, engine={"extra_args": ["--kv-cache-dtype", kind]}), machine)
        for kind in ("auto", "fp8", "bfloat16")
    ]
    assert tokens[0].kv_tokens == tokens[1].kv_tokens > tokens[2].kv_tokens


def test_cards_that_cannot_read_it_keep_the_model_s_own_type() -> None:
    machine = inventory(DECLARED, named("RTX 3090"), WITHOUT_FLASHINFER)
    found = plan(machine)
    assert found.value("kv_cache_dtype") == "bfloat16"
    assert "no attention backend supports here" in found.settings["kv_cache_dtype"].reason


@pytest.mark.parametrize(
    ("card", "kind"), [("H200", "fp8"), ("H100", "fp8"), ("RTX 5090", "fp8"), ("A100", "bfloat16")]
)
def test_compressed_pairs_are_read_from_eight_bits_from_sm89_on(card: str, kind: str) -> None:
    """Of MLA's attention only Triton's serves the A100, where it compiles no fp8."""
    latent = replace(DECLARED, latent=576, mla=LatentAttention(512, 128, 128), head_dim=0)
    found = plan(inventory(latent, named(card), WITH_NVCC))
    assert found.value("kv_cache_dtype") == kind
    sparse = plan(inventory(replace(latent, indexer=132), named(card), WITH_NVCC))
    assert sparse.value("kv_cache_dtype") == "bfloat16"
    assert "its own" in sparse.settings["kv_cache_dtype"].reason
    assert plan(box_with("b200", latent)).value("kv_cache_dtype") == "fp8"


def test_its_scales_are_no_reason_for_sixteen_bits() -> None:
    assert plan(inventory(DECLARED, turing(2), WITH_NVCC)).value("kv_cache_dtype") == "fp8"
    qwen = replace(QWEN_2_5, fp8_cache=True)
    found = plan(inventory(qwen, named("RTX 4090"), WITH_NVCC))
    assert found.value("kv_cache_dtype") == "fp8"
    assert not any("answer nonsense" in text for text in found.warnings)
