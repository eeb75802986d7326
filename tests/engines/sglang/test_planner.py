"""Plans for SGLang: options with reasons that its own parser takes, refusals, forecast, rungs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import pytest

from caovand.core.config.parser import parse
from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.inventory import EngineInfo, Gpu, Inventory, ModelCard
from caovand.core.healing.failure import FAILURES, Failure, Finding
from caovand.core.healing.ladder import LadderRules, decide
from caovand.core.plan import Plan, Unplannable
from caovand.core.problem import Problem
from caovand.engines.sglang.engine import ENGINE
from caovand.engines.sglang.healing.cures import CURES
from caovand.engines.sglang.healing.rungs import RUNGS
from caovand.engines.sglang.memory.load import SglangLoad
from caovand.engines.sglang.planning.pace import requests_a_second
from caovand.engines.sglang.planning.workloads import WORKLOADS
from tests.core.machines import (
    A100,
    GPT_OSS,
    H200,
    HOST,
    LLAMA_70B_AWQ,
    QWEN_27B,
    named,
    turing,
    weights,
)
from tests.standin.sglang import OPTIONS, parser

REAL = EngineInfo(
    "/opt/sglang/bin/python", "0.5.23", "2.14.1+cu130", "cuda",
    flags=frozenset(OPTIONS),
    switches=frozenset(name for name, one in OPTIONS.items() if one.get("nargs") == 0),
    choices=tuple((name, tuple(one["choices"])) for name, one in OPTIONS.items()
                  if "choices" in one),
    kernels=tuple((card, ()) for card in ("sm_80", "sm_89", "sm_90", "sm_90a", "sm_100")),
    cuda="13.0",
)  # fmt: skip
"""As the probe found the wheels of 0.5.23: their kernel library has no code for 7.5."""
OWN_BUILD = replace(REAL, kernels=(("sm_75", ()),))
LLAMA_8B = ModelCard(
    "/srv/models/Llama-8B", "LlamaForCausalLM", "llama", ("full_attention",) * 32, 131072,
    hidden_size=4096, intermediate_size=14336, vocab_size=128256, heads=32, kv_heads=8,
    head_dim=128, weights=weights(layers=13.0, embedding=0.98, head=0.98),
)  # fmt: skip
DRAFTS = replace(LLAMA_8B, mtp_layers=1, weights=weights(layers=13.0, head=1.0, mtp=0.5))


def machine(
    gpus: tuple[Gpu, ...] = A100, model: ModelCard = LLAMA_8B, engine: EngineInfo = REAL
) -> Inventory:
    return Inventory(gpus, HOST, engine, model)


def plan(inventory: Inventory, *, remembered: Plan | None = None, **sections: Any) -> Plan:
    sections.setdefault("model", {}).setdefault("path", inventory.model.path)
    sections.setdefault("engine", {})["kind"] = "sglang"
    return ENGINE.planning.make(parse(sections), inventory, remembered=remembered)


def parsed(made: Plan, inventory: Inventory) -> argparse.Namespace:
    """The command line, read by the parser that SGLang's own one was recorded in."""
    argv = ENGINE.planning.command(made, inventory.engine, "/cache").argv
    assert argv[:3] == (inventory.engine.python, "-m", "sglang.launch_server")
    return parser().parse_args(argv[3:])


def one(gpus: tuple[Gpu, ...], n: int = 1) -> tuple[Gpu, ...]:
    return tuple(replace(gpus[0], index=index, nvlink=()) for index in range(n))


def test_every_option_is_planned_with_a_reason_and_taken_by_its_parser() -> None:
    inventory = machine()
    made = plan(inventory, server={"host": "::1", "port": 9000})
    found = parsed(made, inventory)
    assert (found.model_path, found.host, found.port) == ("/srv/models/Llama-8B", "::1", 9000)
    assert (found.served_model_name, found.context_length) == ("Llama-8B", 131072)
    assert (found.tp_size, found.max_running_requests) == (1, 96)  # of 4346 tokens
    assert (found.chunked_prefill_size, found.kv_cache_dtype) == (8192, "auto")
    assert found.mem_fraction_static == 0.834  # 1.5 MiB outside for a token of a step
    assert (found.enable_metrics, found.log_level_http) == (True, "warning")
    assert (found.attention_backend, found.speculative_algorithm) == (None, None)
    assert all(entry.reason for entry in (*made.env.values(), *made.settings.values()))
    assert made.served_name == "Llama-8B"
    assert made.cards == ("0",)
    assert ENGINE.planning.context(made) == 131072
    assert made.warnings == ()


def test_reasons_name_no_other_release_than_the_one_that_runs() -> None:
    older = plan(machine(engine=replace(REAL, version="0.5.17")))
    assert not any(REAL.version in one.reason for one in older.settings.values())


