"""Marlin's tiles: how fp8 weights are split on cards without fp8, in releases that pad none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.checkpoint.config_json import describe
from caovand.core.facts.inventory import EngineInfo, Gpu, ModelCard, Weights
from caovand.core.plan import Unplannable
from caovand.engines.vllm import releases
from caovand.engines.vllm.machine.capabilities import needs_whole_tiles
from caovand.engines.vllm.machine.ranks import shape_problem
from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.planning.foreseen import foreseen_failure
from tests.boxes.machines import SERVER
from tests.boxes.models import FP8_CHANNELS, LLAMA_70B, QWEN_MOE, model
from tests.core.machines import CUDA, GEMMA_4, cards, inventory, named, plan

VLLM_033 = replace(CUDA, version="0.33.0")
AMPERE_X4 = named("A100 40 GB", 4)
ADA_X4 = cards(4, "NVIDIA L40S", (8, 9), 46068)
PAIR = named("RTX 3090", 2)
GLM = model("GLM-4.5-Air-FP8")
GEMMA = replace(GEMMA_4, dense_size=2112)
GEMMA_FP8 = replace(
    GEMMA,
    path="/srv/models/gemma-4-26B-A4B-it-FP8",
    quantization="compressed-tensors",
    weights=tuple(
        replace(one, dtype="F8_E4M3", size=one.size // 2)
        if one.part in ("layers", "experts")
        else one
        for one in GEMMA.weights
    ),
)
IN_FP8 = {"extra_args": ["--quantization", "fp8"]}
INSTALL = "sudo caovanctl engine install 0.33.0"


def splits(config: dict[str, Any], **how: Any) -> list[int]:
    card = describe(config)
    return [size for size in range(1, 9) if not shape_problem(card, size, whole_tiles=True, **how)]


MOE = {
    **QWEN_MOE, "hidden_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 64,
    "intermediate_size": 12288, "moe_intermediate_size": 1024,
}  # fmt: skip
DENSE = {**LLAMA_70B, "quantization_config": FP8_CHANNELS}
SPARING = {**FP8_CHANNELS, "ignore": ["re:.*shared_expert.*", "re:.*mlp.gate_up_proj"]}


@pytest.mark.parametrize(
    ("config", "how", "allowed"),
    [
        (MOE, {}, [1, 2, 4, 8]),
        ({**MOE, "moe_intermediate_size": 704}, {}, [1]),  # 352 rows
        ({**MOE, "moe_intermediate_size": 768}, {}, [1, 2, 4]),  # 96 rows
        ({**MOE, "moe_intermediate_size": 704}, {"whole_experts": True}, [1, 2, 4, 8]),
        ({**MOE, "shared_expert_intermediate_size": 704}, {"whole_experts": True}, [1]),
        ({**MOE, "shared_expert_intermediate_size": 704, "quantization_config": SPARING}, {},
         [1, 2, 4, 8]),
        ({**MOE, "intermediate_size": 10944, "mlp_only_layers": [0]}, {}, [1]),  # 5472 rows
        ({**MOE, "intermediate_size": 10944, "mlp_only_layers": [0],
          "quantization_config": SPARING}, {}, [1, 2, 4, 8]),
        ({**DENSE, "intermediate_size": 29568}, {}, [1, 2]),  # 7392 rows
        ({**DENSE, "intermediate_size": 4304}, {}, []),
        # A row of 2880 is no multiple of 128, so the other side must be.
        ({**DENSE, "hidden_size": 2880, "intermediate_size": 1088}, {}, []),
        ({**DENSE, "hidden_size": 2880, "intermediate_size": 2176}, {}, [1]),
        ({**DENSE, "head_dim": 24}, {}, [1, 2, 4, 8]),
        ({**DENSE, "num_attention_heads": 24, "head_dim": 24}, {}, [1]),
    ],
)  # fmt: skip
def test_every_kind_of_layer_is_whole_tiles_on_every_rank(
    config: dict[str, Any], how: dict[str, Any], allowed: list[int]
) -> None:
    assert splits(config, **how) == allowed


def test_gates_are_quantised_only_while_loading() -> None:
    at_load, stored = model("Qwen3.6-27B"), model("Qwen3.6-27B-FP8")
    assert "gates of 96 would have 96 rows" in str(shape_problem(at_load, 1, whole_tiles=True))
    assert shape_problem(stored, 2, whole_tiles=True) is None


@pytest.mark.parametrize(
    ("card", "quantization", "gpus", "engine", "whole"),
    [
        (GLM, "", AMPERE_X4, CUDA, True),
        (GLM, "", ADA_X4, CUDA, False),
        (GLM, "", (*ADA_X4[:1], *AMPERE_X4[:1]), CUDA, True),
        (GLM, "", AMPERE_X4, VLLM_033, False),
        (GLM, "", AMPERE_X4, replace(CUDA, version=f"{releases.name(releases.MARLIN_PADS)}.0"),
         False),
        (GEMMA_FP8, "", PAIR, CUDA, True),
        (GEMMA, "", PAIR, CUDA, False),
        (GEMMA, "fp8", PAIR, CUDA, True),
        (GEMMA, "bitsandbytes", PAIR, CUDA, False),
        (model("GLM-4.5-Air-AWQ"), "", PAIR, CUDA, False),
        (replace(GEMMA_FP8, quantization="modelopt_fp4", weights=(
            Weights("experts", "sharded", "U8", 16), Weights("experts", "sharded", "F8_E4M3", 2),
        )), "", PAIR, CUDA, False),  # whose scales are fp8
    ],
)  # fmt: skip
def test_marlin_computes_fp8_weights_before_sm89(
    card: ModelCard, quantization: str, gpus: tuple[Gpu, ...], engine: EngineInfo, whole: bool
) -> None:
    assert needs_whole_tiles(card, quantization, gpus, engine) == whole


@pytest.mark.parametrize(
    ("card", "gpus", "engine", "sections", "ranks"),
    [
        (GLM, AMPERE_X4, CUDA, {}, (1, 4)),
        (GLM, AMPERE_X4, VLLM_033, {}, (4, None)),
        (GLM, ADA_X4, CUDA, {}, (4, None)),
        (GEMMA_FP8, PAIR, CUDA, {}, (1, 2)),
        (GEMMA_FP8, PAIR, VLLM_033, {}, (2, None)),
        (GEMMA, PAIR, CUDA, {"engine": IN_FP8}, (1, 2)),
        (GEMMA, PAIR, VLLM_033, {"engine": IN_FP8}, (2, None)),
    ],
)
def test_a_split_that_breaks_tiles_gives_way_to_stages(
    card: ModelCard,
    gpus: tuple[Gpu, ...],
    engine: EngineInfo,
    sections: dict[str, Any],
    ranks: tuple[int, int | None],
) -> None:
    machine = inventory(card, gpus, engine, SERVER)
    found = plan(machine, **sections)
    stages = found.settings.get("pipeline_parallel_size")
    assert (found.value("tensor_parallel_size"), stages and stages.value) == ranks
    assert found.value("cpu_offload_gb") is None
    assert forecast(found, machine).fits
    if stages:
        assert "352 rows a card, not a multiple of 64" in stages.reason


def test_16_bit_weights_are_quantised_while_loading_in_stages_if_only_these_are_whole_tiles() -> (
    None
):
    found = plan(inventory(GEMMA, PAIR))
    assert found.value("quantization") == "fp8"
    assert found.value("pipeline_parallel_size") == 2
    assert "352 rows a card" in found.settings["pipeline_parallel_size"].reason
    newer = plan(inventory(GEMMA, PAIR, VLLM_033))
    assert newer.value("quantization") == "fp8"
    assert newer.value("tensor_parallel_size") == 2


def test_experts_stay_whole_where_only_they_break_tiles() -> None:
    config = {**MOE, "moe_intermediate_size": 704, "quantization_config": FP8_CHANNELS}
    found = plan(inventory(replace(describe(config), weights=GLM.weights), AMPERE_X4, host=SERVER))
    assert found.value("tensor_parallel_size") == 4
    assert found.value("enable_expert_parallel") is True
    assert "352 rows a card" not in found.settings["enable_expert_parallel"].reason
    assert "176 rows a card" in found.settings["enable_expert_parallel"].reason


def test_an_operators_split_that_breaks_tiles_is_refused_with_the_release_that_pads() -> None:
    machine = inventory(GLM, AMPERE_X4, host=SERVER)
    with pytest.raises(Unplannable, match=f"352 rows a card.*{INSTALL}"):
        plan(machine, policy={"tensor_parallel_size": 4})
    verbatim = plan(machine, engine={"extra_args": ["--tensor-parallel-size", "4"]})
    failure = foreseen_failure(verbatim, machine)
    assert failure is not None
    assert "352 rows a card" in failure.finding.text
    assert INSTALL in failure.finding.text


def test_a_model_without_whole_tiles_is_refused_on_one_card_too() -> None:
    card = replace(model("Phi-4"), intermediate_size=17900, quantization="fp8")
    machine = inventory(card, named("RTX 3090"))
    failure = foreseen_failure(plan(machine), machine)
    assert failure is not None
    assert "cannot compute its fp8 weights: its MLP of 17900" in failure.finding.text
    newer = inventory(card, named("RTX 3090"), VLLM_033)
    assert foreseen_failure(plan(newer), newer) is None


@pytest.mark.parametrize("kind", ["qwen3_vl", "gemma3"])
def test_an_operators_fp8_leaves_out_a_tower_that_breaks_tiles(kind: str) -> None:
    tower = Weights("vision", "sharded", "BF16", 1_150_000_000)
    small = model("Qwen3-8B")
    card = replace(small, model_type=kind, vision=True, weights=(*small.weights, tower))
    machine = inventory(card, named("RTX 3090"))
    found = plan(machine, engine=IN_FP8)
    assert found.value("language_model_only") is True
    assert "Marlin's tiles" in found.settings["language_model_only"].reason
    seeing = plan(machine, engine=IN_FP8, model={"text_only": False})
    failure = foreseen_failure(seeing, machine)
    assert failure is not None
    assert "cannot quantise the vision tower while it loads" in failure.finding.text
    newer = inventory(card, named("RTX 3090"), VLLM_033)
    assert plan(newer, engine=IN_FP8).value("language_model_only") is None


def test_advice_names_only_checkpoints_that_these_cards_can_split() -> None:
    halves: dict[str, Any] = {"policy": {"tensor_parallel_size": 2}}
    found = plan(inventory(GEMMA, PAIR), **halves)
    assert found.value("cpu_offload_gb")
    assert not any("checkpoint (" in text for text in (*found.warnings, *found.advice))
    even = replace(GEMMA, expert_size=768, dense_size=2048)
    even = replace(even, linear=model("Qwen3.6-27B").linear)  # which is not quantised at load
    found = plan(inventory(even, PAIR), **halves)
    assert found.value("cpu_offload_gb")
    assert any("gemma-4-26B-A4B-FP8" in text for text in found.warnings)
