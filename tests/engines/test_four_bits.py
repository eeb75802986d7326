"""An int4 cache on Turing: chosen where caovan's attention reads it and 8 bits hold too little."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import EngineInfo
from caovand.core.plan import Plan
from tests.boxes.models import model
from tests.core.machines import CUDA, QWEN_27B_AWQ, inventory, named, plan, turing

KNOWN = replace(
    CUDA, version="0.33.0", flashinfer="0.7.2", plugin="0.1.0", gdn_interface="pass",
    attention="pass",
)  # fmt: skip
GPTQ = model("Qwen3.6-27B-GPTQ-Int4")
LONG = {"workload": "long"}


def planned(known: EngineInfo = KNOWN, cards: int = 1, **sections: Any) -> Plan:
    machine = inventory(GPTQ, turing(cards), engine=known)
    return plan(machine, **{"policy": LONG, **sections})


def cache(found: Plan) -> Any:
    return found.value("kv_cache_dtype")


def test_one_card_holds_long_requests_in_four_bits_with_their_price_named() -> None:
    found, eight = planned(), planned(replace(KNOWN, attention=""))
    assert (cache(found), found.value("attention_backend")) == (
        "int4_per_token_head",
        "TRITON_ATTN",
    )
    assert cache(eight) == "fp8"
    assert found.value("max_model_len") > 170_000
    assert eight.value("max_model_len") < 100_000
    reason = found.settings["kv_cache_dtype"].reason
    assert "err by some 10 %" in reason
    assert "kept 79 % of its 20 likeliest tokens, with fp8 95 %" in reason
    assert not any("float16 cache" in warning for warning in found.warnings)


def test_nearly_the_models_whole_context_is_held_where_the_head_is_int8_too() -> None:
    """Attention that gathers nothing needs neither FlashInfer's workspace nor a reserve that grows
    with the context; 16 layers of 262,144 tokens are 4.1 GiB, states and weights the rest."""
    known = replace(KNOWN, lm_head="pass")
    head = {"policy": {**LONG, "lm_head": "int8"}}
    found = planned(known, **head)
    assert cache(found) == "int4_per_token_head"
    assert found.value("max_model_len") > 240_000
    assert found.value("enable_prefix_caching")
    whole = planned(known, **head, engine={"extra_args": ["--no-enable-prefix-caching"]})
    assert whole.value("max_model_len") == 262_144
    off = {"engine": {"env": {"CAOVAN_ATTENTION": "off"}}}
    kept = {"policy": {**LONG, "kv_cache_dtype": "int4_per_token_head"}}
    triton, ours = planned(**kept, **off), planned(**kept)
    grows = ours.value("max_model_len") - triton.value("max_model_len")
    assert grows > 40_000


@pytest.mark.parametrize(
    ("changed", "sections"),
    [
        ({"attention": "fail: a is not vLLM 0.33's"}, {}),
        ({"plugin": None}, {}),
        ({"choices": (("--kv-cache-dtype", ("auto", "fp8")),)}, {}),
        ({}, {"policy": {**LONG, "mode": "stable"}}),
        ({}, {"policy": {**LONG, "kv_cache_dtype": "fp8"}}),
        ({}, {"engine": {"env": {"CAOVAN_ATTENTION": "off"}}}),
        ({}, {"engine": {"extra_args": ["--attention-backend", "FLASHINFER"]}}),
        ({"lm_head": "pass"}, {"policy": {"lm_head": "int8"}}),  # 8 bits hold conversations
    ],
)
def test_eight_bits_stay_where_ours_do_not_act_or_are_not_needed(
    changed: dict[str, Any], sections: dict[str, Any]
) -> None:
    assert cache(planned(replace(KNOWN, **changed), **sections)) in ("fp8", None)


def test_conversations_are_held_in_four_bits_where_eight_hold_few_tokens() -> None:
    known = replace(KNOWN, lm_head="pass")  # a drafter needs an int8 head to be loaded here
    machine = inventory(QWEN_27B_AWQ, turing(1), engine=known)
    found, eight = (
        plan(machine, policy={"mtp": 3, **more}) for more in ({}, {"kv_cache_dtype": "fp8"})
    )
    assert cache(found) == "int4_per_token_head"
    assert found.value("speculative_config") == eight.value("speculative_config")
    assert found.value("max_model_len") > 2 * eight.value("max_model_len")


def test_two_cards_and_other_cards_need_no_four_bits() -> None:
    assert cache(planned(cards=2)) == "fp8"
    newer = plan(inventory(GPTQ, named("RTX 3090"), engine=KNOWN), policy=LONG)
    assert cache(newer) != "int4_per_token_head"


def test_without_a_working_flashinfer_four_bits_beat_sixteen() -> None:
    found = planned(replace(KNOWN, flashinfer=None))
    assert cache(found) == "int4_per_token_head"
    assert cache(planned(replace(KNOWN, flashinfer=None, attention=""))) is None