@pytest.mark.parametrize("mode", ["auto", "stable", "fast"])
@pytest.mark.parametrize("model", [LLAMA_8B, DRAFTS, QWEN_27B, GPT_OSS, LLAMA_70B_AWQ])
@pytest.mark.parametrize(
    ("gpus", "engine"), [(A100, REAL), (H200, REAL), (turing(4), OWN_BUILD)], ids="ahT"
)
def test_its_parser_takes_every_plan_and_all_that_the_ladder_makes_of_it(
    gpus: tuple[Gpu, ...], engine: EngineInfo, model: ModelCard, mode: str
) -> None:
    inventory = machine(gpus, model, engine)
    made = plan(inventory, policy={"mode": mode})
    parsed(made, inventory)
    for rung in RUNGS:
        step = rung.step(made, Finding("unknown", ""))
        if step is not None:
            changed = {
                name: replace(made.settings.get(name, made.settings["port"]), value=value)
                for name, value in step.settings.items()
            }
            parsed(replace(made, settings={**made.settings, **changed}), inventory)


def test_its_watchdog_comes_after_ours() -> None:
    inventory = machine()
    assert parsed(plan(inventory), inventory).watchdog_timeout == 4 * 60 + 30 + 30
    slow = plan(inventory, watch={"hang_s": 600, "confirm_s": 100})
    assert parsed(slow, inventory).watchdog_timeout == 2500


def test_a_model_with_a_head_drafts_with_it() -> None:
    inventory = machine(model=DRAFTS)
    made = plan(inventory)
    found = parsed(made, inventory)
    assert made.mtp == 3
    assert (found.speculative_algorithm, found.speculative_num_steps) == ("NEXTN", 3)
    assert (found.speculative_eagle_topk, found.speculative_num_draft_tokens) == (1, 4)
    assert plan(inventory, policy={"workload": "batch"}).mtp == 0
    assert plan(inventory, policy={"mtp": 1}).mtp == 1
    eagle = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/srv/eagle"]
    own = plan(inventory, engine={"extra_args": eagle})
    found = parsed(own, inventory)
    assert (found.speculative_algorithm, found.speculative_num_steps) == ("EAGLE3", None)
    assert ENGINE.planning.forecast(own, inventory).fits is None
    assert ENGINE.planning.overruling(parse({"engine": {"extra_args": eagle}}), {})


def test_turing_is_refused_for_kernels_that_its_wheels_lack() -> None:
    with pytest.raises(
        Unplannable, match=r"has no kernels for compute capability 7\.5; set .*vllm"
    ):
        plan(machine(turing(1)))


def test_turing_with_kernels_of_ones_own_gets_tritons_attention_in_half_precision() -> None:
    inventory = machine(turing(1), engine=OWN_BUILD)
    made = plan(inventory)
    found = parsed(made, inventory)
    assert (found.attention_backend, found.sampling_backend) == ("triton", "pytorch")
    assert found.dtype == "half"
    assert made.device == "sm75"
    assert any("vllm" in text for text in made.warnings)
    with pytest.raises(Unplannable, match="do not support it; set half"):
        plan(inventory, policy={"dtype": "bfloat16"})


def test_linked_cards_share_the_model_and_others_where_that_finishes_far_more() -> None:
    linked = tuple(replace(gpu, nvlink=tuple({0, 1} - {gpu.index})) for gpu in one(A100, 2))
    assert plan(machine(linked)).value("tp_size") == 2
    apart = plan(machine(one(A100, 2)))
    assert apart.value("tp_size") == 2
    assert "times the requests of a smaller split, although" in apart.settings["tp_size"].reason
    narrow = tuple(replace(gpu, pcie=(3, 4)) for gpu in one(A100, 2))
    alone = plan(machine(narrow)).settings["tp_size"]
    assert (alone.value, "hardly more requests over PCIe 3.0 x4" in alone.reason) == (1, True)
    cards = one((replace(A100[0], total_mib=24576, free_mib=24200),), 4)
    made = plan(machine(cards, LLAMA_70B_AWQ))
    assert made.value("tp_size") == 4  # two hold a context of 18,000
    assert made.cards == ("0", "1", "2", "3")
    assert plan(machine(one(A100, 2)), engine={"gpus": [1]}).cards == ("1",)
    with pytest.raises(Unplannable, match="the machine has 2 cards"):
        plan(machine(one(A100, 2)), policy={"tensor_parallel_size": 4})


