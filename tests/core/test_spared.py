"""Parts of a quantised checkpoint that are floats, by its lists, its shapes and its tensors."""

from __future__ import annotations

from typing import Any

import pytest

from caovand.core.checkpoint.config_json import describe
from caovand.core.checkpoint.quantisation import kept_as_floats
from caovand.engines.vllm.machine.ranks import shape_problem
from tests.boxes.models import GLM_AIR
from tests.core.test_config_json import DENSE

MIXTURE = {
    **DENSE, "n_routed_experts": 64, "moe_intermediate_size": 1408, "intermediate_size": 10944,
    "first_k_dense_replace": 1,
}  # fmt: skip
AWQ = {"quant_method": "awq", "bits": 4}


@pytest.mark.parametrize(
    ("how", "spared"),
    [
        ({"group_size": 128}, True),  # 10,944 is 85.5 groups
        ({"group_size": 64}, False),
        ({"group_size": 64, "modules_to_not_convert": ["model.layers.0."]}, True),
        ({"group_size": 64, "modules_to_not_convert": ["model.layers.1"]}, False),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, False),
    ],
)
def test_a_dense_mlp_is_floats_by_list_or_by_shape(how: dict[str, Any], spared: bool) -> None:
    card = describe({**MIXTURE, "quantization_config": {**AWQ, **how}})
    assert ("MLP" in card.spared) == spared


def test_the_groups_of_experts_do_not_limit_the_split_of_floats() -> None:
    """GLM-4.5-Air in AWQ: only experts are in groups of 128, and each card may hold whole ones."""
    listed = ["shared_experts", "model.layers.0."]
    how = {**AWQ, "group_size": 128, "modules_to_not_convert": listed}
    card = describe({**GLM_AIR, "quantization_config": how})
    assert shape_problem(card, 4, whole_experts=True) is None
    problem = shape_problem(card, 4)
    assert problem
    assert "its experts of 1408" in problem.fact


def test_tensors_say_what_is_float() -> None:
    layer = "model.layers.0."
    floats = [
        (f"{layer}mlp.gate_proj.weight", "F16", 1),
        (f"{layer}self_attn.q_proj.weight", "F16", 1),
        ("model.layers.1.mlp.shared_experts.up_proj.weight", "BF16", 1),
        ("model.layers.1.mlp.gate.weight", "F16", 1),
    ]
    packed = [
        ("model.layers.1.self_attn.q_proj.qweight", "I32", 1),
        ("model.layers.1.mlp.experts.7.up_proj.qweight", "I32", 1),
    ]
    assert kept_as_floats([*floats, *packed]) == {"MLP", "shared experts"}
    rounded = ("model.layers.2.mlp.up_proj.weight", "F8_E4M3", 1)
    assert kept_as_floats([*floats, *packed, rounded]) == {"shared experts"}
