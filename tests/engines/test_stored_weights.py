"""Packed weights that vLLM's layers are not made for: every start would end on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.checkpoint.config_json import describe, invented_weights
from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.facts.packed import Packed
from caovand.engines.vllm.planning.decisions import conflicts
from tests.boxes.models import CONFIGS
from tests.core.machines import CUDA, inventory, named, plan

OLD, NEW = "0.21.0", "0.33.0"
MIXTURE, DENSE = "Qwen3-30B-A3B-AWQ", "Qwen3-32B-AWQ"
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}


def packed(ignore: tuple[str, ...] = (), inputs: Any = None, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {**INT4, **weights}, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head", *ignore],
        "config_groups": {"group_0": group},
    }


def card(name: str, stored: dict[str, Any]) -> ModelCard:
    config = {**CONFIGS[name], "quantization_config": stored}
    found = describe(config, path=f"/srv/models/{name}")
    return replace(found, weights=invented_weights(config, found))


def box(name: str, stored: dict[str, Any], version: str) -> Inventory:
    return inventory(card(name, stored), named("A100"), engine=replace(CUDA, version=version))


def refusal(name: str, stored: dict[str, Any], version: str, **sections: Any) -> str:
    """What the plan says that cannot be done; empty if it can."""
    machine = box(name, stored, version)
    return "; ".join(map(str, conflicts(plan(machine, **sections), machine, machine.gpus)))


ZEROS = packed(symmetric=False)


@pytest.mark.parametrize(
    ("name", "stored", "version", "word"),
    [
        (MIXTURE, ZEROS, OLD, "zero points"),
        (MIXTURE, ZEROS, NEW, ""),
        (MIXTURE, packed(), OLD, ""),
        (MIXTURE, packed(ignore=("re:.*mlp.experts.*",), symmetric=False), OLD, ""),
        (MIXTURE, packed(ignore=("re:.*shared_expert.*",), symmetric=False), OLD, "zero points"),
        (DENSE, ZEROS, OLD, ""),
        (DENSE, packed(num_bits=3), OLD, "3 bits"),
        (DENSE, packed(num_bits=3), NEW, ""),
        (MIXTURE, packed(inputs=TOKENS), NEW, "8-bit activations"),
        (MIXTURE, packed(inputs=TOKENS, num_bits=8), NEW, ""),
        (DENSE, packed(inputs=TOKENS), NEW, ""),
        (MIXTURE, GPTQ, OLD, ""),
        (MIXTURE, GPTQ, NEW, ""),
        (MIXTURE, {**GPTQ, "sym": False}, OLD, "zero points"),
        (MIXTURE, {**GPTQ, "bits": 3}, OLD, "3 bits"),
        (DENSE, {**GPTQ, "sym": False}, NEW, "zero points"),
        (DENSE, {**GPTQ, "bits": 3}, NEW, "3 bits"),
        (DENSE, {**GPTQ, "bits": 3}, OLD, ""),
        (DENSE, {**GPTQ, "desc_act": True}, NEW, "desc_act"),
        (DENSE, {**GPTQ, "desc_act": True, "group_size": -1}, NEW, ""),
        (DENSE, {**GPTQ, "desc_act": True}, OLD, ""),
    ],
)
def test_weights_that_a_release_cannot_read_are_refused(
    name: str, stored: dict[str, Any], version: str, word: str
) -> None:
    found = refusal(name, stored, version)
    assert word in found
    assert bool(word) == bool(found)


def test_the_remedy_is_the_release_that_reads_them_or_another_checkpoint() -> None:
    found = refusal(MIXTURE, ZEROS, OLD)
    assert "caovanctl engine install 0.33.0" in found
    assert "AWQ or GPTQ" in found


def test_old_kernels_of_gptq_compute_in_float16_alone() -> None:
    stored = {**GPTQ, "sym": False}
    assert plan(box(DENSE, stored, OLD)).value("dtype") == "half"
    assert plan(box(DENSE, GPTQ, OLD)).value("dtype") is None
    typed = {"engine": {"extra_args": ["--dtype", "bfloat16"]}}
    assert "float16" in refusal(DENSE, stored, OLD, **typed)


def test_the_groups_that_name_experts_describe_them() -> None:
    stored = packed()
    stored["config_groups"]["group_1"] = {
        "targets": ["re:.*mlp.experts.*"],
        "weights": {**INT4, "symmetric": False},
    }
    assert card(MIXTURE, stored).packed == Packed(4, symmetric=False)
    assert card(MIXTURE, packed(type="float")).packed is None