def test_a_bridge_carries_less_than_a_switch() -> None:
    bridged = tuple(replace(gpu, nvlink=(1 - gpu.index,)) for gpu in one(named("RTX A6000"), 2))
    switched = tuple(replace(gpu, compute_capability=(9, 0)) for gpu in bridged)
    load = SglangLoad(context=8192, requests=16, step=4096, share=0.8, ranks=2)
    rates = [
        requests_a_second(LLAMA_8B, load, 10**5, gpus, WORKLOADS["chat"])
        for gpus in (bridged, switched)
    ]
    assert rates[0] < rates[1] * 0.99


def test_a_batch_is_served_by_replicas_that_take_all_cards() -> None:
    cards = tuple(replace(gpu, pcie=(3, 8)) for gpu in one(named("RTX 4090"), 3))
    inventory = machine(cards)
    found = plan(inventory, policy={"workload": "batch"})
    assert (found.value("tp_size"), found.value("dp_size")) == (1, 3)
    assert (found.cards, parsed(found, inventory).dp_size) == (("0", "1", "2"), 3)
    assert ENGINE.planning.at_once(found) == 3 * found.value("max_running_requests")
    assert ENGINE.planning.forecast(found, inventory).fits
    assert plan(inventory).value("dp_size") is None
    linked = tuple(replace(gpu, nvlink=tuple({0, 1} - {gpu.index})) for gpu in one(H200, 2))
    assert plan(machine(linked), policy={"workload": "batch"}).value("dp_size") == 2
    split = plan(inventory, policy={"workload": "batch", "tensor_parallel_size": 1})
    assert (split.value("dp_size"), split.cards) == (None, ("0",))
    typed = plan(inventory, engine={"extra_args": ["--data-parallel-size", "2", "--tp-size", "1"]})
    assert typed.cards == ("0", "1")
    with pytest.raises(Unplannable, match="whole number of at least 1"):
        plan(inventory, engine={"extra_args": ["--dp-size", "no"]})
    rung = next(rung for rung in RUNGS if rung.name == "replicas-off")
    step = rung.step(found, Finding("start-stall", ""))
    assert step is not None
    assert (dict(step.settings), step.change) == ({"dp_size": None}, "3 replicas -> one engine")
    assert rung.step(plan(inventory), Finding("start-stall", "")) is None
    old = replace(REAL, flags=REAL.flags - {"--dp-size"})
    assert plan(machine(cards, engine=old), policy={"workload": "batch"}).value("dp_size") is None


def test_cards_that_stay_idle_are_named_with_the_reason() -> None:
    for many, linked in ((3, False), (3, True), (6, True)):
        every = set(range(many))
        links = tuple(
            replace(gpu, nvlink=tuple(every - {gpu.index}) if linked else ())
            for gpu in one(A100, many)
        )
        reason = plan(machine(links)).settings["tp_size"].reason
        sizes, idle = ("1, 2 or 4", "2 stay") if many == 6 else ("1 or 2", "1 stays")
        assert f"; {idle} idle: the model can be split over {sizes} only" in reason
    assert "idle" not in plan(machine(one(A100, 2))).settings["tp_size"].reason


def test_a_small_card_gets_the_longest_context_that_fits() -> None:
    card = one((replace(A100[0], total_mib=24576, free_mib=24000),))
    inventory = machine(card)
    made = plan(inventory)
    memory = ENGINE.planning.forecast(made, inventory)
    assert memory.fits
    assert made.value("max_model_len") == memory.kv_tokens // 256 * 256 < 131072
    assert memory.weights_mib == pytest.approx(14.96 * 1024)
    # 32 layers, keys and values of 8 heads of 128 in two bytes
    assert memory.needed_mib == made.value("max_model_len") * 32 * 2 * 8 * 128 * 2 / 2**20
    assert sum(size for _, size in memory.parts) == pytest.approx(24576)
    full = one((replace(A100[0], total_mib=24576, free_mib=15000),))
    little = plan(machine(full))
    assert ENGINE.planning.forecast(little, machine(full)).fits is False
    assert any("it does not fit" in text for text in little.warnings)


UNKNOWN_STATES = replace(QWEN_27B, linear=None)


def test_windowed_layers_have_a_smaller_pool_where_sglang_makes_one() -> None:
    inventory = machine(H200, GPT_OSS)
    memory = ENGINE.planning.forecast(plan(inventory), inventory)
    whole, windows = map(GPT_OSS.layer_types.count, ("full_attention", "sliding_attention"))
    each = (whole + 0.8 * windows) * 2 * GPT_OSS.kv_heads * GPT_OSS.head_dim * 2
    assert memory.kv_tokens == int(memory.kv_mib * 2**20 / each)
    other = machine(H200, replace(GPT_OSS, architecture="Gemma3ForConditionalGeneration"))
    assert ENGINE.planning.forecast(plan(other), other).kv_tokens < memory.kv_tokens


