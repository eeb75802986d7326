"""Plans for llama-server: what goes where, how much fits, and what the operator typed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.facts.inventory import Inventory, ModelCard
from caovand.core.healing.failure import Finding
from caovand.core.plan import Plan, Unplannable
from caovand.engines.llamacpp.engine import ENGINE
from caovand.engines.llamacpp.memory.forecast import forecast
from tests.boxes import models
from tests.boxes.machines import box_with
from tests.boxes.others import ENGINES, in_gguf
from tests.core.machines import QWEN_27B
from tests.engines.llamacpp.machines import (
    CPU,
    CUDA,
    HOST,
    LLAMA_70B,
    MOE_30B,
    QWEN_8B,
    QWEN_27B_MTP,
    card,
    machine,
    model,
    plan,
)
from tests.examples import examples

LARGE_ATTENTION = model(
    48, 560, experts_mib=330, context=131072, experts=128, experts_per_token=8, expert_size=768
)


def test_a_plan_is_the_same_however_much_memory_is_free_at_its_start() -> None:
    """Its fingerprint names the folder of bench's results."""
    hosts = [replace(HOST, ram_mib=24_576, available_mib=free) for free in (21_000, 18_000)]
    one, other = (plan(machine(QWEN_8B, host=host)) for host in hosts)
    assert one.identity == other.identity
    assert 0 < one.value("cache_ram") < 3072
    small = replace(HOST, ram_mib=1024, available_mib=900)
    assert plan(machine(QWEN_8B, host=small)).value("cache_ram") == 0


def argv(found: Plan, inventory: Inventory) -> list[str]:
    return list(ENGINE.planning.command(found, inventory.engine, None).argv)


