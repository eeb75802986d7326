"""Drafts by a separate model that the configuration names: planned, forecast, refused, healed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.drafter import Drafter
from caovand.core.facts.inventory import EngineInfo, Gpu, ModelCard, Weights
from caovand.core.healing.failure import Finding
from caovand.core.plan import Plan, Unplannable
from caovand.engines.vllm.command import build
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.memory.kv_cache import layout_for
from caovand.engines.vllm.memory.settings import DEPTHS, candidate_of_plan
from caovand.engines.vllm.memory.shards import weights_bytes
from caovand.engines.vllm.memory.steps import forward_bytes
from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.sizing.pace import drafting_passes
from tests.boxes.models import model
from tests.core.machines import CPU, CUDA, DEFAULT, H200, inventory, named, plan, turing
from tests.engines.test_real_flags import engine

GIB = 1 << 30
DENSE = model("Qwen3-32B-AWQ")
DRAFTER = Drafter(
    path="/srv/models/Qwen3-32B-DFlash", architecture="DFlashDraftModel", block=16,
    reads=(1, 17, 33, 49, 61), target_layers=64, target_width=5120, vocab_size=151936, layers=5,
    width=5120, heads=64, kv_heads=8, head_dim=128,
)  # fmt: skip
DRAFTER_BYTES = 3 * GIB
NEW = replace(DEFAULT, flags=engine("0.33.0").flags)


def drafted(target: ModelCard = DENSE, **changes: Any) -> ModelCard:
    drafter = replace(DRAFTER, **changes)
    kept = tuple(one for one in target.weights if one.part != "mtp")
    own = Weights("mtp", "sharded", "BF16", DRAFTER_BYTES)
    return replace(target, drafter=drafter, mtp_layers=drafter.layers, weights=(*kept, own))


def planned(
    target: ModelCard | None = None,
    gpus: tuple[Gpu, ...] = H200,
    release: EngineInfo = NEW,
    **sections: Any,
) -> Plan:
    return plan(inventory(target or drafted(), gpus, release), **sections)


def test_a_drafter_drafts_as_deep_as_it_was_trained() -> None:
    made = planned()
    setting = made.settings["speculative_config"]
    assert {**setting.value, DEPTHS: None} == {
        "method": "dflash", "model": DRAFTER.path, "num_speculative_tokens": 15, DEPTHS: None,
    }  # fmt: skip
    assert "trained on blocks of 16 tokens" in setting.reason
    argv = build(made, NEW).argv
    assert '"method":"dflash"' in argv[argv.index("--speculative-config") + 1]
    assert planned(policy={"mtp": 4}).mtp == 4
    assert planned(policy={"mtp": 0}).value("speculative_config") is None
    for mode in ("stable", "fast"):
        assert planned(how={"mode": mode}).mtp == 15


def test_a_plan_with_the_tuners_depth_is_otherwise_the_same() -> None:
    for depth in (7, 0):
        tuned = planned(policy={"mtp": depth}).tuned(planned())
        assert tuned is not None
        assert tuned.mtp == depth


def test_its_weights_cache_and_reads_are_forecast() -> None:
    made, machine = planned(policy={"tensor_parallel_size": 1}), inventory(drafted(), H200, NEW)
    found = forecast(made, machine)
    assert found.fits
    assert not found.reason
    with_it = candidate_of_plan(made, machine)
    without = with_it.but(mtp=0)
    fused = 2 * 8 * 128 * 5120 * 5 * 2  # keys and values of five layers once more
    buffers = with_it.batch_tokens * 5120 * 2
    more = weights_bytes(drafted(), with_it) - weights_bytes(drafted(), without)
    assert more == pytest.approx(DRAFTER_BYTES + fused + buffers)
    blocks = [layout_for(drafted(), one).block_bytes for one in (with_it, without)]
    assert blocks[0] / blocks[1] == pytest.approx(69 / 64)
    wide = drafted(kv_heads=4, heads=32)  # half as many heads for keys
    assert layout_for(wide, with_it).block_bytes / blocks[1] == pytest.approx(66.5 / 64)
    read = forward_bytes(drafted(), with_it) - forward_bytes(DENSE, with_it)
    assert read >= with_it.batch_tokens * 5 * 5120 * 2
    assert drafting_passes(drafted(), with_it) == 1
    assert drafting_passes(DENSE, with_it) == with_it.mtp == 15


def test_a_cache_next_to_windows_or_states_is_forecast_for_equal_heads_alone() -> None:
    hybrid = model("Qwen3.6-27B-AWQ-g32")
    fits = {"target_layers": 64, "target_width": 5120, "vocab_size": hybrid.vocab_size}
    alike = drafted(hybrid, kv_heads=4, head_dim=256, **fits)
    other = drafted(hybrid, kv_heads=8, head_dim=128, **fits)
    assert not forecast(planned(alike), inventory(alike, H200, NEW)).reason
    reason = forecast(planned(other), inventory(other, H200, NEW)).reason
    assert "heads differ" in reason
    windowed = drafted(windowed=True)
    assert "sliding windows" in forecast(planned(windowed), inventory(windowed, H200, NEW)).reason


@pytest.mark.parametrize(
    ("changes", "machine", "sections", "fact", "remedy"),
    [
        ({}, {"release": CUDA}, {}, "only FlashAttention and FlexAttention", "vLLM 0.32 or newer"),
        (
            {},
            {"release": CPU, "gpus": ()},
            {},
            "never been tested with a drafter",
            "remove [model]",
        ),
        (
            {},
            {"release": replace(NEW, architectures=frozenset({"Qwen3ForCausalLM"}))},
            {},
            "has no DFlashDraftModel",
            "use a newer vLLM",
        ),
        ({"from_anchor": True}, {}, {}, "sample_from_anchor", "remove [model] drafter"),
        (
            {"target_layers": 36},
            {},
            {},
            "for a model of 36 layers, but this one has 64",
            "made for",
        ),
        ({"reads": (1, 64), "target_layers": 0}, {}, {}, "it reads layer 64", "made for"),
        ({"target_width": 4096}, {}, {}, "of width 4096, but the model's have 5120", "made for"),
        ({"vocab_size": 32000}, {}, {}, "its vocabulary has 32000 tokens", "made for"),
        (
            {"heads": 9, "kv_heads": 3},
            {"gpus": turing(2)},
            {"policy": {"tensor_parallel_size": 2}},
            "its 9 heads (3 for keys) do not divide by 2",
            "tensor_parallel_size = 1",
        ),
        ({"block": 4}, {}, {"policy": {"mtp": 5}}, "trained on blocks of 4", "set mtp = 3"),
        (
            {},
            {"gpus": named("H100", 2)},
            {"engine": {"extra_args": ["--pipeline-parallel-size", "2"]}},
            "layers on several pipeline stages",
            "--pipeline-parallel-size 1",
        ),
    ],
)
def test_what_cannot_draft_is_refused(
    changes: dict[str, Any],
    machine: dict[str, Any],
    sections: dict[str, Any],
    fact: str,
    remedy: str,
) -> None:
    with pytest.raises(Unplannable) as refused:
        planned(drafted(**changes), **machine, **sections)
    assert fact in str(refused.value)
    assert remedy in str(refused.value)
    planned(drafted(**changes), **machine, policy={**sections.get("policy", {}), "mtp": 0})


def test_verbatim_flags_win_and_are_not_forecast() -> None:
    own = '{"method":"eagle3","model":"/srv/eagle","num_speculative_tokens":2}'
    made = planned(DENSE, engine={"extra_args": ["--speculative-config", own]})
    reason = forecast(made, inventory(DENSE, H200, NEW)).reason
    assert "the draft model needs additional memory" in reason


def test_short_memory_costs_the_drafter_before_the_context() -> None:
    small = planned(gpus=named("RTX 3090"))
    assert small.mtp == 0
    assert small.value("max_model_len") == planned(DENSE, named("RTX 3090")).value("max_model_len")
    (text,) = (text for text in small.warnings if "[model] drafter" in text)
    assert "drafting nothing leaves memory for other settings, which is worth more here" in text
    assert "set [policy] mtp = 8 to draft anyway" in text
    large = planned(gpus=named("RTX 3090", 2))
    assert large.mtp == 15
    assert not any("[model] drafter" in text for text in large.warnings)


def test_one_rung_stops_the_drafter() -> None:
    rungs = {rung.name: rung for rung in HEALING.rungs}
    finding = Finding("device-oom-run", "CUDA out of memory")
    step = rungs["mtp"].step(planned(), finding)
    assert step is not None
    assert step.settings == {"speculative_config": None}
    assert step.change == "MTP 15 -> off"
