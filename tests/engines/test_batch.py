"""`workload = "batch"`: as many requests as the cache holds, in large steps, with CUDA graphs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from caovand.core.facts.inventory import Inventory
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.shards import weights_bytes
from caovand.engines.vllm.memory.steps import overheads
from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.sizing.pace import CandidatePace
from caovand.engines.vllm.sizing.space import WORKLOADS
from tests.boxes.machines import BOXES, box_with
from tests.boxes.models import model
from tests.core.machines import plan

BATCH = {"policy": {"workload": "batch"}}


@pytest.mark.parametrize(
    ("box", "name", "sequences", "step"),
    [
        ("3090", "gpt-oss-20b", 192, 8192),
        ("4090", "gpt-oss-20b", 192, 4096),
        ("a100-80g", "gpt-oss-20b", 256, 8192),
        ("a100-80g", "gpt-oss-120b", 192, 8192),
        ("h100", "gpt-oss-120b", 192, 8192),
        ("4090", "Llama-3.1-8B", 96, 2048),
        ("h200-x8", "DeepSeek-R1", 128, 8192),
        ("h200", "gpt-oss-20b", 1024, 8192),
    ],
)
def test_a_batch_fills_the_cache_in_large_steps_with_graphs(
    box: str, name: str, sequences: int, step: int
) -> None:
    found = plan(box_with(box, model(name)), **BATCH)
    assert found.value("enforce_eager") is None
    assert found.value("max_num_seqs") == sequences
    assert found.value("max_num_batched_tokens") == step


@pytest.mark.parametrize(
    ("cards", "name"), [(2, "Qwen3-Next-80B-A3B-FP8"), (4, "Qwen3-Next-80B-A3B")]
)
def test_a_batch_of_few_active_parameters_keeps_the_engines_own_steps(
    cards: int, name: str
) -> None:
    found = plan(_some_cards("h100-x8", cards, name), **BATCH)
    assert found.value("max_num_batched_tokens") == 8192


def test_a_small_step_holds_few_answers_at_once() -> None:
    card, batch = model("Qwen3-Next-80B-A3B-FP8"), WORKLOADS["batch"]
    base = Candidate(context=8192, sequences=1024, batch_tokens=8192, utilization=0.9)
    pace = CandidatePace(card, base, BOXES["h200"], batch)
    large, small = (pace.seconds(base.but(batch_tokens=size), 600) for size in (8192, 2048))
    assert 1.1 * large < small


def test_a_replica_has_about_twice_the_sequences_that_its_cache_holds() -> None:
    machine = box_with("h200-x8", model("Qwen3-235B-A22B-FP8"))
    found = plan(machine, **BATCH)
    held = forecast(found, machine).kv_tokens / WORKLOADS["batch"].cached_tokens
    assert 1.5 * held < found.value("max_num_seqs") < 3 * held
    assert found.value("kv_cache_dtype") is None


def test_turings_few_sequences_are_for_people_not_for_batches() -> None:
    machine = box_with("2080ti-22g", model("Qwen3-30B-A3B-AWQ"))
    assert plan(machine).value("max_num_seqs") <= 16
    assert plan(machine, **BATCH).value("max_num_seqs") > 16


@pytest.mark.parametrize("box", ["4090", "a4000"])
def test_a_batch_that_the_cache_bounds_weighs_eight_bits(box: str) -> None:
    machine = box_with(box, model("Llama-3.1-8B-AWQ"))
    found = plan(machine, **BATCH)
    assert found.value("kv_cache_dtype") == "fp8"
    assert "94 to 99 %" in found.settings["kv_cache_dtype"].reason
    own = plan(machine, policy={"workload": "batch", "kv_cache_dtype": "float16"})
    assert found.value("max_num_seqs") >= 1.5 * own.value("max_num_seqs")
    assert plan(machine).value("kv_cache_dtype") is None


@pytest.mark.parametrize(
    ("box", "name"),
    [("4090", "gpt-oss-20b"), ("h200", "Llama-3.1-8B"), ("l4", "Qwen3-Reranker-4B")],
)
def test_eight_bits_bring_nothing_to_windows_and_where_there_is_room(box: str, name: str) -> None:
    assert plan(box_with(box, model(name)), **BATCH).value("kv_cache_dtype") is None


def test_long_prompts_weigh_eight_bits_before_the_models_context_is_cut() -> None:
    machine = box_with("5090", model("Qwen3.6-27B-AWQ"))
    own = plan(machine, policy={"workload": "long", "kv_cache_dtype": "bfloat16"})
    found = plan(machine, policy={"workload": "long"})
    assert found.value("kv_cache_dtype") == "fp8"
    assert found.value("max_model_len") > 1.5 * own.value("max_model_len")


def test_few_active_parameters_do_not_draft_for_many_users() -> None:
    machine = box_with("2080ti-22g-x4", model("Qwen3.5-35B-A3B-AWQ"))
    assert plan(machine).mtp == 1
    found = plan(machine, **BATCH)
    assert found.mtp == 0
    assert "keep the cards busy" in found.settings["speculative_config"].reason


@pytest.mark.parametrize(
    ("box", "name", "tensor", "replicas"),
    [
        ("h100-x8", "Qwen3.6-27B-FP8", 2, 4),
        ("3090-x4", "Llama-3.1-8B-AWQ", 1, 4),
        ("2080ti-22g-x2", "Llama-3.1-8B-AWQ", 1, 2),
        ("h200-x8", "DeepSeek-R1", 1, 8),
        ("h100-x8", "gpt-oss-120b", 8, None),
        ("h100-x8", "gpt-oss-20b", 1, 8),
        ("h100-x8", "Qwen3-235B-A22B-FP8", 1, 8),
        ("t4-x4", "Qwen3-30B-A3B-AWQ", 4, None),
        ("3090-and-3060", "Llama-3.1-8B-AWQ", 1, None),
    ],
)
def test_a_batch_is_served_by_replicas_where_that_is_faster(
    box: str, name: str, tensor: int, replicas: int | None
) -> None:
    machine = box_with(box, model(name))
    found = plan(machine, **BATCH)
    assert found.value("tensor_parallel_size") == tensor
    assert found.value("data_parallel_size") == replicas
    if replicas:
        assert bool(found.value("enable_expert_parallel")) == bool(machine.model.experts)
    assert len(found.cards or ()) == tensor * (replicas or 1)
    assert forecast(found, machine).fits
    assert plan(machine).value("data_parallel_size") is None
    whole = plan(machine, policy={"workload": "batch", "tensor_parallel_size": tensor})
    assert whole.value("data_parallel_size") is None


@pytest.mark.parametrize(
    ("box", "cards", "name", "used", "dealt"),
    [
        ("h100-x8", 6, "gpt-oss-120b", 6, False),
        ("h100-x8", 7, "gpt-oss-120b", 6, False),
        ("h100-x8", 5, "gpt-oss-20b", 5, False),
        ("h100-x8", 3, "Qwen3-30B-A3B-AWQ", 3, False),
        ("h200-x8", 6, "MiniMax-M2", 6, False),
        ("h200-x8", 5, "Qwen3-Coder-480B-A35B-FP8", 5, True),
    ],
)
def test_replicas_deal_out_the_experts_or_cut_each(
    box: str, cards: int, name: str, used: int, dealt: bool
) -> None:
    machine = _some_cards(box, cards, name)
    found = plan(machine, **BATCH)
    tensor, replicas = found.value("tensor_parallel_size"), found.value("data_parallel_size")
    assert tensor * replicas == used == len(found.cards or ())
    assert bool(found.value("enable_expert_parallel")) == dealt
    assert forecast(found, machine).fits
    reason = found.settings["data_parallel_size"].reason
    assert (f"each expert is split over {used} cards" in reason) != dealt
    idle = [warning for warning in found.warnings if "idle" in warning]
    assert bool(idle) == (used < cards)
    for warning in idle:
        assert "128 experts cannot be distributed evenly over 7 cards" in warning
        assert "its experts of 2880 cannot be cut in 7" in warning


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("GLM-4.5-Air-AWQ", "stay idle: replicas cannot use all: 128"),
        ("Qwen3-Next-80B-A3B-FP8", "stay idle: the largest split"),
    ],
)
def test_idle_cards_of_experts_that_no_replicas_share_out(name: str, fact: str) -> None:
    found = plan(_some_cards("h100-x8", 6, name), **BATCH)
    assert len(found.cards or ()) == 4
    (warning,) = [warning for warning in found.warnings if "GPU 4 and GPU 5 stay" in warning]
    assert fact in warning
    assert "replicas cannot use all: " in warning
    assert "experts cannot be distributed evenly over 6 cards, and its experts of" in warning
    assert "another engine can use them ([engine] gpus)" in warning


def test_replicas_of_two_cards_use_six_of_seven() -> None:
    found = plan(_some_cards("h100-x8", 7, "R1-Distill-Qwen-32B"), **BATCH)
    assert (found.value("tensor_parallel_size"), found.value("data_parallel_size")) == (2, 3)
    (warning,) = [warning for warning in found.warnings if "idle" in warning]
    assert warning.startswith("GPU 6 stays idle: each replica takes 2 of 7 cards; another engine")


def test_idle_cards_without_links_say_so() -> None:
    machine = _some_cards("h100-x8", 6, "gpt-oss-120b")
    apart = replace(machine, gpus=tuple(replace(gpu, nvlink=()) for gpu in machine.gpus))
    found = plan(apart, **BATCH)
    assert found.value("data_parallel_size") is None
    assert any("which needs NVLink between all" in warning for warning in found.warnings)


def test_the_operator_decides_whether_experts_stay_whole() -> None:
    machine = _some_cards("h200-x8", 6, "MiniMax-M2")
    whole = plan(machine, engine={"extra_args": ["--enable-expert-parallel"]}, **BATCH)
    assert whole.value("data_parallel_size") is None
    cut = plan(machine, engine={"extra_args": ["--no-enable-expert-parallel"]}, **BATCH)
    assert cut.value("data_parallel_size") > 1


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        (
            "gpt-oss-120b",
            "-dp 6 --enable-expert-parallel",
            "needs the same number on each card; remove --en",
        ),
        (
            "gpt-oss-120b",
            "-dp 3 -tp 2 --enable-expert-parallel",
            "cannot distribute 128 experts over 6",
        ),
        ("GLM-4.5-Air-AWQ", "-dp 6", "cannot distribute the experts over 6 cards: its experts of"),
        ("MiniMax-M2", "-dp 5", "its experts of 1536 cannot be cut in 5"),
        ("gpt-oss-120b", "-dp 3 -tp 2", ""),
        ("gpt-oss-120b", "-dp 4 --enable-expert-parallel", ""),
    ],
)
def test_experts_that_typed_replicas_cannot_share_out(name: str, words: str, said: str) -> None:
    machine = _some_cards("h200-x8", 6, name)
    found = plan(machine, engine={"extra_args": words.split()})
    memory = forecast(found, machine)
    assert memory.fits is (not said)
    assert [said in str(problem) for problem in memory.conflicts] == [True] * bool(said)


def test_experts_dealt_unevenly_are_warned_of() -> None:
    machine = _some_cards("h200-x8", 6, "GLM-4.5-Air-AWQ")
    words = ["-dp", "6", "--enable-expert-parallel"]
    found = plan(machine, engine={"extra_args": words})
    assert any("128 experts cannot be distributed evenly over 6" in one for one in found.warnings)
    assert forecast(found, machine).fits
    even = plan(machine, engine={"extra_args": ["-dp", "4", "--enable-expert-parallel"]})
    assert not any("distributed evenly" in one for one in even.warnings)


def _some_cards(box: str, cards: int, name: str) -> Inventory:
    machine = box_with(box, model(name))
    return replace(machine, gpus=machine.gpus[:cards])


def test_replicas_need_the_flag() -> None:
    machine = box_with("3090-x4", model("Llama-3.1-8B-AWQ"))
    flags = frozenset({"--tensor-parallel-size", "--max-model-len", "--max-num-seqs"})
    old = replace(machine, engine=replace(machine.engine, flags=flags))
    assert plan(old, **BATCH).value("data_parallel_size") is None
    assert plan(old, **BATCH).value("tensor_parallel_size") == 4


def test_replicas_share_out_the_experts_and_keep_the_rest() -> None:
    card = model("DeepSeek-R1")
    one = Candidate(context=4096, sequences=1, batch_tokens=512, utilization=0.9)
    cut = one.but(replicas=8)
    assert weights_bytes(card, cut) == weights_bytes(card, cut.but(whole_experts=True))
    all_cards, replicas = one.but(tensor_parallel=8), one.but(replicas=8, whole_experts=True)
    more = weights_bytes(card, replicas) - weights_bytes(card, all_cards)
    spared = card.size("layers", "embedding", "head") * 7 / 8
    assert more == pytest.approx(spared, rel=0.2)
    activations = [dict(overheads(card, asked))["activations"] for asked in (all_cards, replicas)]
    assert activations[1] > 1.5 * activations[0]


def test_replicas_answer_as_many_users_as_often_faster() -> None:
    card, batch = model("Llama-3.1-8B"), WORKLOADS["batch"]
    one = Candidate(context=8192, sequences=64, batch_tokens=8192, utilization=0.9)
    four = one.but(replicas=4)
    alone, apart = (CandidatePace(card, each, BOXES["3090-x4"], batch) for each in (one, four))
    assert apart.answering(four, 64) == pytest.approx(4 * alone.answering(one, 16))
    assert apart.seconds(four, 16) == pytest.approx(alone.seconds(one, 16) / 4)


def test_requests_beyond_the_cache_wait() -> None:
    card, batch = model("gpt-oss-20b"), WORKLOADS["batch"]
    base = Candidate(context=131072, sequences=128, batch_tokens=8192, utilization=0.9)
    pace = CandidatePace(card, base, BOXES["3090"], batch)
    assert pace.seconds(base, 64) == pace.seconds(base.but(sequences=64))
    assert pace.seconds(base, 64) > pace.seconds(base, 128)


def test_small_steps_of_a_prompt_read_the_experts_again() -> None:
    card, chat = model("gpt-oss-120b"), WORKLOADS["chat"]
    base = Candidate(context=131072, sequences=1, batch_tokens=8192, utilization=0.9)
    slow = tuple(replace(gpu, memory_gb_s=100.0) for gpu in BOXES["h100"])
    pace = CandidatePace(card, base, slow, chat)
    assert pace.reading(base) > 4 * pace.reading(base.but(batch_tokens=512))


def test_weights_in_host_memory_do_not_make_users_wait_for_each_other() -> None:
    found = plan(box_with("h100-x8", model("DeepSeek-R1")))
    assert found.value("cpu_offload_gb") > 0
    assert found.value("max_num_seqs") == 8


def test_an_embedder_takes_passages_not_chats() -> None:
    assert plan(box_with("4090", model("Qwen3-Reranker-4B"))).value("max_num_seqs") >= 128


def test_a_processors_cache_is_a_quarter_of_what_the_weights_leave() -> None:
    machine = box_with("cpu-new", model("Llama-3.1-8B"))
    left = (machine.host.ram_mib << 20) - machine.model.size()
    assert 0.2 < plan(machine).value("kv_cache_memory_bytes") / left < 0.26


def test_reasons_of_batches_are_true() -> None:
    turing = plan(box_with("2080ti-22g", model("Qwen3-30B-A3B-AWQ")), **BATCH)
    assert "compute longer" not in turing.settings["max_num_seqs"].reason
    hybrid = plan(box_with("2080ti-22g-x2", model("Qwen3.6-27B-AWQ")), **BATCH)
    assert "with recurrent states as large as" in hybrid.settings["max_num_seqs"].reason
    latent = plan(box_with("h200-x8", model("DeepSeek-R1")), **BATCH)
    assert "would hold the same" in latent.settings["data_parallel_size"].reason
    embedder = plan(box_with("4090", model("Qwen3-Reranker-4B")))
    assert "texts of 512 tokens" in embedder.settings["max_num_seqs"].reason
    fits = re.search(r"cache holds about (\d+)", embedder.settings["max_num_seqs"].reason)
    assert fits
    assert int(fits[1]) > embedder.value("max_num_seqs")
    encoder = plan(box_with("4090", model("bge-m3")))  # which keeps no cache
    assert "cache" not in encoder.settings["max_num_seqs"].reason


KEPT = {"engine": {"extra_args": ["--enable-prefix-caching"]}}


@pytest.mark.parametrize(
    ("box", "name", "why"),
    [
        ("5090", "Qwen3.5-35B-A3B-AWQ", "do not fill a block of 2096"),
        ("4090", "Qwen3.6-27B-AWQ", "the cards finish more requests"),
    ],
)
def test_a_hybrids_batch_keeps_no_prefixes_where_they_cost_more_than_they_save(
    box: str, name: str, why: str
) -> None:
    machine = box_with(box, model(name))
    found, kept = plan(machine, **BATCH), plan(machine, **BATCH, **KEPT)
    assert found.value("enable_prefix_caching") is False
    assert found.value("mamba_cache_mode") is None
    assert why in found.settings["enable_prefix_caching"].reason
    assert found.value("max_num_seqs") > 1.25 * kept.value("max_num_seqs")
    assert plan(machine).value("enable_prefix_caching") is True


def test_a_batch_keeps_prefixes_that_cost_little() -> None:
    assert plan(box_with("5090", model("Qwen3.6-27B-AWQ")), **BATCH).value("enable_prefix_caching")
    assert plan(box_with("4090", model("Llama-3.1-8B")), **BATCH).value("enable_prefix_caching")


def test_a_batch_without_prefixes_keeps_the_caches_own_type_where_that_is_enough() -> None:
    """In 8 bits its blocks are longer than a prompt, in 16 bits they are not."""
    machine = box_with("a6000-x4-pairs", model("Qwen3.5-35B-A3B-AWQ"))
    found = plan(replace(machine, gpus=machine.gpus[:1]), **BATCH)
    assert found.value("enable_prefix_caching") is False
    assert found.value("max_num_seqs") == 256
    assert found.value("kv_cache_dtype") is None
