"""What loading takes at its height decides what is drafted and rounded, and who may overrule it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caovand.core.facts.inventory import Inventory
from caovand.engines.vllm.flags.spelling import DRAFTER, LM_HEAD
from caovand.engines.vllm.memory.load_peak import loading_bytes
from caovand.engines.vllm.memory.settings import candidate_of_plan
from caovand.engines.vllm.memory.shards import weights_bytes
from caovand.engines.vllm.planning.decisions import forecast
from tests.boxes.machines import box_with
from tests.boxes.models import model
from tests.core.machines import DEFAULT, plan

LOOKED_UP = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']


def card_of_22_gb() -> Inventory:
    return box_with("2080ti-22g", model("Qwen3.6-27B-GPTQ-Int4"), DEFAULT)


def test_drafts_that_are_looked_up_load_no_drafter() -> None:
    machine = box_with("4060-8g", model("Qwen3.5-9B-AWQ"), DEFAULT)
    looked_up = plan(machine, engine={"extra_args": LOOKED_UP})
    candidate = candidate_of_plan(looked_up, machine)
    assert loading_bytes(machine.model, candidate) == weights_bytes(machine.model, candidate)
    assert forecast(looked_up, machine).fits
    assert looked_up.value("max_model_len") > 20_000


def test_an_int8_head_is_in_memory_in_16_bits_too_until_it_is_rounded() -> None:
    machine = card_of_22_gb()
    candidate = candidate_of_plan(plan(machine), machine).but(mtp=0)
    assert candidate.rounds_head
    kept = weights_bytes(machine.model, candidate)
    assert loading_bytes(machine.model, candidate) - kept == pytest.approx(248_320 * 5_120 * 2)


def test_a_typed_depth_whose_drafter_cannot_be_loaded_drafts_nothing_and_says_so() -> None:
    machine = box_with("4060-8g", model("Qwen3.5-9B-AWQ"), DEFAULT)
    typed = plan(machine, policy={"mtp": 3})
    assert (typed.mtp, forecast(typed, machine).fits) == (0, True)
    assert typed.value("max_model_len") > 20_000
    assert any("mtp is 3, but 0 is planned" in str(caveat) for caveat in typed.caveats)
    pinned = plan(machine, policy={"mtp": 3, "pinned": ["mtp"]})
    assert (pinned.mtp, forecast(pinned, machine).fits) == (3, False)


@pytest.mark.parametrize(
    "engine",
    [
        {"extra_args": ["--additional-config", json.dumps({"caovan": False})]},
        {"extra_args": ["--additional-config", json.dumps({"caovan_lm_head": "off"})]},
        {"env": {"VLLM_BATCH_INVARIANT": "1"}},
    ],
)
def test_no_head_is_rounded_by_itself_where_the_plugin_would_refuse_it(
    engine: dict[str, Any],
) -> None:
    machine = card_of_22_gb()
    assert plan(machine).variables[LM_HEAD] == "int8"
    exact = plan(machine, engine=engine)
    assert not {LM_HEAD, DRAFTER} & {k for k, v in exact.variables.items() if v == "int8"}
    assert forecast(exact, machine).fits