def test_what_is_not_modelled_is_not_forecast() -> None:
    hybrid = machine(model=UNKNOWN_STATES)
    memory = ENGINE.planning.forecast(plan(hybrid), hybrid)
    assert (memory.fits, "recurrent states" in memory.reason) == (None, True)
    sized = machine(model=QWEN_27B)
    own = plan(sized, engine={"extra_args": ["--mamba-full-memory-ratio", "0.5"]})
    assert "--mamba-full-memory-ratio is not" in ENGINE.planning.forecast(own, sized).reason


def test_recurrent_states_take_their_part_of_what_the_share_leaves() -> None:
    inventory = machine(A100, QWEN_27B)
    made = plan(inventory)
    memory = ENGINE.planning.forecast(made, inventory)
    parts = dict(memory.parts)
    assert memory.fits
    # 48 layers of 48 value heads and 16 key heads of 128: a state in float32, a window of 3
    each = 48 * (48 * 128 * 128 * 4 + (48 + 2 * 16) * 128 * 3 * 2) / 2**20
    requests, drafted = made.value("max_running_requests"), made.mtp + 1
    assert made.value("max_mamba_cache_size") == requests * 5 < 80
    assert parsed(made, inventory).max_mamba_cache_size == requests * 5
    assert parts["states"] / each == pytest.approx(requests * 5 + 1 + (requests + 1) * drafted)
    assert memory.kv_tokens >= requests * 8192
    assert parts["states"] + parts["kv"] == pytest.approx(
        (A100[0].free_mib - 512) * made.value("mem_fraction_static") - memory.weights_mib
    )
    # 16 layers with a cache and the head's, keys and values of 4 heads of 256 in two bytes
    assert memory.kv_tokens == int(parts["kv"] * 2**20 / (17 * 2 * 4 * 256 * 2))
    assert made.value("max_model_len") == memory.kv_tokens // 256 * 256


def test_sglang_divides_memory_itself_where_that_cuts_nothing() -> None:
    short = replace(QWEN_27B, layer_types=QWEN_27B.layer_types[:32])
    inventory = machine(H200, short)
    made = plan(inventory, policy={"mtp": 0})
    assert made.value("max_mamba_cache_size") is None
    parts = dict(ENGINE.planning.forecast(made, inventory).parts)
    assert parts["states"] / (parts["states"] + parts["kv"]) == pytest.approx(0.9 / 1.9, abs=0.01)


def test_a_batch_keeps_no_prefixes_where_their_states_would_cut_its_requests() -> None:
    large = replace(QWEN_27B, weights=weights(layers=48.0, head=1.2, embedding=1.2))
    inventory = machine(named("H100"), large)
    made = plan(inventory, policy={"workload": "batch"})
    found, requests = parsed(made, inventory), made.value("max_running_requests")
    assert (found.disable_radix_cache, found.max_mamba_cache_size) == (True, None)
    memory = ENGINE.planning.forecast(made, inventory)
    each = 48 * (48 * 128 * 128 * 4 + (48 + 2 * 16) * 128 * 3 * 2) / 2**20
    assert dict(memory.parts)["states"] / each == pytest.approx(requests + 1)
    assert memory.fits
    assert memory.kv_tokens >= requests * 2298
    kept = plan(
        inventory,
        policy={"workload": "batch"},
        engine={"extra_args": ["--max-mamba-cache-size", "200"]},
    )
    assert kept.value("disable_radix_cache") is None
    asked = plan(inventory, policy={"workload": "batch", "max_num_seqs": 90})
    assert (asked.value("disable_radix_cache"), asked.warnings) == (True, ())
    few = plan(inventory, policy={"workload": "batch", "max_num_seqs": 8})
    assert (few.value("disable_radix_cache"), few.warnings) == (None, ())


def test_more_requests_than_recurrent_states_allow_are_warned_of() -> None:
    inventory = machine(A100, QWEN_27B)
    (text,) = plan(inventory, policy={"max_num_seqs": 64}).warnings
    assert "requests at once instead of 64: each needs 5 recurrent states" in text
    off = {"extra_args": ["--disable-radix-cache"]}
    made = plan(inventory, policy={"max_num_seqs": 64}, engine=off)
    assert (made.warnings, ENGINE.planning.forecast(made, inventory).fits) == ((), True)


def test_hybrids_store_8_bits_where_cards_have_fp8() -> None:
    tight = replace(QWEN_27B, weights=weights(layers=18.4, mtp=0.4), quantization="awq")
    for card, kind in (("RTX 3090", "auto"), ("RTX 4090", "fp8_e4m3")):
        assert plan(machine(named(card), tight)).value("kv_cache_dtype") == kind