def of(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_without_a_card_everything_is_in_host_memory() -> None:
    inventory = machine()
    found = plan(inventory)
    words = argv(found, inventory)
    assert words[:3] == ["/engine/bin/llama-server", "--model", QWEN_8B.path]
    assert "--gpu-layers" not in words
    assert of(words, "--threads") == "8"
    assert found.value("max_model_len") == 28416  # an hour at eight cores' 7.8 tokens/s
    assert of(words, "--ctx-size") == str(2 * 28416)
    assert of(words, "--parallel") == "2"
    assert of(words, "--fit") == "off"
    assert of(words, "--cors-origins") == "localhost"
    assert "--metrics" in words
    assert found.warnings == ()
    assert forecast(found, inventory).fits


@pytest.mark.parametrize(("task", "option"), [("embed", "--embeddings"), ("score", "--reranking")])
def test_a_text_to_embed_or_rank_is_read_in_one_step(task: Any, option: str) -> None:
    inventory = machine(replace(QWEN_8B, task=task, mtp_layers=1))
    found = plan(inventory)
    words = argv(found, inventory)
    assert (found.task, found.mtp, option in words) == (task, 0, True)
    assert {found.value(name) for name in ("max_model_len", "ubatch_size", "batch_size")} == {8192}
    assert of(words, "--ubatch-size") == "8192"
    assert ENGINE.planning.speed(found, inventory) is None
    on_card = machine(inventory.model, 24576)
    assert "tokens/s" not in plan(on_card).settings["gpu_layers"].reason
    longer = plan(inventory, model={"max_model_len": 10_000})
    assert longer.value("ubatch_size") == longer.value("max_model_len") == 10_000


@pytest.mark.parametrize(("cpus", "context"), [(2, 8192), (4, 14080), (64, 32768)])
def test_a_context_on_a_processor_is_one_that_its_cores_read(cpus: int, context: int) -> None:
    found = plan(machine(host=replace(HOST, cpus=cpus))).settings["max_model_len"]
    assert found.value == context
    assert context == 32768 or "many minutes to read a longer prompt" in found.reason


def test_an_option_makes_any_model_embed() -> None:
    found = plan(machine(), engine={"extra_args": ["--embeddings"]})
    assert (found.task, plan(machine()).task) == ("embed", "generate")


def test_a_step_on_few_cores_is_short_enough_to_answer_in_between() -> None:
    few = replace(HOST, cpus=2)
    small, large = plan(machine(model(24, 15), host=few)), plan(machine(LLAMA_70B, host=few))
    assert small.value("batch_size") > large.value("batch_size") >= 32
    assert "does not answer until it is done" in small.settings["batch_size"].reason


def test_a_model_that_fits_a_card_is_on_it_with_all_its_context() -> None:
    inventory = machine(QWEN_8B, 11264)
    found = plan(inventory)
    assert found.value("gpu_layers") == 37
    assert found.cards == ("0",)
    memory = forecast(found, inventory)
    assert memory.fits
    # Two slots of 16384 tokens would take 4.5 GiB in half precision: the cache takes what the
    # layers leave, and both slots share it.
    assert (found.value("max_model_len"), found.value("unified")) == (32768, True)
    alone = plan(inventory, engine={"extra_args": ["--no-kv-unified"]})
    assert 8192 <= alone.value("max_model_len") < 32768
    assert "every layer on the cards for 2 slots" in alone.settings["max_model_len"].reason
    large = plan(machine(QWEN_8B, 24576))
    assert (large.value("max_model_len"), large.value("unified")) == (32768, None)


def test_slots_and_cache_are_lowered_before_layers_leave_a_card() -> None:
    inventory = machine(QWEN_8B, 7168)
    found = plan(inventory)
    assert found.value("gpu_layers") == 37
    assert (found.value("parallel"), found.value("cache_type_k")) == (1, "q8_0")
    assert found.value("max_model_len") >= 16384  # which two slots would not have
    more = plan(machine(QWEN_8B, 8192))
    assert (more.value("parallel"), more.value("cache_type_k")) == (2, "q8_0")
    assert "layers off the cards" in found.settings["cache_type_k"].reason
    smaller = plan(machine(QWEN_8B, 6656))
    assert (smaller.value("gpu_layers"), smaller.value("parallel")) == (37, 1)
    typed = plan(inventory, policy={"kv_cache_dtype": "f16", "max_num_seqs": 2})
    assert typed.value("gpu_layers") < 37
    assert (typed.value("parallel"), typed.value("cache_type_k")) == (2, "f16")


def test_what_a_small_card_cannot_hold_stays_in_host_memory() -> None:
    inventory = machine(LLAMA_70B, 8192)
    found = plan(inventory)
    assert 0 < found.value("gpu_layers") < 20
    assert forecast(found, inventory).fits
    assert (found.value("max_model_len"), found.value("unified")) == (32768, True)
    assert "as many as fit on the cards" in found.settings["gpu_layers"].reason


@pytest.mark.parametrize(
    ("box", "separate", "shared"),
    [
        (machine(MOE_30B, 8192), 16384, 32768),
        (machine(QWEN_8B, host=replace(HOST, ram_mib=12288, available_mib=10000)), 10752, 21504),
    ],
)
def test_slots_share_one_cache_also_where_weights_are_in_host_memory(
    box: Inventory, separate: int, shared: int
) -> None:
    found = plan(box)
    assert (found.value("parallel"), found.value("unified")) == (2, True)
    assert found.value("max_model_len") == shared
    assert found.settings["max_model_len"].reason.endswith("2 slots share it")
    lacking = replace(box, engine=replace(box.engine, flags=frozenset({"--ctx-size"})))
    assert plan(lacking).value("unified") is None
    assert plan(lacking).value("max_model_len") == separate
    apart = plan(box, engine={"extra_args": ["--no-kv-unified"]})
    assert apart.value("max_model_len") == separate


def test_experts_leave_the_cards_before_layers_do() -> None:
    inventory = machine(MOE_30B, 8192)
    found = plan(inventory)
    assert found.value("gpu_layers") == 49
    assert 0 < found.value("n_cpu_moe") <= 48
    assert forecast(found, inventory).fits
    assert plan(machine(MOE_30B, 24576)).value("n_cpu_moe") is None


def test_layers_whose_cache_would_be_in_host_memory_leave_only_their_experts_there() -> None:
    """A token of a long request reads the cache of all its layers."""
    inventory = machine(MOE_30B, 16384)
    found = plan(inventory, policy={"workload": "long"})
    assert found.value("gpu_layers") == 49
    assert 0 < found.value("n_cpu_moe") < 48
    assert "tokens/s at 32768 tokens of context" in found.settings["gpu_layers"].reason
    crowded = plan(machine(LARGE_ATTENTION, 8192))
    assert 0 < crowded.value("gpu_layers") < 49
    assert crowded.value("n_cpu_moe") == 48


def test_attention_stays_on_the_cards_where_that_is_hardly_slower() -> None:
    """Prompts are read far faster so."""
    large_experts = model(
        32, 800, experts_mib=760, experts=8, experts_per_token=2, expert_size=14336
    )
    found = plan(machine(large_experts, 12288))
    assert (found.value("gpu_layers"), 15 < found.value("n_cpu_moe") < 32) == (33, True)
    assert "modelled 3." in found.settings["gpu_layers"].reason
    assert found.value("ubatch_size") == 2048


def test_prompts_are_kept_in_the_memory_that_weights_in_it_leave() -> None:
    host = replace(HOST, ram_mib=32_768, available_mib=29_000)
    whole, split = (plan(machine(MOE_30B, mib, host=host)) for mib in (24576, 8192))
    assert whole.value("cache_ram") > split.value("cache_ram") > 2000
    crowded = machine(MOE_30B, 8192, host=replace(host, available_mib=16_000))
    found = plan(crowded)
    assert 500 < found.value("cache_ram") < 2000
    assert "the free host memory that the weights leave" in found.settings["cache_ram"].reason
    assert forecast(found, crowded).fits
    more = plan(crowded, engine={"extra_args": ["--cache-ram", "4096"]})
    assert "host memory" in forecast(more, crowded).lack


def test_threads_are_spread_over_numa_nodes_where_a_processor_reads_weights() -> None:
    host = replace(HOST, numa_nodes=2)
    processor, split, whole = (machine(MOE_30B, *mib, host=host) for mib in ((), (8192,), (24576,)))
    assert [plan(box).value("numa") for box in (processor, split)] == ["distribute"] * 2
    assert "2 NUMA nodes" in plan(processor).settings["numa"].reason
    assert "numa" not in {**plan(whole).settings, **plan(machine(MOE_30B)).settings}
    assert of(argv(plan(processor), processor), "--numa") == "distribute"
    typed = plan(processor, engine={"extra_args": ["--numa", "isolate"]})
    assert of(argv(typed, processor), "--numa") == "isolate"
    assert argv(typed, processor).count("--numa") == 1
    lacking = replace(processor, engine=replace(processor.engine, flags=frozenset({"--threads"})))
    assert plan(lacking).value("numa") is None


def test_prompts_seen_before_count_in_host_memory_and_give_way() -> None:
    tight = machine(QWEN_8B, host=replace(HOST, ram_mib=16384, available_mib=14300))
    found = plan(tight)
    memory = forecast(found, tight)
    assert dict(memory.parts)["prompts"] == found.value("cache_ram") > 1000
    assert memory.fits
    assert "earlier prompts leave" in found.settings["max_model_len"].reason
    asked = plan(tight, engine={"extra_args": ["--cache-ram", "4096"]})
    assert forecast(asked, tight).kv_tokens < memory.kv_tokens
    crowded = machine(model(36, 340), host=replace(HOST, ram_mib=16384, available_mib=14900))
    found = plan(crowded)
    assert (found.value("cache_ram"), forecast(found, crowded).fits) == (0, True)


def test_experts_of_unknown_number_are_all_read() -> None:
    known, unknown = (
        ENGINE.planning.speed(plan(box), box)
        for box in (machine(MOE_30B), machine(replace(MOE_30B, experts_per_token=0)))
    )
    assert known is not None
    assert unknown is not None
    assert known > 5 * unknown


@pytest.mark.parametrize(
    ("workload", "mib", "slots"),
    [("batch", 81920, 32), ("batch", 28672, 19), ("batch", 8192, 4), ("chat", 81920, 8),
     ("chat", 24576, 2), ("long", 81920, 4)],
)  # fmt: skip
def test_slots_are_as_many_as_memory_has_room_for(workload: str, mib: int, slots: int) -> None:
    inventory = machine(QWEN_8B, mib)
    found = plan(inventory, policy={"workload": workload})
    assert found.value("parallel") == slots
    assert forecast(found, inventory).fits
    enough = 8192 if workload == "batch" else 32768
    assert found.value("max_model_len") >= enough
    assert plan(inventory, policy={"workload": workload, "max_num_seqs": 1}).value("parallel") == 1


def test_two_users_are_worth_a_little_of_a_sufficient_context() -> None:
    found = plan(machine(QWEN_8B, 8064))
    assert (found.value("parallel"), found.value("cache_type_k")) == (2, "q8_0")
    assert 16384 / 1.1 <= found.value("max_model_len") / 2 < 16384


@pytest.mark.parametrize(
    ("mib", "slots", "cache"), [(10240, 6, "q8_0"), (14336, 8, "q8_0"), (20480, 12, "f16")]
)
def test_a_batch_fills_the_card_with_eight_bits_where_half_precision_holds_few(
    mib: int, slots: int, cache: str
) -> None:
    inventory = machine(QWEN_8B, mib)
    found = plan(inventory, policy={"workload": "batch"})
    assert (found.value("parallel"), found.value("cache_type_k")) == (slots, cache)
    assert found.value("max_model_len") >= 8192


def test_a_batch_leaves_layers_in_host_memory_where_more_slots_generate_more() -> None:
    inventory = machine(QWEN_27B_MTP, 15360, host=replace(HOST, cpus=64))
    found = plan(inventory, policy={"workload": "batch"})
    alone = plan(inventory, policy={"workload": "batch", "max_num_seqs": 1})
    assert found.value("parallel") >= 4
    assert found.value("gpu_layers") < alone.value("gpu_layers")
    assert forecast(found, inventory).fits
    short = plan(inventory, policy={"workload": "batch"}, model={"max_model_len": 4096})
    assert short.value("parallel") >= 4
    assert plan(inventory, policy={"workload": "long"}).value("parallel") == 1


def test_a_batch_has_no_more_slots_than_are_computed_while_weights_are_read() -> None:
    slow = machine(QWEN_8B, 81920)
    slow = replace(slow, gpus=(replace(slow.gpus[0], name="NVIDIA GeForce GTX 1660 Ti"),))
    assert plan(slow, policy={"workload": "batch"}).value("parallel") == 8
    few = (plan(machine(QWEN_8B, host=replace(HOST, cpus=cpus)), policy={"workload": "batch"})
           for cpus in (2, 16, 64))  # fmt: skip
    assert [found.value("parallel") for found in few] == [4, 5, 8]


def test_unequal_cards_take_layers_by_their_memory() -> None:
    inventory = machine(QWEN_27B_MTP, 22527, 11264)
    found = plan(inventory, policy={"mtp": 0})
    first, second = map(int, found.value("tensor_split").split(","))
    assert first + second == found.value("gpu_layers") == 66
    assert first > second > 10
    assert forecast(found, inventory).fits
    assert found.value("split_mode") == "layer"


def test_drafts_are_made_on_cards_and_on_a_processor_only_if_asked_for() -> None:
    drafting = machine(QWEN_27B_MTP, 24576)
    assert plan(drafting).mtp == 3
    assert of(argv(plan(drafting), drafting), "--spec-type") == "draft-mtp"
    assert plan(drafting, mode="fast").mtp == 4
    assert plan(drafting, policy={"workload": "batch"}).mtp == 0
    assert plan(drafting, environ={"CAOVAN_AUTO_SPEC": "2"}).mtp == 2
    assert plan(machine(QWEN_27B_MTP)).mtp == 0
    assert plan(machine(QWEN_27B_MTP), policy={"mtp": 2}).mtp == 2
    assert plan(machine(QWEN_27B_MTP), mode="fast").mtp == 4
    assert plan(machine(QWEN_8B, 24576)).mtp == 0
    with pytest.raises(Unplannable, match="neither a depth"):
        plan(drafting, environ={"CAOVAN_AUTO_SPEC": "lots"})


def test_a_model_without_a_head_drafts_by_lookup_where_a_depth_is_typed() -> None:
    inventory = machine(QWEN_8B, 24576)
    found = plan(inventory, policy={"mtp": 4})
    words = argv(found, inventory)
    assert of(words, "--spec-type") == "ngram-simple"
    assert of(words, "--spec-ngram-simple-size-m") == "4"


def test_slots_keep_caches_of_their_own_where_one_could_not_be_as_large() -> None:
    """One cache is no longer than the model's limit."""
    card = in_gguf(models.model("R1-Distill-Llama-8B"))
    found = plan(box_with("5090", card, ENGINES["llamacpp"]))
    assert found.value("unified") is None
    assert (found.value("parallel"), found.value("max_model_len")) == (2, 102_400)


def test_slots_share_a_cache_where_each_would_have_a_short_part_of_it() -> None:
    inventory = machine(QWEN_27B_MTP, 22528)
    found = plan(inventory)
    assert (found.value("parallel"), found.value("unified")) == (2, True)
    assert of(argv(found, inventory), "--ctx-size") == str(found.value("max_model_len"))
    assert "2 slots share it" in found.settings["max_model_len"].reason
    memory = forecast(found, inventory)
    assert (memory.fits, memory.concurrency) == (True, 1.0)
    assert memory.kv_tokens == found.value("max_model_len")
    separate = plan(inventory, engine={"extra_args": ["--no-kv-unified"]})
    assert separate.value("max_model_len") * 2 <= found.value("max_model_len") + 1024
    assert plan(inventory, policy={"workload": "batch"}).value("unified") is None
    old = replace(inventory, engine=replace(CUDA, flags=frozenset({"--ctx-size", "--parallel"})))
    assert plan(old).value("max_model_len") == separate.value("max_model_len")
    failed = Finding("kv-cache-none", "x", "load")
    steps = [rung.step(found, failed) for rung in ENGINE.healing.rungs_for(failed)]
    assert not any(step and "parallel" in step.settings for step in steps)  # they free nothing
    typed = plan(inventory, engine={"extra_args": ["--kv-unified", "-c", "20480"]})
    assert typed.value("max_model_len") == 20480


def test_a_typed_context_names_one_that_keeps_every_layer_on_the_cards() -> None:
    found = plan(machine(QWEN_8B, 6656), model={"max_model_len": 32768})
    reason = found.settings["max_model_len"].reason
    longest = int(reason.split("; ")[1].split()[0])
    assert found.value("gpu_layers") < 37
    whole = plan(machine(QWEN_8B, 6656), model={"max_model_len": longest})
    assert whole.value("gpu_layers") == 37


def test_what_is_typed_is_planned_as_it_is() -> None:
    inventory = machine(QWEN_8B, 24576)
    found = plan(
        inventory,
        model={"max_model_len": 8000, "served_name": "eight"},
        policy={"max_num_seqs": 3, "max_num_batched_tokens": 256, "kv_cache_dtype": "q8_0"},
        server={"port": 9000},
    )
    words = argv(found, inventory)
    assert of(words, "--ctx-size") == "24000"
    assert of(words, "--parallel") == "3"
    assert (of(words, "--batch-size"), of(words, "--ubatch-size")) == ("256", "256")
    assert of(words, "--cache-type-k") == of(words, "--cache-type-v") == "q8_0"
    assert of(words, "--alias") == "eight"
    assert of(words, "--port") == "9000"


def test_verbatim_options_win_and_are_said_once() -> None:
    inventory = machine(QWEN_8B, 24576)
    typed = ["-c", "4096", "-np", "2", "--no-warmup", "-ctk", "q8_0", "--api-key", "secret-key"]
    found = plan(inventory, engine={"extra_args": typed})
    command = ENGINE.planning.command(found, inventory.engine, None)
    words = list(command.argv)
    assert "--ctx-size" not in words
    assert words[words.index("-c") + 1] == "4096"
    assert words.count("--parallel") == 0
    assert found.value("max_model_len") == 2048
    assert found.value("cache_type_k") == "q8_0"
    assert "secret-key" not in words
    assert command.env["LLAMA_API_KEY"] == "secret-key"
    assert "secret-key" not in " ".join(command.shown)


@pytest.mark.parametrize(
    ("sections", "match"),
    [
        ({"model": {"max_model_len": 99999}}, "own limit is 32768"),
        ({"policy": {"kv_cache_dtype": "fp8"}}, "no such cache type; use one of f32, f16"),
        ({"engine": {"gpus": [7]}}, "GPU 7"),
        ({"engine": {"extra_args": ["-np", "many"]}}, "it is not a whole number"),
    ],
)
def test_what_cannot_be_had_is_refused(sections: dict[str, Any], match: str) -> None:
    with pytest.raises(Unplannable, match=match):
        plan(machine(QWEN_8B, 24576), **sections)


def test_other_files_than_gguf_are_for_another_engine() -> None:
    with pytest.raises(Unplannable, match='kind = "vllm"'):
        plan(machine(QWEN_27B))


def test_an_option_that_the_build_lacks_is_left_out() -> None:
    flags = frozenset({"--model", "--host", "--port", "--ctx-size", "--parallel"})
    inventory = machine(engine=replace(CPU, flags=flags))
    found = plan(inventory)
    assert "--flash-attn" not in argv(found, inventory)
    assert "has no --flash-attn" in found.settings["flash_attn"].reason


def test_an_open_address_without_a_key_is_warned_of() -> None:
    warnings = plan(machine(), server={"host": "0.0.0.0"}).warnings
    assert any("anyone who can reach" in text for text in warnings)


def test_keys_of_another_engine_are_warned_of() -> None:
    warnings = plan(machine(), policy={"dtype": "half"}).warnings
    assert any("[policy] dtype has no effect" in text for text in warnings)


def test_what_does_not_fit_is_planned_and_warned_of() -> None:
    tiny = replace(HOST, ram_mib=2048, available_mib=1500)
    inventory = machine(LLAMA_70B, host=tiny)
    found = plan(inventory)
    assert forecast(found, inventory).fits is False
    assert any("it does not fit" in text for text in found.warnings)
    assert found.advice


def test_settings_that_cannot_run_are_conflicts() -> None:
    inventory = machine()

    def conflicts(*words: str) -> list[str]:
        found = plan(inventory, engine={"extra_args": list(words)})
        return [str(one) for one in ENGINE.planning.conflicts(found, inventory)]

    assert conflicts() == []
    assert "needs flash attention" in conflicts("-fa", "off", "-ctv", "q8_0")[0]
    assert "is more than --batch-size" in conflicts("-b", "64", "-ub", "128")[0]
    odd = replace(inventory, model=replace(QWEN_8B, head_dim=80))
    found = plan(odd, policy={"kv_cache_dtype": "q8_0"})
    assert "a multiple of 32" in str(ENGINE.planning.conflicts(found, odd)[0])


MODELS: list[ModelCard] = [QWEN_8B, QWEN_27B_MTP, MOE_30B, LLAMA_70B]


@examples(40)
@given(
    served=st.sampled_from(MODELS),
    mib=st.lists(st.sampled_from([4096, 8192, 11264, 24576, 81920]), max_size=3),
    available=st.integers(1000, 200_000),
    workload=st.sampled_from(["chat", "long", "batch"]),
)
def test_every_machine_has_a_plan_that_fits_or_a_warning(
    served: ModelCard, mib: list[int], available: int, workload: str
) -> None:
    host = replace(HOST, ram_mib=available + 4000, available_mib=available)
    inventory = machine(served, *mib, host=host)
    found = plan(inventory, policy={"workload": workload})
    memory = forecast(found, inventory)
    warned = any("it does not fit" in text for text in found.warnings)
    assert warned == (memory.fits is False)
    assert 0 < (found.value("max_model_len") or 0) <= served.max_model_len
    if mib:
        assert 0 <= found.value("gpu_layers") <= len(served.gguf.layers) + 1  # type: ignore[union-attr]
    if memory.fits:
        assert found.value("ubatch_size") <= found.value("batch_size")


def test_a_card_in_use_by_others_holds_fewer_layers() -> None:
    inventory = machine(QWEN_8B, 11264)
    busy = replace(inventory, gpus=(replace(card(0, 11264), free_mib=3000),))
    assert plan(busy).value("gpu_layers") < plan(inventory).value("gpu_layers")


def test_only_cards_that_the_build_has_code_for_are_used() -> None:
    built = replace(CUDA, kernels=(("sm75", ()),), cuda="13.0.96")
    old = replace(card(1, 24576, "Tesla P40"), compute_capability=(6, 1))
    new = replace(card(2, 24576, "NVIDIA H100 80GB HBM3"), compute_capability=(9, 0))
    both = machine(QWEN_8B, 11264, engine=built)
    both = replace(both, gpus=(*both.gpus, old, new))
    found = plan(both)
    assert found.cards == ("0",)
    first, second = (text for text in found.warnings if "is not used" in text)
    assert "no kernels for compute capability 6.1" in first
    assert 'kind = "ollama"' in first
    assert "engine install --kind llamacpp --again --capability 9.0" in second
    with pytest.raises(Unplannable, match=r"cannot use GPU 1 .Tesla P40. with this llama\.cpp"):
        plan(both, engine={"gpus": [0, 1]})
    unnamed = replace(both, engine=replace(CUDA, cuda="13.0.96"))
    assert plan(unnamed).cards == ("0", "2")
    elsewhere = replace(both, engine=CUDA)  # a build of others, with CUDA 12
    assert plan(elsewhere).cards == ("0", "1", "2")


def test_a_processor_that_crawls_next_to_cards_without_code_is_refused() -> None:
    built = replace(CUDA, cuda="13.0.96")
    old = replace(card(0, 24576, "Tesla P40"), compute_capability=(6, 1))
    large, small = (Inventory((old,), HOST, built, one) for one in (LLAMA_70B, model(16, 30)))
    with pytest.raises(Unplannable, match=r"cannot use GPU 0 .*6\.1.* tokens/s; .*ollama") as no:
        plan(large)
    assert (no.value.failure, "--gpu-layers 0" in str(no.value)) == ("backend-unsupported", True)
    asked = plan(large, engine={"kind": "llamacpp", "extra_args": ["--gpu-layers", "0"]})
    assert any("is not used" in text for text in asked.warnings)
    assert any("is not used" in text for text in plan(small).warnings)  # quick enough
    with pytest.raises(Unplannable, match="cannot use GPU 0"):  # prompts would take an hour
        plan(replace(large, model=model(16, 30)), policy={"workload": "long"})
    volta = replace(card(0, 16384, "Tesla V100"), compute_capability=(7, 0))
    slow = model(32, 60)
    bare = Inventory((), HOST, CPU, slow)
    assert 5 < (ENGINE.planning.speed(plan(bare), bare) or 0) < 10
    with pytest.raises(Unplannable, match=r"GPU 0 .*7\.0.* tokens/s; .*ollama"):
        plan(Inventory((volta,), HOST, built, slow))
    assert plan(Inventory((), HOST, CPU, LLAMA_70B)).cards is None


def test_steps_are_as_large_as_the_cards_have_room_for() -> None:
    """Buffers take what is left, and at most a tenth of a context that is enough."""
    by_card = {mib: plan(machine(QWEN_8B, mib)) for mib in (8192, 9216, 10240, 24576)}
    steps = {mib: found.value("ubatch_size") for mib, found in by_card.items()}
    assert steps == {8192: 1024, 9216: 2048, 10240: 2048, 24576: 2048}
    assert all(forecast(found, machine(QWEN_8B, mib)).fits for mib, found in by_card.items())
    for mib, found in by_card.items():
        fewer = plan(machine(QWEN_8B, mib), policy={"max_num_batched_tokens": 512})
        assert found.value("max_model_len") >= fewer.value("max_model_len") * 0.9
        assert found.value("cache_type_k") == fewer.value("cache_type_k")
    assert plan(machine(QWEN_8B)).value("ubatch_size") <= 512  # on a processor


def test_a_cache_of_8_bits_is_worth_a_far_longer_context() -> None:
    qwen_32b = model(64, 270, context=40960, intermediate_size=25600, hidden_size=5120)
    found = plan(machine(qwen_32b, 24576), policy={"workload": "long"})
    assert (found.value("cache_type_k"), found.value("cache_type_v")) == ("q8_0", "q8_0")
    typed = {"workload": "long", "kv_cache_dtype": "f16"}
    half = plan(machine(qwen_32b, 24576), policy=typed)
    assert found.value("max_model_len") > 1.8 * half.value("max_model_len")


def test_weights_in_host_memory_are_read_into_it_where_a_card_waits_for_them() -> None:
    assert plan(machine(MOE_30B, 8192)).value("load_mode") == "none"
    assert plan(machine(QWEN_8B, 24576)).value("load_mode") == "mmap"
    assert plan(machine(QWEN_8B)).value("load_mode") == "mmap"
    unified = machine(QWEN_8B, 65536)
    unified = replace(unified, gpus=(replace(unified.gpus[0], unified=True),))
    assert plan(unified).value("load_mode") == "none"


GPT_OSS_120B = model(
    36, 1650, experts_mib=1600, context=131072, keys=512, experts=128, experts_per_token=4,
    expert_size=2880, hidden_size=2880, sliding_window=128,
)  # fmt: skip


@pytest.mark.parametrize("ram_gib", [48, 56, 64, 72, 96])
def test_a_context_fits_by_its_reason_where_it_fits_by_the_forecast(ram_gib: int) -> None:
    host = replace(HOST, ram_mib=ram_gib * 1024, available_mib=ram_gib * 1024 - 4500)
    inventory = machine(GPT_OSS_120B, 12288, host=host)
    found = plan(inventory)
    fits = forecast(found, inventory).fits
    assert fits == ("no context fits" not in found.settings["max_model_len"].reason)
    assert fits == (ram_gib >= 64)
    assert not fits or found.value("max_model_len") >= 16384


def test_in_unified_memory_nothing_is_left_to_the_host_and_kept_prompts_are_few() -> None:
    host = replace(HOST, ram_mib=124_546, available_mib=118_000, cpus=20)
    unified = replace(
        card(0, 124_546, "NVIDIA GB10"), compute_capability=(12, 1), unified=True,
        free_mib=118_000 - 124_546 // 8,
    )  # fmt: skip
    inventory = replace(machine(GPT_OSS_120B, 1, host=host), gpus=(unified,))
    found = plan(inventory)
    assert found.value("n_cpu_moe") is None
    assert found.value("gpu_layers") == 37
    assert found.value("cache_ram") == 124_546 // 8 // 8
    assert forecast(found, inventory).fits
    small = replace(inventory, gpus=(replace(unified, free_mib=40_000),))
    assert forecast(plan(small), small).fits is False


def test_nothing_is_drafted_while_experts_are_in_host_memory() -> None:
    drafting = model(
        48, 360, experts_mib=330, context=262144, keys=512, experts=128, experts_per_token=8,
        expert_size=768, hidden_size=2048, mtp=1,
    )  # fmt: skip
    small = plan(machine(drafting, 8192))
    assert (small.mtp, bool(small.value("n_cpu_moe"))) == (0, True)
    assert "experts are in host memory" in small.settings["speculative_config"].reason
    one = plan(machine(drafting, 24576))
    assert (one.mtp, "reads its own experts" in one.settings["speculative_config"].reason) == (
        1, True,
    )  # fmt: skip
    assert plan(machine(drafting, 24576), policy={"mtp": 3}).mtp == 3
    assert plan(machine(drafting, 8192), policy={"mtp": 2}).mtp == 2


def test_experts_in_host_memory_are_read_for_large_steps_and_longer_contexts() -> None:
    """gpt-oss-120b on a 3090 read prompts at 380 tokens/s in steps of 512, at 1113 in 2048."""
    box = box_with("4090", in_gguf(models.model("gpt-oss-120b")), ENGINES["llamacpp"])
    found = plan(box)
    assert found.value("n_cpu_moe") > 0
    assert (found.value("batch_size"), found.value("ubatch_size")) == (2048, 2048)
    assert found.value("max_model_len") > 16384  # its windows make twice the context cheap
    assert forecast(found, box).fits
    asked = plan(box, engine={"kind": "llamacpp", "extra_args": ["--ubatch-size", "512"]})
    assert asked.value("ubatch_size") == 512
    whole = box_with("4090", in_gguf(models.model("gpt-oss-20b")), ENGINES["llamacpp"])
    assert plan(whole).value("ubatch_size") == 2048
