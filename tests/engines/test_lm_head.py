"""An int8 lm_head: planned where it is asked for and possible, counted, and given up in need."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import EngineInfo, ModelCard
from caovand.core.healing.failure import Failure, Finding
from caovand.core.healing.rung import ANY
from caovand.core.plan import Setting, Unplannable
from caovand.engines.vllm.command import build
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.flags.spelling import DRAFTER, LM_HEAD
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.memory.estimate import estimate
from caovand.engines.vllm.memory.load_peak import loading_bytes
from caovand.engines.vllm.memory.settings import candidate_of_plan
from caovand.engines.vllm.memory.shards import weights_bytes
from caovand.engines.vllm.planning.decisions import forecast
from tests.boxes.machines import box_with
from tests.boxes.models import model
from tests.core.machines import (
    ABSENT,
    CPU,
    CUDA,
    DEFAULT,
    H200,
    QWEN_27B_AWQ,
    inventory,
    named,
    plan,
    turing,
)

KNOWN = replace(CUDA, version="0.33.0", plugin="0.1.0", attention="pass", lm_head="pass")
INT8: dict[str, Any] = {"policy": {"lm_head": "int8"}}
HEAD_MIB = 248_320 * 5120 / 2**20


def box(count: int = 2, engine: EngineInfo = KNOWN, model: ModelCard = QWEN_27B_AWQ) -> Any:
    return inventory(model, turing(count), engine)


def weights_mib(machine: Any, **sections: Any) -> float:
    found = forecast(plan(machine, **sections), machine)
    return dict(found.parts)["weights"]


def test_it_is_taken_where_it_is_asked_for_and_16_bits_otherwise() -> None:
    machine = box()
    made = plan(machine, **INT8)
    assert build(made, machine.engine).env[LM_HEAD] == "int8"
    assert made.env[LM_HEAD].reason == (
        "[policy] lm_head is int8: saves 0.59 GiB per card, and reads that much less per token"
    )
    for policies in ({"lm_head": "half"}, {"mode": "stable"}):
        assert LM_HEAD not in build(plan(machine, policy=policies), machine.engine).env
    stable = plan(machine, policy={"mode": "stable"})
    assert stable.env[LM_HEAD].reason.startswith('half: [policy] lm_head = "int8" saves 0.5')


def test_the_policy_takes_it_for_4_bit_weights_and_says_the_price() -> None:
    machine = box()
    made = plan(machine)
    assert build(made, machine.engine).env[LM_HEAD] == "int8"
    assert made.env[LM_HEAD].reason.startswith("saves 0.59 GiB per card")
    assert 'lm_head = "half" keeps 16 bits' in made.env[LM_HEAD].reason
    for other in (
        replace(QWEN_27B_AWQ, quantization=None),
        replace(QWEN_27B_AWQ, quantization="fp8"),
    ):
        exact = box(8, model=other)
        assert LM_HEAD not in build(plan(exact), exact.engine).env
    wide = plan(machine, engine={"extra_args": ["--dtype", "float32"]})
    assert wide.env[LM_HEAD].value is None, "its kernel takes float16"


def test_an_int8_mtp_layer_comes_with_it_where_it_drafts_and_not_in_mode_stable() -> None:
    machine = box()
    made = plan(machine)
    assert made.mtp
    assert build(made, machine.engine).env[DRAFTER] == "int8"
    assert "no answer changes" in made.env[DRAFTER].reason
    for policies in ({"lm_head": "half"}, {"mode": "stable", "lm_head": "int8"}, {"mtp": 0}):
        assert DRAFTER not in build(plan(machine, policy=policies), machine.engine).env
    off = plan(machine, engine={"env": {DRAFTER: "off"}})
    assert build(off, machine.engine).env[DRAFTER] == "off"
    assert weights_mib(machine, engine={"env": {DRAFTER: "off"}}) > weights_mib(machine) + 200


def test_the_ladder_gives_up_the_mtp_layer_and_later_plans_count_16_bits() -> None:
    machine = box()
    made = plan(machine)
    found = Finding("draft-collapse", "", "serve")
    assert HEALING.cures["draft-collapse", ANY][0] == "half-drafter"
    step = HEALING.by_name["half-drafter"].step(made, found)
    assert step is not None
    assert step.env == {DRAFTER: None}
    served = replace(
        made, env={**made.env, DRAFTER: Setting(None, "ladder", "int8 MTP layer -> half")}
    )
    again = plan(machine, how={"remembered": served})
    assert DRAFTER not in build(again, machine.engine).env
    layers = [dict(forecast(found, machine).parts)["weights"] for found in (again, made)]
    assert layers[0] > layers[1] + 200
    head = replace(made, env={**made.env, LM_HEAD: Setting(None, "ladder", "int8 lm_head -> half")})
    sized = plan(machine, how={"remembered": head})
    assert LM_HEAD not in build(sized, machine.engine).env
    assert forecast(sized, machine).fits


@pytest.mark.parametrize("count", [1, 2])
def test_the_forecast_and_the_context_count_the_memory_it_saves(count: int) -> None:
    machine = box(count)
    half, int8 = ({"policy": {"mtp": 0, "lm_head": kind}} for kind in ("half", "int8"))
    saved = weights_mib(machine, **half) - weights_mib(machine, **int8)
    assert saved == pytest.approx(HEAD_MIB / count * (1 - 4 / 5120), rel=0.01)
    limit = {"engine": {"env": {LM_HEAD: "int8"}}}
    assert weights_mib(machine, **limit) == weights_mib(machine, **INT8)


@pytest.mark.parametrize(
    ("machine", "fact"),
    [
        (inventory(QWEN_27B_AWQ, H200, KNOWN), "its kernel is for SM75, but GPU 0 is not"),
        (inventory(QWEN_27B_AWQ, (), CPU), "its kernel is for CUDA"),
        (box(engine=replace(KNOWN, plugin=None)), "are not installed in the engine"),
        (box(engine=replace(KNOWN, library_problem="no file")), "cannot be loaded: no file"),
        (box(engine=replace(KNOWN, lm_head="fail: a is not b")), "computes logits (a is not b)"),
        (box(engine=replace(KNOWN, lm_head="")), "(the engine could not be probed)"),
        (box(model=ABSENT), "the model is not on this machine yet"),
        (box(model=replace(QWEN_27B_AWQ, hidden_size=5100)), "the hidden size, 5100"),
        (
            box(model=replace(QWEN_27B_AWQ, weights=tuple(
                w for w in QWEN_27B_AWQ.weights if w.part != "head"))),
            "shares its weights with the embedding",
        ),
        (
            box(model=replace(QWEN_27B_AWQ, weights=tuple(
                replace(w, dtype="I32") if w.part == "head" else w
                for w in QWEN_27B_AWQ.weights))),
            "quantised in the checkpoint",
        ),
    ],
)  # fmt: skip
def test_it_is_refused_with_the_fact_where_it_cannot_be(machine: Any, fact: str) -> None:
    with pytest.raises(Unplannable) as refused:
        plan(machine, **INT8)
    assert str(refused.value).startswith("cannot use an int8 lm_head: ")
    assert fact in str(refused.value)
    assert 'set [policy] lm_head = "auto"' in str(refused.value)


COPIED = [
    "--speculative-config",
    '{"method": "mtp", "num_speculative_tokens": 1, "draft_lm_head_quantization": "fp8"}',
]


@pytest.mark.parametrize(
    ("engine", "fact"),
    [
        ({"plugin": False}, "switched off"),
        ({"env": {"CAOVAN_KERNELS": "off"}}, "switched off"),
        ({"extra_args": ["--load-format", "ipc_cache"]}, "another process loads"),
        ({"extra_args": COPIED}, "drafts have a quantised copy"),
        ({"env": {"VLLM_BATCH_INVARIANT": "1"}}, "multiplied in another way"),
    ],
)
def test_switches_and_flags_refuse_it_too(engine: dict[str, Any], fact: str) -> None:
    with pytest.raises(Unplannable, match=fact):
        plan(box(), engine=engine, **INT8)


def test_the_operators_variable_wins_and_is_warned_of() -> None:
    env = {"engine": {"env": {LM_HEAD: "off"}}}
    made = plan(box(), **INT8, **env)
    assert made.env[LM_HEAD].value == "off"
    assert any(f"but [engine] env sets {LM_HEAD} to off" in line for line in made.warnings)
    vain = plan(box(engine=replace(KNOWN, lm_head="fail: x")), engine={"env": {LM_HEAD: "int8"}})
    assert any(f"remove {LM_HEAD} from [engine] env" in line for line in vain.warnings)
    same = plan(box(), policy={"lm_head": "half"}, **env)
    assert not any("lm_head" in line for line in same.warnings)


def test_force_plans_it_on_a_newer_card() -> None:
    machine = inventory(QWEN_27B_AWQ, named("RTX 4090"), KNOWN)
    made = plan(machine, engine={"env": {"CAOVAN_SM75_FORCE": "1"}}, **INT8)
    assert made.env[LM_HEAD].value == "int8"


def test_the_ladder_gives_it_up_for_crashes_and_wrong_answers() -> None:
    made = plan(box(), **INT8)
    failures: tuple[Failure, ...] = ("illegal-access", "answers-degenerate", "engine-died")
    for failure in failures:
        assert "half-head" in HEALING.cures[failure, ANY]
    step = HEALING.by_name["half-head"].step(made, Finding("illegal-access", "", "serve"))
    assert step is not None
    assert (step.env, step.change) == ({LM_HEAD: None, DRAFTER: None}, "int8 lm_head -> half")
    half = plan(box(), policy={"lm_head": "half"})
    assert HEALING.by_name["half-head"].step(half, Finding("hang", "", "serve")) is None
    off = HEALING.by_name["plugin-off"].step(made, Finding("illegal-access", "", "serve"))
    assert off is not None
    assert off.env[LM_HEAD] is None, "without the plugin the head has 16 bits, and takes them"


def test_answers_of_an_int8_head_are_compared_as_those_of_rounded_weights_are() -> None:
    plain = replace(QWEN_27B_AWQ, quantization=None)
    for sections, coarse in ((INT8, True), ({}, False)):
        machine = box(8, model=plain)
        assert ENGINE.planning.is_quantised(plan(machine, **sections), machine) is coarse


SIZED = {"mtp": 3, "max_num_seqs": 4, "max_num_batched_tokens": 2048}


def test_an_int8_mtp_layer_is_counted_and_a_part_of_the_vocabulary_makes_drafts_cheaper() -> None:
    def made(**env: str) -> tuple[float, float]:
        machine = box()
        found = plan(machine, engine={"env": {LM_HEAD: "int8", **env}}, policy=SIZED)
        decode = ENGINE.planning.modelled(found, machine, 4096, 1).decode
        assert decode is not None
        return dict(forecast(found, machine).parts)["weights"], decode

    weights, speed = made(CAOVAN_DRAFTER="off")
    rounded, faster = made()
    layer = sum(w.size for w in QWEN_27B_AWQ.weights if w.part == "mtp") / 2**20
    assert weights - rounded == pytest.approx(layer / 2 / 2, rel=0.01)
    assert faster > speed
    fewer = made(CAOVAN_DRAFT_VOCABULARY="65536")
    assert fewer[0] == rounded
    assert fewer[1] > faster
    assert made(CAOVAN_DRAFT_VOCABULARY="many") == (rounded, faster)


def test_one_card_of_22_gb_drafts_only_with_an_int8_head() -> None:
    half, ours = plan(box(1), policy={"lm_head": "half"}), plan(box(1))
    assert (half.value("enforce_eager"), half.mtp) == (True, 0)
    assert (ours.value("enforce_eager"), ours.mtp) == (None, 3)
    assert ours.value("max_model_len") > half.value("max_model_len")
    stable = plan(box(1), policy={"mode": "stable"})
    assert stable.mtp == 0
    assert "no room for the drafter while it is loaded" in (
        stable.settings["speculative_config"].reason
    )


def test_a_drafter_is_loaded_with_an_embedding_and_a_head_of_its_own() -> None:
    machine = box(1)
    half, int8 = (
        candidate_of_plan(plan(machine, policy={"mtp": 3, "lm_head": kind}), machine)
        for kind in ("half", "int8")
    )
    assert (half.offload_gib > 1, int8.offload_gib) == (True, 0)
    plain = half.but(offload_gib=0.0)
    refused = estimate(QWEN_27B_AWQ, plain.but(context=1024), machine.gpus)
    assert refused.fits is False
    assert "while the drafter is loaded" in refused.lack
    more = loading_bytes(QWEN_27B_AWQ, plain) - weights_bytes(QWEN_27B_AWQ, plain)
    assert more / 2**20 == pytest.approx(2 * 2 * HEAD_MIB, rel=0.01)
    layer = sum(w.size for w in QWEN_27B_AWQ.weights if w.part == "mtp") / 2**20
    more = loading_bytes(QWEN_27B_AWQ, int8) - weights_bytes(QWEN_27B_AWQ, int8)
    assert more / 2**20 == pytest.approx(2 * HEAD_MIB + layer / 2, rel=0.01)
    none = plain.but(mtp=0)
    assert loading_bytes(QWEN_27B_AWQ, none) == weights_bytes(QWEN_27B_AWQ, none)


def test_the_plan_offers_the_longest_context_in_4_bits_with_its_setting_and_pace() -> None:
    machine = box_with("2080ti-22g", model("Qwen3.6-27B-GPTQ-Int4"), DEFAULT)
    made = plan(machine)
    assert made.value("kv_cache_dtype") == "fp8"
    found = re.search(
        r'\[policy\] workload = "long" holds (\d+) tokens \(MTP (\d), (\d+) tokens/s\), and with'
        r" mtp = 3 (\d+) tokens",
        made.settings["max_model_len"].reason,
    )
    assert found is not None
    assert "kept 79 % of its 20 likeliest tokens" in made.settings["max_model_len"].reason
    for policies, at in (({}, 1), ({"mtp": 3}, 4)):
        longer = plan(machine, policy={"workload": "long", **policies})
        assert longer.value("kv_cache_dtype") == "int4_per_token_head"
        assert longer.value("max_model_len") == int(found.group(at))
    for policies in ({"mode": "stable"}, {"workload": "long"}, {"kv_cache_dtype": "fp8"}):
        reason = plan(machine, policy=policies).settings["max_model_len"].reason
        assert 'workload = "long" holds' not in reason