def test_keys_with_a_bias_and_no_norm_are_not_stored_in_8_bits() -> None:
    tight = replace(LLAMA_8B, quantization="awq", weights=weights(layers=20.0))
    for kind, stored in (("llama", "fp8_e4m3"), ("qwen2", "auto")):
        card = replace(tight, model_type=kind)
        assert plan(machine(named("RTX 4090"), card)).value("kv_cache_dtype") == stored


def test_drafts_end_where_their_states_leave_room_for_few_requests() -> None:
    large = replace(QWEN_27B, weights=weights(layers=66.0, head=1.0, embedding=1.0, mtp=0.8))
    made = plan(machine(A100, large))
    assert (made.mtp, "instead of" in made.settings["speculative_config"].reason) == (0, True)
    asked = machine(A100, large)
    assert plan(asked, policy={"mtp": 3}).mtp == 3
    assert ENGINE.planning.forecast(made, asked).fits


def test_weights_that_no_card_holds_are_refused() -> None:
    huge = replace(LLAMA_8B, weights=weights(layers=90.0))
    with pytest.raises(Unplannable, match=r"on one card: 90\.00 GiB of weights exceed") as no:
        plan(machine(A100, huge))
    assert '[engine] kind = "llamacpp"' in str(no.value)
    assert "vllm" not in str(no.value)
    own = plan(machine(A100, huge), policy={"gpu_memory_utilization": 0.9})
    assert any("it does not fit" in text for text in own.warnings)


def test_weights_of_16_bits_are_rounded_where_cards_have_fp8_and_nothing_else_helps() -> None:
    large = replace(LLAMA_8B, weights=weights(layers=40.0, head=1.0, embedding=1.0))
    inventory = machine(named("RTX 4090", 2), large)
    made = plan(inventory)
    assert (made.value("tp_size"), made.value("quantization")) == (2, "fp8")
    assert parsed(made, inventory).quantization == "fp8"
    memory = ENGINE.planning.forecast(made, inventory)
    assert memory.fits
    assert memory.weights_mib == pytest.approx((40 / 2 + 2) / 2 * 1024)
    with pytest.raises(Unplannable, match="on 2 cards"):  # Ampere computes in no fp8
        plan(machine(named("RTX 3090", 2), large))
    with pytest.raises(Unplannable):  # SGLang loads them before it rounds them
        plan(machine(named("RTX 4090"), large))
    small = plan(machine(named("RTX 4090"), LLAMA_8B))
    assert small.value("quantization") is None


@pytest.mark.parametrize(("card", "kind"), [("RTX 3090", "fp8_e5m2"), ("RTX 4090", "fp8_e4m3")])
def test_a_cache_of_8_bits_is_of_the_type_that_the_cards_read(card: str, kind: str) -> None:
    asked = plan(machine(named(card)), policy={"kv_cache_dtype": "fp8"})
    assert (asked.value("kv_cache_dtype"), asked.settings["kv_cache_dtype"].origin) == (
        kind,
        "user",
    )
    assert plan(machine(named(card))).value("kv_cache_dtype") == "auto"  # 32,768 tokens and more
    tight = replace(LLAMA_8B, weights=weights(layers=17.0, head=1.0))
    inventory = machine(named(card), tight)
    made = plan(inventory)
    assert made.value("kv_cache_dtype") == kind
    memory = ENGINE.planning.forecast(made, inventory)
    assert memory.needed_mib == made.value("max_model_len") * 32 * 2 * 8 * 128 / 2**20


def test_a_batch_stores_8_bits_where_that_holds_more_requests_at_no_cost() -> None:
    batch: dict[str, Any] = {"workload": "batch"}
    assert plan(machine(named("RTX 4090")), policy=batch).value("kv_cache_dtype") == "fp8_e4m3"
    assert plan(machine(named("RTX 3090")), policy=batch).value("kv_cache_dtype") == "auto"
    assert plan(machine(named("H200")), policy=batch).value("kv_cache_dtype") == "auto"


def test_a_share_that_leaves_too_little_for_steps_does_not_fit() -> None:
    inventory = machine(H200)
    own = plan(inventory, policy={"gpu_memory_utilization": 0.99})
    memory = ENGINE.planning.forecast(own, inventory)
    assert (memory.fits, "too little for the engine's steps" in memory.lack) == (False, True)


