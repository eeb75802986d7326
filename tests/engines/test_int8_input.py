"""int8 activations: taken where asked for and possible, refused with the fact, given up in need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.checkpoint.config_json import describe, invented_weights
from caovand.core.facts.inventory import Gptq, Gpu, Inventory, ModelCard
from caovand.core.healing.degraded import from_document, to_document
from caovand.core.healing.failure import Finding
from caovand.core.healing.ladder import LadderRules, decide
from caovand.core.plan import Unplannable
from caovand.engines.vllm.command import build
from caovand.engines.vllm.flags.spelling import MARLIN_INPUT
from caovand.engines.vllm.healing.cures import HEALING
from caovand.engines.vllm.planning.decisions import forecast
from tests.boxes.models import DISTILL_32B, model
from tests.core.machines import (
    ABSENT,
    CPU,
    GPT_OSS,
    H200,
    QWEN_27B,
    QWEN_27B_AWQ,
    inventory,
    named,
    plan,
    turing,
)

INT8: dict[str, Any] = {"policy": {"activations": "int8"}}
STORED = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
CONFIG = {**DISTILL_32B, "dtype": "float16"}


def gptq(scales: str | None = "", **changes: Any) -> ModelCard:
    """A 32B in GPTQ, as this quantization_config says it, whose scales were read."""
    config = {**CONFIG, "quantization_config": {**STORED, **changes}}
    card = replace(describe(config, path="/srv/models/gptq"), negative_scale=scales)
    return replace(card, weights=invented_weights(config, card))


def box(card: ModelCard, gpus: tuple[Gpu, ...] | None = None) -> Inventory:
    return inventory(card, turing(2) if gpus is None else gpus)


def variable(machine: Inventory, **sections: Any) -> Any:
    return build(plan(machine, **sections), machine.engine).env.get(MARLIN_INPUT)


@pytest.mark.parametrize(
    "gpus", [turing(2), named("RTX 3090"), named("A100"), named("RTX 4090", 2)], ids=str
)
def test_it_is_taken_where_it_is_asked_for_and_half_otherwise(gpus: tuple[Gpu, ...]) -> None:
    machine = box(gptq(), gpus)
    assert variable(machine, **INT8) == "int8"
    assert plan(machine, **INT8).env[MARLIN_INPUT].reason == "[policy] activations is int8"
    for sections in ({}, {"policy": {"activations": "half"}}):
        assert variable(machine, **sections) is None
    auto = plan(machine).env[MARLIN_INPUT]
    assert (auto.value, auto.origin) == (None, "policy")
    assert auto.reason.startswith("half: on an H200 int8 read prompts 1.01 to 1.17 times as fast")


@pytest.mark.parametrize(
    ("card", "gpus", "fact"),
    [
        (QWEN_27B_AWQ, turing(2), "but AWQ weights have zero points"),
        (QWEN_27B, H200, "the weights are not quantised"),
        (GPT_OSS, named("RTX 4090"), "the weights are mxfp4"),
        (ABSENT, turing(2), "the model is not on this machine yet"),
        (gptq(sym=False), turing(2), "the weights are not symmetric"),
        (gptq(desc_act=True), turing(2), "(desc_act)"),
        (gptq(bits=8), turing(2), "the weights are of 8 bits"),
        (gptq(dynamic={"model.layers.0": {"bits": 8}}), turing(2), "of several kinds"),
        (gptq(group_size=-1), turing(2), "each column of the weights has a single scale"),
        (replace(gptq(), experts=8), turing(2), "no int8 kernel for 4-bit experts"),
        (gptq(), H200, "GPU 0 is SM90, where vLLM prefers another kernel"),
        (gptq(), named("RTX 5090"), "GPU 0 is SM120, on which they have never been tested"),
        (gptq(None), turing(2), "the scales could not be read"),
        (gptq("layers.0.q_proj.scales"), turing(2), "layers.0.q_proj.scales has negative scales"),
    ],
)
def test_it_is_refused_where_it_cannot_run(
    card: ModelCard, gpus: tuple[Gpu, ...], fact: str
) -> None:
    machine = box(card, gpus)
    with pytest.raises(Unplannable) as refused:
        plan(machine, **INT8)
    assert str(refused.value).startswith("cannot use int8 activations: ")
    assert fact in str(refused.value)
    assert 'set [policy] activations = "auto"' in str(refused.value)
    found = plan(machine)  # and what is not asked for is no matter
    assert variable(machine) is None
    assert "int8 activations" not in " ".join(found.warnings)


def test_what_is_only_left_out_of_quantisation_is_no_exception() -> None:
    assert variable(box(gptq(dynamic={"-:lm_head": {}})), **INT8) == "int8"


def test_the_config_says_what_can_be_said_of_it() -> None:
    assert gptq().gptq == Gptq(bits=4, symmetric=True)
    assert gptq(desc_act=True, sym=False).gptq == Gptq(4, symmetric=False, act_order=True)
    assert model("Qwen3.6-27B-GPTQ-Int4").gptq == Gptq(bits=4, symmetric=None)  # nothing is said
    assert model("Llama-3.1-8B-AWQ").gptq is None


def test_other_flags_and_engines_refuse_it_too() -> None:
    def refused(machine: Inventory, *words: str) -> str:
        with pytest.raises(Unplannable) as found:
            plan(machine, **INT8, engine={"extra_args": list(words)})
        return str(found.value)

    assert "--quantization gptq chooses a kernel" in refused(box(gptq()), "--quantization", "gptq")
    assert "CPU build" in refused(inventory(gptq(), (), CPU))
    made_up = {"extra_args": ["--load-format", "dummy"]}
    assert variable(box(gptq(None)), **INT8, engine=made_up) == "int8"


def test_the_operators_own_variable_is_respected_and_what_it_breaks_is_told() -> None:
    machine, own = box(QWEN_27B_AWQ), {"env": {MARLIN_INPUT: "int8"}}
    found = plan(machine, engine=own)
    assert (found.env[MARLIN_INPUT].value, found.env[MARLIN_INPUT].origin) == ("int8", "user")
    (told,) = [text for text in found.warnings if MARLIN_INPUT in text]
    assert "AWQ weights have zero points; remove VLLM_MARLIN_INPUT_DTYPE from [engine] env" in told
    both = plan(box(gptq()), policy={"activations": "half"}, engine=own)
    assert both.env[MARLIN_INPUT].value == "int8"
    assert [text for text in both.warnings if "activations is half, but [engine] env" in text]
    assert not [text for text in plan(box(gptq()), engine=own).warnings if MARLIN_INPUT in text]


def test_the_copies_in_int8_are_forecast() -> None:
    machine = box(gptq())
    fixed: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 4096, "mtp": 0}

    def activations(**more: Any) -> float:
        found = plan(machine, model={"max_model_len": 4096}, policy={**fixed, **more})
        return dict(forecast(found, machine).parts)["activations"]

    half, rounded = activations(), activations(activations="int8")
    assert rounded - half == pytest.approx(4096 * 27648 / 2 / 2**20)


FAILED = Finding(
    "backend-unsupported",
    "AssertionError: W8A8 is not supported by marlin kernel.",
    "load",
    {"input": "marlin"},
    "backend.quantization",
)


def test_a_start_that_fails_with_it_goes_on_without_and_stays_so() -> None:
    machine = box(gptq())
    first = plan(machine, **INT8)
    lower = decide(first, FAILED, 1, LadderRules(HEALING)).plan
    assert lower is not None
    assert lower.rungs == ("half-input",)
    assert MARLIN_INPUT not in build(lower, machine.engine).env
    assert decide(lower, FAILED, 1, LadderRules(HEALING)).verdict == "fail"
    kept = from_document(to_document(lower, "mark", "auto"), "mark", "auto", None, HEALING)
    again = plan(machine, how={"remembered": kept}, **INT8)
    assert MARLIN_INPUT not in build(again, machine.engine).env
    assert again.env[MARLIN_INPUT].origin == "remembered"


def test_what_may_not_be_given_up_is_named() -> None:
    def obstacles(rules: LadderRules, **sections: Any) -> str:
        return " ".join(decide(plan(box(gptq()), **sections), FAILED, 1, rules).obstacles)

    pinned = LadderRules(HEALING, pinned=frozenset({"activations"}))
    assert "[policy] pinned names activations" in obstacles(pinned, **INT8)
    own = {"env": {MARLIN_INPUT: "int8"}}
    assert f"[engine] env sets {MARLIN_INPUT}" in obstacles(LadderRules(HEALING), engine=own)
    assert not obstacles(LadderRules(HEALING))
