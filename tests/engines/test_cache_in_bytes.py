"""A cache whose size is set: where vLLM, measuring its first start, would leave it too little."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.core.healing.failure import Finding
from caovand.core.units import MIB
from caovand.engines.vllm.healing.rungs import RUNGS
from caovand.engines.vllm.log.phases import read_figures
from caovand.engines.vllm.memory.candidate import (
    Candidate,
    Kernels,
    free_share,
    utilization,
    visible_mib,
)
from caovand.engines.vllm.memory.estimate import estimate, kv_bytes
from caovand.engines.vllm.memory.settings import candidate_of_plan
from caovand.engines.vllm.memory.shards import weights_bytes
from caovand.engines.vllm.memory.steps import overheads
from caovand.engines.vllm.planning.decisions import forecast
from tests.boxes.machines import box_with
from tests.boxes.models import model
from tests.core.machines import cards, inventory, named, plan
from tests.examples import examples

BYTES, SHARE = "kv_cache_memory_bytes", "gpu_memory_utilization"
QWEN = model("Qwen3.6-27B-GPTQ-Int4")
MODELS = (QWEN, model("Llama-3.1-8B-AWQ"), model("gpt-oss-20b"), model("gemma-4-26B-A4B-AWQ"))


def test_a_3090_runs_the_27b_in_whole_graphs() -> None:
    machine = box_with("3090", QWEN)
    found = plan(machine)
    assert found.value("compilation_config") == {"cudagraph_mode": "FULL_AND_PIECEWISE"}
    assert found.mtp == 3
    assert found.value("max_model_len") > 28_000
    size = found.value(BYTES)
    assert f"{size / 2**30:.2f} GiB fit" in found.settings[BYTES].reason
    memory = forecast(found, machine)
    assert memory.fits
    assert memory.kv_mib == size / MIB
    asked = candidate_of_plan(found, machine)
    first = replace(asked, kv_bytes=None, cold=True)
    assert kv_bytes(QWEN, first, machine.gpus) < memory.needed_mib * MIB  # vLLM would not start


def test_where_the_whole_context_fits_vllm_measures() -> None:
    assert plan(inventory(QWEN, named("H200"))).value(BYTES) is None


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu-memory-utilization", "0.94"],
        ["--num-gpu-blocks-override", "40"],
        ["--enforce-eager"],
    ],
)
def test_a_flag_that_sizes_the_cache_is_left_alone(words: list[str]) -> None:
    assert plan(box_with("3090", QWEN), engine={"extra_args": words}).value(BYTES) is None


def test_an_engine_without_the_flag_measures() -> None:
    machine = box_with("3090", QWEN)
    old = replace(machine.engine, flags=frozenset({"--max-model-len", "--enforce-eager"}))
    assert plan(replace(machine, engine=old)).value(BYTES) is None


@examples(100)
@example(MODELS[3], 17_394, 512, 16, 8192, 0, False)  # its first start counts fewer graphs
@given(
    card=st.sampled_from(MODELS),
    mib=st.integers(14_000, 90_000),
    context=st.integers(512, 60_000),
    sequences=st.integers(1, 64),
    batch=st.sampled_from([512, 2048, 8192]),
    mtp=st.integers(0, 4),
    flashinfer=st.booleans(),
)
def test_what_we_set_leaves_the_reserve_to_every_later_step(
    card: ModelCard,
    mib: int,
    context: int,
    sequences: int,
    batch: int,
    mtp: int,
    flashinfer: bool,
) -> None:
    gpus: tuple[Gpu, ...] = cards(1, "NVIDIA GeForce RTX 3090", (8, 6), mib)
    mtp = mtp if card.mtp_layers else 0
    asked = Candidate(
        context,
        sequences,
        max(batch, sequences),
        0.0,
        mtp=mtp,
        kernels=Kernels(flashinfer=flashinfer),
    )
    asked = asked.but(in_bytes=True)
    asked = asked.but(utilization=utilization(asked, gpus))
    size = int(kv_bytes(card, asked, gpus))
    if size <= 0:
        return
    held = size + weights_bytes(card, asked) + sum(part for _, part in overheads(card, asked))
    assert held <= asked.utilization * visible_mib(mib) * MIB
    first = asked.but(in_bytes=False, cold=True)
    first = first.but(utilization=utilization(first, gpus))
    later = first.but(cold=False)
    copied = kv_bytes(card, later, gpus) - kv_bytes(card, first, gpus)
    assert 0 <= copied <= card.vocab_size * card.hidden_size * 2
    found = estimate(card, asked.but(in_bytes=False, kv_bytes=size), gpus)
    assert found.fits == (context <= found.max_model_len)


def test_less_of_the_card_means_that_vllm_sizes_the_cache() -> None:
    found = plan(box_with("3090", QWEN))
    (less,) = [rung for rung in RUNGS if rung.name == "gmu-down"]
    step = less.step(found, Finding("device-oom-run", "CUDA out of memory", "serving"))
    assert step is not None
    assert step.settings[BYTES] is None
    assert step.settings[SHARE] < found.value(SHARE)
    assert "and vLLM sizes the KV cache" in step.change
    (half,) = [rung for rung in RUNGS if rung.name == "kv-memory-less"]
    assert half.step(found, Finding("host-oom", "killed", "serving")) is None


@pytest.mark.parametrize(("box", "card"), [("3090", QWEN), ("4090", model("Llama-3.1-8B"))])
def test_the_share_bars_no_start_that_has_room(box: str, card: ModelCard) -> None:
    """vLLM compares it with what is free, and uses it for nothing else."""
    machine = box_with(box, card)
    found = plan(machine)
    asked = candidate_of_plan(found, machine)
    size = visible_mib(machine.gpus[0].total_mib)
    taken = weights_bytes(card, asked) + sum(part for _, part in overheads(card, asked))
    taken = (taken + found.value(BYTES)) / MIB
    assert taken - 260 <= found.value(SHARE) * size <= taken
    assert found.value(SHARE) < utilization(asked, machine.gpus)
    assert "must be free at the start" in found.settings[SHARE].reason
    assert plan(machine, policy={SHARE: 0.93}).value(SHARE) == 0.93


def test_the_log_of_such_a_start_tells_the_size() -> None:
    line = (
        "INFO 11-26 14:35:45 [gpu_worker.py:383] Initial free memory 23.2 GiB, reserved 2.45 GiB"
        " memory for KV Cache as specified by kv_cache_memory_bytes config and skipped memory"
        " profiling."
    )
    assert read_figures(line)["kv_gib"] == 2.45


@pytest.mark.parametrize("mib", [20_300, 20_800, 23_500])
def test_the_first_start_has_room_to_compile(mib: int) -> None:
    """It makes the cache behind that, and would otherwise end before it has any."""
    gpus = cards(1, "NVIDIA GeForce RTX 3090", (8, 6), mib)
    machine = inventory(QWEN, gpus)
    found = plan(machine)
    if found.value(BYTES) is None:
        return
    first = replace(candidate_of_plan(found, machine), kv_bytes=None, cold=True)
    assert kv_bytes(QWEN, replace(first, utilization=free_share(gpus)), gpus) > 0


def test_a_set_cache_is_vllms_own_less_what_its_graphs_take() -> None:
    machine = box_with("3090-x4", model("Llama-3.3-70B-AWQ"))
    found = plan(machine)
    first = replace(candidate_of_plan(found, machine), kv_bytes=None, cold=True)
    first = first.but(utilization=utilization(first, machine.gpus))
    own = kv_bytes(machine.model, first, machine.gpus)
    assert own - 64 * MIB < found.value(BYTES) < own
    memory = forecast(found, machine)
    assert memory.fits
    reason = found.settings[BYTES].reason
    assert f"vLLM would leave it {own / 2**30:.2f}, but its graphs need the difference" in reason