def test_keys_become_options() -> None:
    inventory = machine(H200)
    made = plan(
        inventory,
        model={"max_model_len": 4096, "served_name": "mine", "trust_remote_code": True},
        policy={
            "max_num_seqs": 3, "kv_cache_dtype": "fp8_e4m3", "gpu_memory_utilization": 0.5,
            "max_num_batched_tokens": 1024, "cuda_graphs": "none", "dtype": "float16",
        },
        server={"tool_call_parser": "qwen"},
        engine={"env": {"NCCL_P2P_DISABLE": "1"}, "extra_args": ["--schedule-policy", "lpm"]},
    )  # fmt: skip
    found = parsed(made, inventory)
    assert (found.context_length, found.served_model_name) == (4096, "mine")
    assert (found.max_running_requests, found.kv_cache_dtype) == (3, "fp8_e4m3")
    assert (found.mem_fraction_static, found.chunked_prefill_size) == (0.5, 1024)
    assert found.cuda_graph_backend_decode == found.cuda_graph_backend_prefill == "disabled"
    assert (found.dtype, found.tool_call_parser, found.schedule_policy) == (
        "float16", "qwen", "lpm",
    )  # fmt: skip
    assert found.trust_remote_code
    assert made.env["NCCL_P2P_DISABLE"].origin == "user"


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"server": {"api_key_file": "/etc/key"}}, "only on its command line"),
        ({"model": {"max_model_len": 131073}}, "the model's own limit is 131072"),
        ({"policy": {"kv_cache_dtype": "q8_0"}}, "accepts only"),
        ({"policy": {"cuda_graphs": "piecewise"}}, "use none or full_decode_only"),
        ({"policy": {"mtp": 2}}, "has no MTP head"),
        ({"engine": {"extra_args": ["--port", "1"]}}, "set [server] port instead"),
        ({"engine": {"extra_args": ["--no-such"]}}, "SGLang 0.5.23 has no such option"),
        ({"engine": {"extra_args": ["--tp-size", "two"]}}, "not a whole number"),
        ({"engine": {"env": {"CUDA_VISIBLE_DEVICES": "0"}}}, "set [engine] gpus instead"),
        ({"engine": {"gpus": [7]}}, "no such card exists"),
    ],
)
def test_what_sglang_cannot_do_is_refused(sections: dict[str, Any], text: str) -> None:
    with pytest.raises(Unplannable) as refused:
        plan(machine(), **sections)
    assert text in str(refused.value)


def test_an_older_release_and_other_machines_are_refused() -> None:
    with pytest.raises(Unplannable, match=r"install sglang 0\.5\.17 or newer: sudo caovanctl"):
        plan(machine(engine=replace(REAL, flags=REAL.flags - {"--watchdog-timeout"})))
    with pytest.raises(Unplannable, match=r"no such option; remove \[model\] text_only"):
        plan(
            machine(engine=replace(REAL, flags=REAL.flags - {"--language-model-only"})),
            model={"text_only": True},
        )
    with pytest.raises(Unplannable, match="without a card"):
        plan(machine(gpus=()))
    volta = tuple(replace(gpu, compute_capability=(7, 0)) for gpu in turing(1))
    with pytest.raises(Unplannable, match=r"7\.5 and later"):
        plan(machine(volta))


def test_kernels_are_compiled_with_the_engines_own_nvcc() -> None:
    own = replace(REAL, cuda_home="/opt/engine/cuda")
    assert plan(machine(engine=own)).env["CUDA_HOME"].value == "/opt/engine/cuda"
    assert "CUDA_HOME" not in plan(machine()).env
    for typed in ({"CUDA_HOME": "/usr/local/cuda"}, {"CUDA_PATH": "/usr/local/cuda"}):
        env = plan(machine(engine=own), engine={"env": typed}).env
        assert {name: env[name].value for name in typed} == typed
        assert "CUDA_HOME" not in set(env) - set(typed)


def test_a_key_in_extra_args_is_shown_to_nobody() -> None:
    inventory = machine()
    for words in (["--api-key", "geheim"], ["--api-key=geheim"]):
        made = plan(inventory, engine={"extra_args": words})
        command = ENGINE.planning.command(made, REAL, None)
        assert "geheim" in " ".join(command.argv)
        assert "geheim" not in " ".join(command.shown)
        assert "geheim" not in str(made.settings)
        assert ENGINE.arguments.secrets(words) == ("geheim",)
        assert ENGINE.arguments.api_keys(words) == ("geheim",)


def test_compiled_kernels_have_a_folder_of_their_own() -> None:
    env = ENGINE.planning.command(plan(machine()), REAL, "/cache").env
    assert env["TRITON_CACHE_DIR"] == "/cache/sglang/sglang-0.5.23-torch2.14.1+cu130-sm80/triton"
    # below HOME by default, which a service need not have
    for name in ("TVM_FFI_CACHE_DIR", "SGLANG_CACHE_DIR", "SGLANG_DG_CACHE_DIR"):
        assert env[name].startswith("/cache/sglang/")
    assert "TRITON_CACHE_DIR" not in ENGINE.planning.command(plan(machine()), REAL, None).env


