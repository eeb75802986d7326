"""Attention of its own on each card (--attn-dp-size): where it is planned, and what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.core.healing.failure import Finding
from caovand.core.plan import Plan, Unplannable
from caovand.engines.sglang.engine import ENGINE
from caovand.engines.sglang.healing.rungs import RUNGS
from caovand.engines.sglang.memory.load import SglangLoad, weights_bytes
from tests.boxes.machines import BOXES
from tests.boxes.models import model
from tests.engines.sglang.test_planner import REAL, machine, parsed, plan

R1, H200S = model("DeepSeek-R1"), BOXES["h200-x8"]
BATCH = {"workload": "batch"}
OLDER = replace(REAL, version="0.5.17", flags=REAL.flags - {"--attn-dp-size"})


def expanded(made: Plan) -> object:
    setting = made.env.get("SGLANG_MAX_KV_CHUNK_CAPACITY")
    return setting and setting.value


def test_a_batch_for_a_latent_cache_gets_attention_of_its_own_on_each_card() -> None:
    inventory = machine(H200S, R1)
    made = plan(inventory, policy=BATCH)
    found = parsed(made, inventory)
    assert (found.tp_size, found.attn_dp_size, found.dp_size) == (8, 8, None)
    assert (len(made.cards or ()), expanded(made)) == (8, 16384)
    assert found.chunked_prefill_size == 8 * 2048  # of which each card has its part
    assert found.cuda_graph_max_bs_decode * 8 == found.max_running_requests
    assert 1200 < found.max_running_requests < 2000
    assert ENGINE.planning.at_once(made) == found.max_running_requests
    memory = ENGINE.planning.forecast(made, inventory)
    assert memory.fits
    assert memory.kv_tokens is not None
    assert memory.kv_tokens * 8 >= found.max_running_requests * 2298


@pytest.mark.parametrize("case", ["chat", "few cards", "not linked", "not latent"])
def test_others_split_attention(case: str) -> None:
    gpus, card = H200S, R1
    if case == "few cards":
        large = {"total_mib": 500_000, "free_mib": 499_000}
        gpus = tuple(replace(gpu, nvlink=(1 - gpu.index,), **large) for gpu in H200S[:2])
    if case == "not linked":
        gpus = tuple(replace(gpu, nvlink=()) for gpu in H200S)
    if case == "not latent":
        card = model("Qwen3-235B-A22B-FP8")
    made = plan(machine(gpus, card), policy={} if case == "chat" else BATCH)
    assert (made.value("attn_dp_size"), expanded(made)) == (None, None)


@pytest.mark.parametrize("step", [4096, 16384])
def test_a_step_of_the_operator_is_passed_as_it_is(step: int) -> None:
    inventory = machine(H200S, R1)
    made = plan(inventory, policy={**BATCH, "max_num_batched_tokens": step})
    assert parsed(made, inventory).chunked_prefill_size == step


def test_fewer_requests_than_cards_are_not_divided_over_them() -> None:
    made = plan(machine(H200S, R1), policy={**BATCH, "max_num_seqs": 7})
    assert (made.value("attn_dp_size"), made.value("max_running_requests")) == (None, 7)


def test_the_ladder_leaves_each_card_a_request() -> None:
    made = plan(machine(H200S, R1), policy={**BATCH, "max_num_seqs": 9})
    assert made.value("attn_dp_size") == 8
    (fewer,) = [rung for rung in RUNGS if rung.name == "requests"]
    finding = Finding("device-oom-run", "", "serving")
    step = fewer.step(made, finding)
    assert step is None or step.settings["max_running_requests"] >= 8


def test_an_older_release_spells_it_with_two_options() -> None:
    inventory = machine(H200S, R1, OLDER)
    made = plan(inventory, policy=BATCH)
    found = parsed(made, inventory)
    assert (found.tp_size, found.dp_size, found.enable_dp_attention) == (8, 8, True)
    assert len(made.cards or ()) == 8
    newer = plan(machine(H200S, R1), policy=BATCH)
    requests = newer.value("max_running_requests")
    assert ENGINE.planning.at_once(made) == ENGINE.planning.at_once(newer) == requests
    lacks = replace(OLDER, flags=OLDER.flags - {"--enable-dp-attention"})
    assert plan(machine(H200S, R1, lacks), policy=BATCH).value("dp_size") is None


def test_each_group_has_the_attention_and_the_embedding_as_a_whole() -> None:
    load = SglangLoad(context=8192, requests=1, step=2048, share=0.8, ranks=8)
    apart = replace(load, attention_groups=8)
    more = weights_bytes(R1, apart) - weights_bytes(R1, load)
    layer = 1536 * 128 * 192 + 512 * 128 * 256 + 7168 * 128 * 128  # fp8: queries, keys, output
    absorbed, embedding = 512 * 128 * 256 * 2, 129280 * 7168 * 2
    expected = (61 * (layer + absorbed) + embedding) * 7 / 8
    assert more == pytest.approx(expected, rel=0.02)


def test_typed_groups_are_forecast_and_are_no_replicas() -> None:
    inventory = machine(H200S, R1)
    for words in (["--attn-dp-size", "8"], ["--enable-dp-attention", "--dp-size", "8"]):
        made = plan(inventory, engine={"extra_args": ["--tp-size", "8", *words]})
        assert (len(made.cards or ()), expanded(made)) == (8, 16384)
        assert ENGINE.planning.at_once(made) == made.value("max_running_requests")
        assert ENGINE.planning.forecast(made, inventory).fits
    limited = plan(inventory, policy={**BATCH, "max_num_seqs": 64})
    assert limited.value("max_running_requests") == 64
    with pytest.raises(Unplannable, match="whole number of at least 1"):
        plan(inventory, engine={"extra_args": ["--attn-dp-size", "no"]})


def test_the_ladder_gives_it_up() -> None:
    rung = next(rung for rung in RUNGS if rung.name == "replicas-off")
    for engine, names in ((REAL, {"attn_dp_size"}), (OLDER, {"dp_size", "enable_dp_attention"})):
        step = rung.step(plan(machine(H200S, R1, engine), policy=BATCH), Finding("hang", ""))
        assert step is not None
        assert (step.settings, step.change) == (
            dict.fromkeys(names), "attention on all cards",
        )  # fmt: skip
