"""An int8 lm_head: planned where it is asked for and possible, counted, and given up in need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import EngineInfo, ModelCard
from caovand.core.healing.failure import Failure, Finding
from caovand.core.healing.rung import ANY
from caovand.core.plan import Unplannable
from caovand.engines.vllm.command import build
from caovand.engines.vllm.engine import ENGINE
from caovand.engines.vllm.flags.spelling import LM_HEAD
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.planning.decisions import forecast
from tests.core.machines import (
    ABSENT,
    CPU,
    CUDA,
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
    for sections in ({}, {"policy": {"lm_head": "half"}}):
        assert LM_HEAD not in build(plan(machine, **sections), machine.engine).env
    assert plan(machine).env[LM_HEAD].reason.startswith('half: [policy] lm_head = "int8" saves 0.5')


@pytest.mark.parametrize("count", [1, 2])
def test_the_forecast_and_the_context_count_the_memory_it_saves(count: int) -> None:
    machine = box(count)
    saved = weights_mib(machine) - weights_mib(machine, **INT8)
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


@pytest.mark.parametrize(
    ("engine", "fact"),
    [
        ({"plugin": False}, "switched off"),
        ({"env": {"CAOVAN_KERNELS": "off"}}, "switched off"),
        ({"extra_args": ["--load-format", "ipc_cache"]}, "another process loads"),
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
    assert (step.env, step.change) == ({LM_HEAD: None}, "int8 lm_head -> half")
    assert HEALING.by_name["half-head"].step(plan(box()), Finding("hang", "", "serve")) is None
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

    weights, speed = made()
    rounded, faster = made(CAOVAN_DRAFTER="int8")
    layer = sum(w.size for w in QWEN_27B_AWQ.weights if w.part == "mtp") / 2**20
    assert weights - rounded == pytest.approx(layer / 2 / 2, rel=0.01)
    assert faster > speed
    fewer = made(CAOVAN_DRAFT_VOCABULARY="65536")
    assert fewer[0] == weights
    assert fewer[1] > speed
    assert made(CAOVAN_DRAFT_VOCABULARY="many") == (weights, speed)


def test_one_card_of_22_gb_plans_what_the_page_about_planning_tells() -> None:
    plain, int8 = plan(box(1)), plan(box(1), **INT8)
    assert (plain.value("enforce_eager"), int8.value("enforce_eager")) == (True, None)
    assert int8.value("max_model_len") > 3 * plain.value("max_model_len")