def descend(made: Plan, inventory: Inventory, failure: Failure) -> tuple[Plan, list[str]]:
    """The last plan, and the rungs taken until there is none left; its parser takes each."""
    taken: list[str] = []
    rules = LadderRules(ENGINE.healing)
    while (decided := decide(made, Finding(failure, "", "load"), 99, rules)).plan is not None:
        made = decided.plan
        taken.append(decided.rung)
        parsed(made, inventory)
        assert len(taken) < 60
    return made, taken


@pytest.mark.parametrize("failure", FAILURES)
def test_the_ladder_ends_and_a_kept_plan_has_its_steps(failure: Failure) -> None:
    inventory = machine(H200, DRAFTS)
    made, taken = descend(plan(inventory), inventory, failure)
    assert bool(taken) == bool(CURES.get((failure, ""))) or failure == "unknown"
    again = plan(inventory, remembered=made)
    values = {name: one.value for name, one in again.settings.items()}
    assert values == {name: one.value for name, one in made.settings.items()}
    assert again.taken == made.taken


def test_a_full_cache_and_a_full_card_are_answered_differently() -> None:
    inventory = machine(H200, DRAFTS)
    made = plan(inventory)
    more, taken = descend(made, inventory, "kv-cache-none")
    assert taken[:2] == ["draft-off off", "fill 4096"]
    assert more.value("mem_fraction_static") > made.value("mem_fraction_static")
    less, taken = descend(made, inventory, "device-oom-capture")
    assert taken[0].startswith("share ")
    assert taken[-1] == "graphs-off off"
    assert less.value("mem_fraction_static") == 0.5


def test_an_8_bit_cache_is_for_cards_that_compute_with_it() -> None:
    for gpus, kind in ((A100, "auto"), (H200, "fp8_e4m3")):
        inventory = machine(gpus)
        made, _ = descend(plan(inventory), inventory, "kv-cache-short")
        assert made.value("kv_cache_dtype") == kind


def test_cures_name_rungs() -> None:
    assert {name for names in CURES.values() for name in names} == {rung.name for rung in RUNGS}


def facts(**more: Any) -> DoctorFacts:
    known: dict[str, Any] = {
        "gpus": A100, "host": HOST, "engine": REAL, "engine_problem": None, "model": LLAMA_8B,
        "model_problem": None, "memory": None, "plan_problem": "", "caveats": (),
        "port": 8000, "listeners": (), "orphans": (), "python_version": "3.11.2",
        "wants_gpu": True, "wants_plugin": False,
    }  # fmt: skip
    return DoctorFacts(**{**known, **more})


def test_the_doctor_names_the_engine_and_cards_without_kernels() -> None:
    checks = ENGINE.planning.checks
    assert [(one.group, one.verdict) for one in checks(facts())] == [
        ("engine", "PASS"), ("GPUs", "PASS"), ("model", "PASS"), ("port", "PASS"),
    ]  # fmt: skip
    card = next(one for one in checks(facts(gpus=turing(1))) if one.group == "GPUs")
    assert (card.verdict, card.remedy) == (
        "FAIL", 'set [engine] kind = "vllm", which supports this card',
    )  # fmt: skip
    missing = Problem("use x", "SGLang is not installed there", "install it")
    found = checks(facts(engine=None, engine_problem=missing))[0]
    assert (found.verdict, found.remedy) == ("FAIL", "install it")


def test_it_is_never_chosen_over_vllm_by_itself() -> None:
    assert not ENGINE.prefers("/srv/models/Llama-8B", ("config.json", "model.safetensors"))


def test_a_share_grows_before_steps_shrink_before_the_cache_loses_bits() -> None:
    def sizes(layers: float, limit: int = 131072, **policy: Any) -> tuple[Any, ...]:
        model = replace(LLAMA_8B, weights=weights(layers=layers, head=1.0), max_model_len=limit)
        made = plan(machine(named("RTX 3090"), model), policy=policy)
        names = ("chunked_prefill_size", "kv_cache_dtype", "mem_fraction_static")
        return tuple(made.value(name) for name in names)

    own = (4096, "auto", 0.707)  # SGLang's: 1.5 MiB a token
    assert sizes(4.0, limit=65536, max_num_seqs=1) == own
    assert sizes(4.0, max_num_seqs=1)[2] > 0.85  # which would not hold the whole context
    assert sizes(12.0)[:2] == (4096, "auto")
    assert sizes(12.0)[2] > 0.85
    assert sizes(15.8)[:2] == (2048, "auto")
    assert sizes(17.0)[:2] == (4096, "fp8_e5m2")
    assert sizes(17.0, max_num_batched_tokens=512)[:2] == (512, "fp8_e5m2")


