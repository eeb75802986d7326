"""`workload = "batch"`: as many requests as the cache holds, in large steps, with CUDA graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.sizing.pace import WORKLOADS, Pace
from tests.boxes.machines import BOXES, box_with
from tests.boxes.models import model
from tests.core.machines import plan

BATCH = {"policy": {"workload": "batch"}}


@pytest.mark.parametrize(
    ("box", "name", "sequences", "step"),
    [
        ("3090", "gpt-oss-20b", 128, 8192),
        ("4090", "gpt-oss-20b", 128, 8192),
        ("a100-80g", "gpt-oss-20b", 256, 8192),
        ("a100-80g", "gpt-oss-120b", 128, 8192),
        ("h100", "gpt-oss-120b", 128, 2048),
        ("4090", "Llama-3.1-8B", 24, 2048),
        ("h200-x8", "DeepSeek-R1", 256, 8192),
    ],
)
def test_a_batch_fills_the_cache_in_large_steps_with_graphs(
    box: str, name: str, sequences: int, step: int
) -> None:
    found = plan(box_with(box, model(name)), **BATCH)
    assert found.value("enforce_eager") is None
    assert found.value("max_num_seqs") == sequences
    assert found.value("max_num_batched_tokens") == step


def test_turings_few_sequences_are_for_people_not_for_batches() -> None:
    machine = box_with("2080ti-22g", model("Qwen3-30B-A3B-AWQ"))
    assert plan(machine).value("max_num_seqs") <= 8
    assert plan(machine, **BATCH).value("max_num_seqs") > 8


def test_requests_beyond_the_cache_wait() -> None:
    card, batch = model("gpt-oss-20b"), WORKLOADS["batch"]
    base = Candidate(context=131072, sequences=128, batch_tokens=8192, utilization=0.9)
    pace = Pace(card, base, BOXES["3090"], batch)
    assert pace.seconds(base, 64) == pace.seconds(base.but(sequences=64))
    assert pace.seconds(base, 64) > pace.seconds(base, 128)


def test_small_steps_of_a_prompt_read_the_experts_again() -> None:
    card, chat = model("gpt-oss-120b"), WORKLOADS["chat"]
    base = Candidate(context=131072, sequences=1, batch_tokens=8192, utilization=0.9)
    slow = tuple(replace(gpu, memory_gb_s=100.0) for gpu in BOXES["h100"])
    pace = Pace(card, base, slow, chat)
    assert pace.reading(base) > 4 * pace.reading(base.but(batch_tokens=512))


def test_weights_in_host_memory_do_not_make_users_wait_for_each_other() -> None:
    found = plan(box_with("h100-x8", model("DeepSeek-R1")))
    assert found.value("cpu_offload_gb") > 0
    assert found.value("max_num_seqs") == 8


def test_an_embedder_takes_passages_not_chats() -> None:
    assert plan(box_with("4090", model("Qwen3-Reranker-4B"))).value("max_num_seqs") >= 128


def test_a_processors_cache_is_a_quarter_of_the_memory_beside_the_weights() -> None:
    machine = box_with("cpu-new", model("Llama-3.1-8B"))
    beside = (machine.host.ram_mib << 20) - machine.model.size()
    assert 0.2 < plan(machine).value("kv_cache_memory_bytes") / beside < 0.26


def test_reasons_of_batches_are_true() -> None:
    turing = plan(box_with("2080ti-22g", model("Qwen3-30B-A3B-AWQ")), **BATCH)
    assert "full-length" not in turing.settings["max_num_seqs"].reason
    latent = plan(box_with("h200-x8", model("DeepSeek-R1")), **BATCH)
    flags = "--data-parallel-size 8 --enable-expert-parallel"
    assert flags in latent.settings["tensor_parallel_size"].reason
    embedder = plan(box_with("4090", model("Qwen3-Reranker-4B")))
    assert "texts of 512 tokens" in embedder.settings["max_num_seqs"].reason
