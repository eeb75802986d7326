"""How deep the policy drafts: by users, by what publishers do, and by active parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import ModelCard, Weights
from caovand.engines.common.tensors import active_parameters
from tests.boxes.machines import box_with
from tests.boxes.models import model
from tests.core.machines import plan

DENSE, FEW, DEEPSEEK = (
    model("Qwen3.6-27B"), model("Qwen3.5-35B-A3B-AWQ"), model("DeepSeek-R1-AWQ"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("card", "box", "sections", "depth", "why"),
    [
        (DENSE, "h100", {}, 3, "mode auto drafts 3 tokens"),
        (DENSE, "h100", {"policy": {"workload": "batch"}}, 1, "1024 users"),
        (DENSE, "h100", {"policy": {"max_num_seqs": 64}}, 1, "64 users"),
        (DENSE, "h100", {"policy": {"max_num_seqs": 4}}, 3, "mode auto drafts 3 tokens"),
        (DENSE, "h100", {"policy": {"mode": "fast", "max_num_seqs": 64}}, 4, "mode fast"),
        (DENSE, "h100", {"policy": {"mtp": 3, "max_num_seqs": 64}}, 3, "[policy] mtp is 3"),
        (DENSE, "h100", {"engine": {"extra_args": ["--max-num-seqs", "256"]}}, 0,
         "--max-num-seqs 256 is for many users"),
        (DENSE, "h100", {"engine": {"extra_args": ["--max-num-seqs", "4"]}}, 3, "mode auto"),
        (FEW, "a100-80g", {}, 1, "23 % slower to 27 % faster"),
        (DEEPSEEK, "h100-x8", {}, 1, "publishers"),
        (DEEPSEEK, "a100-80g-x8", {}, 0, "verifies drafts as it reads prompts in TRITON_MLA"),
        (DEEPSEEK, "a100-80g-x8", {"policy": {"mtp": 1}}, 1, "[policy] mtp is 1"),
    ],
)  # fmt: skip
def test_the_depth_and_its_evidence(
    card: ModelCard, box: str, sections: dict[str, Any], depth: int, why: str
) -> None:
    found = plan(box_with(box, card), **sections)
    assert found.mtp == depth
    assert why in found.settings["speculative_config"].reason


def test_early_latent_attention_of_triton_stays_outside_the_graphs() -> None:
    machine = box_with("a100-80g-x8", DEEPSEEK)
    cut = plan(machine).settings["compilation_config"]
    assert cut.value["cudagraph_mode"] == "PIECEWISE"
    assert "TRITON_MLA" in cut.reason
    later = plan(replace(machine, engine=replace(machine.engine, version="0.33.0")))
    assert later.value("compilation_config")["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert later.mtp == 1


@pytest.mark.parametrize(
    ("whole", "packed", "scales"),
    [
        (model("Qwen3.5-35B-A3B"), "I32", "F16"),
        (model("Qwen3-Next-80B-A3B"), "U8", "F8_E4M3"),
    ],
)
def test_attention_in_16_bits_does_not_count_as_4_bits(
    whole: ModelCard, packed: str, scales: str
) -> None:
    """Published checkpoints have experts in 4 bits, and everything else in 16."""
    experts = whole.size("experts") // 4
    rest = tuple(one for one in whole.weights if one.part != "experts")
    quantised = replace(
        whole,
        quantization="awq" if packed == "I32" else "modelopt_fp4",
        mtp_layers=1,
        weights=(
            *rest,
            Weights("experts", "sharded", packed, experts),
            Weights("experts", "sharded", scales, experts // 8),
        ),
    )
    assert active_parameters(quantised) == pytest.approx(active_parameters(whole), rel=0.05)
    found = plan(box_with("a6000-x2", quantised))
    assert found.mtp == 1
    assert "with about " in found.settings["speculative_config"].reason
    assert plan(box_with("a6000-x2", quantised), policy={"workload": "batch"}).mtp == 0


def test_active_parameters_are_those_that_a_token_meets() -> None:
    assert active_parameters(DENSE) / 1e9 == pytest.approx(24.5, abs=2)
    assert active_parameters(FEW) < 5e9 < active_parameters(DEEPSEEK)


def test_a_contested_draft_costs_neither_the_model_s_limit_nor_images() -> None:
    """A card that holds the whole context and the tower without drafts, but not with one."""
    whole = model("Qwen3.5-35B-A3B-AWQ")
    drafter = Weights("mtp", "sharded", "BF16", int(1.6 * 2**30))
    rest = tuple(one for one in whole.weights if one.part not in ("mtp", "experts"))
    experts = replace(next(one for one in whole.weights if one.part == "experts"), size=18 * 2**30)
    box = box_with("5090", replace(whole, weights=(*rest, experts, drafter)))
    for sections in ({}, {"model": {"max_model_len": 262_144}}):
        made = plan(box, **sections)
        assert made.value("max_model_len") == 262_144
        assert made.value("language_model_only") is None
        assert made.mtp == 0
        reason = made.settings["speculative_config"].reason
        assert "23 % slower to 27 % faster" in reason
    kept = plan(box_with("a100-80g", whole))
    assert kept.mtp == 1
    assert "about 3 billion" in kept.settings["speculative_config"].reason