def test_unified_memory_leaves_the_host_its_part() -> None:
    own = Gpu(0, "NVIDIA GB10", (12, 1), 124_546, 118_000)
    shared = replace(own, unified=True, free_mib=118_000 - 124_546 // 8)
    engine = replace(REAL, kernels=(("sm_120", ()),))
    whole, made = (plan(machine((card,), engine=engine)) for card in (own, shared))
    left = whole.value("mem_fraction_static") - made.value("mem_fraction_static")
    assert left == pytest.approx(1 / 8, abs=0.002)
    reasons = [one.settings["mem_fraction_static"].reason for one in (whole, made)]
    assert ["15568 MiB of it remain for the host" in reason for reason in reasons] == [False, True]


def test_as_many_requests_are_served_as_the_cache_holds() -> None:
    def requests(gpus: tuple[Gpu, ...], **policy: Any) -> Any:
        return plan(machine(gpus), policy=policy).value("max_running_requests")

    assert requests(named("RTX 4090")) == 16  # the cache holds seven
    assert 96 < requests(named("H200")) <= 256
    assert requests(A100, max_num_seqs=8) == 8
    assert requests(A100, workload="long") == 4
    for workload, tokens in (("chat", 4346), ("batch", 2298)):
        inventory = machine(A100)
        found = plan(inventory, policy={"workload": workload})
        held = ENGINE.planning.forecast(found, inventory).kv_tokens // tokens
        entry = found.settings["max_running_requests"]
        assert abs(entry.value - held) <= 1
        assert f"about {entry.value} requests of workload {workload}, of {tokens} tokens" in (
            entry.reason
        )
    large = machine((replace(H200[0], total_mib=300_000, free_mib=299_000),))
    largest = plan(large, policy={"workload": "batch"}).settings["max_running_requests"]
    assert (largest.value, "the largest CUDA graph has 512" in largest.reason) == (512, True)


def test_graphs_are_as_large_as_the_most_requests_at_once() -> None:
    """SGLang's own would be of 32 requests on two cards of 40 GiB, of 8 on one of 16."""
    for cards in (named("A100 40 GB"), named("RTX 4090"), named("H200")):
        for policy in ({}, {"workload": "batch"}, {"max_num_seqs": 300}):
            inventory = machine(cards)
            found = parsed(plan(inventory, policy=policy), inventory)
            assert found.cuda_graph_max_bs_decode == found.max_running_requests
    many = plan(machine(A100), policy={"max_num_seqs": 900})
    assert many.value("cuda_graph_max_bs_decode") == 512
    assert plan(machine(), policy={"cuda_graphs": "none"}).value("cuda_graph_max_bs_decode") is None
    own = plan(machine(), engine={"extra_args": ["--cuda-graph-max-bs-decode", "64"]})
    assert own.value("cuda_graph_max_bs_decode") == 64


def test_a_model_that_ranks_is_refused_with_the_engine_for_it() -> None:
    found = machine()
    with pytest.raises(
        Unplannable, match=r'its task is reranking, .* set \[engine\] kind = "vllm"'
    ):
        plan(replace(found, model=replace(found.model, task="score")))


def test_what_is_not_modelled_takes_sglangs_own_steps() -> None:
    hybrid = plan(machine(A100, UNKNOWN_STATES))
    assert hybrid.value("chunked_prefill_size") == 8192
    assert "not modelled" in hybrid.settings["max_model_len"].reason


FP8_MOE = replace(
    LLAMA_8B, path="/srv/models/MoE-FP8", heads=64, kv_heads=4, intermediate_size=12288,
    quantization="fp8", block_size=128, experts=128, experts_per_token=8, expert_size=1536,
)  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "whole"),
    [(8, 8), (4, None)],  # 1536 over 8 cards is 192, no multiple of 128; 384 is one
)
def test_experts_stay_whole_where_their_blocks_cannot_be_cut(ranks: int, whole: Any) -> None:
    made = plan(machine(named("H200", 8), FP8_MOE), policy={"tensor_parallel_size": ranks})
    assert (made.value("tp_size"), made.value("ep_size")) == (ranks, whole)
    assert parsed(made, machine(named("H200", 8), FP8_MOE)).ep_size == whole


def test_a_width_that_cannot_be_cut_is_no_split() -> None:
    dense = replace(FP8_MOE, experts=0, expert_size=0, intermediate_size=1536 * 2)
    with pytest.raises(Unplannable, match="its MLP of 3072 cannot be cut in 16 "):
        plan(machine(named("H200", 16), dense), policy={"tensor_parallel_size": 16})
    linked = tuple(replace(gpu, nvlink=tuple(range(16))) for gpu in named("H200", 16))
    assert plan(machine(linked, dense)).value("tp_size") == 8
