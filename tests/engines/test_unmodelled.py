"""Flags that change memory: forecast as vLLM does it, or no verdict that names the flag."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.core.facts.inventory import Inventory, LinearAttention
from caovand.engines.vllm.memory.kv_cache import layout_for
from caovand.engines.vllm.memory.settings import candidate_of_plan
from caovand.engines.vllm.planning.decisions import forecast
from tests.core.machines import (
    CPU,
    GPT_OSS,
    H200,
    HOST,
    LLAMA_70B_AWQ,
    QWEN_27B_MEASURED,
    TINY_HYBRID,
    cards,
    inventory,
    plan,
    turing,
)

LLM = inventory(QWEN_27B_MEASURED, gpus=H200)
OSS = inventory(GPT_OSS, gpus=H200)
CARDS = cards(2, "NVIDIA H100 80GB HBM3", (9, 0), 81559)


@pytest.mark.parametrize(
    ("words", "machine"),
    [
        (("--enable-lora", "--max-loras", "4"), LLM),
        (("--hf-overrides", '{"num_hidden_layers": 2}'), LLM),
        (("--disable-hybrid-kv-cache-manager",), OSS),
        (("--load-format", "bitsandbytes"), LLM),
        (("--quantization", "bitsandbytes"), LLM),
        (("--mamba-cache-dtype", "float32"), LLM),
        (("-dcp", "2"), LLM),
        (("--speculative-config", '{"model": "/m/eagle", "num_speculative_tokens": 3}'), LLM),
        (
            ("--pipeline-parallel-size", "2", "--nnodes", "2"),
            inventory(QWEN_27B_MEASURED, gpus=turing(1)),
        ),
        (
            ("--data-parallel-size", "2", "--data-parallel-size-local", "1"),
            inventory(QWEN_27B_MEASURED, gpus=CARDS),
        ),
    ],
)
def test_what_is_not_forecast_is_named(words: tuple[str, ...], machine: Inventory) -> None:
    made = plan(machine, engine={"extra_args": list(words)})
    found = forecast(made, machine)
    assert found.fits is None
    assert made.value("max_model_len") == "auto"
    assert found.reason in made.settings["max_model_len"].reason
    assert made.value("max_num_seqs") > 0
    name = "--decode-context-parallel-size" if words[0] == "-dcp" else words[0]
    assert found.reason.startswith(name)


def test_what_is_not_forecast_is_not_sized_by_what_is_known() -> None:
    """The weights that are read are not those that would need another way of running."""
    small = inventory(QWEN_27B_MEASURED, cards(1, "NVIDIA L4", (8, 9), 23034))
    assert plan(small).value("cpu_offload_gb") > 0
    found = plan(small, engine={"extra_args": ["--quantization", "bitsandbytes"]})
    assert found.value("cpu_offload_gb") is found.value("enforce_eager") is None
    typed = {"engine": {"extra_args": ["--enable-lora"]}, "model": {"max_model_len": 4096}}
    assert plan(LLM, **typed).value("max_model_len") == 4096


def test_what_is_not_forecast_keeps_the_split_and_what_fits_without_it() -> None:
    machine = inventory(LLAMA_70B_AWQ)
    words = ["--kv-cache-dtype-skip-layers", "0"]
    bare, found = plan(machine), plan(machine, engine={"extra_args": words})
    assert found.value("tensor_parallel_size") == bare.value("tensor_parallel_size") == 2
    for name in ("enforce_eager", "max_num_batched_tokens", "gpu_memory_utilization"):
        assert found.value(name) == bare.value(name)


def test_each_replica_is_forecast_as_a_model_of_its_own() -> None:
    machine, alone = inventory(gpus=turing(4)), inventory()
    words = {"engine": {"extra_args": ["--data-parallel-size", "2"]}}
    found, expected = plan(machine, **words), plan(alone)
    for name in ("tensor_parallel_size", "max_model_len", "gpu_memory_utilization"):
        assert found.value(name) == expected.value(name)
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "0,1,2,3"
    assert forecast(found, machine) == forecast(expected, alone)


def test_replicas_share_host_memory_that_weights_are_offloaded_to() -> None:
    host = replace(HOST, ram_mib=27_000)
    one = inventory(LLAMA_70B_AWQ, turing(1), host=host)
    assert plan(one).value("cpu_offload_gb") > 0
    two = inventory(LLAMA_70B_AWQ, turing(2), host=host)
    words = {"engine": {"extra_args": ["--data-parallel-size", "2"]}}
    assert plan(two, **words).value("cpu_offload_gb") is None


def test_replicas_of_a_cpu_build_are_not_forecast() -> None:
    machine = inventory(TINY_HYBRID, (), CPU)
    found = plan(machine, engine={"extra_args": ["--data-parallel-size", "2"]})
    assert forecast(found, machine).reason.startswith("replicas of a CPU build")


@pytest.mark.parametrize(
    "words",
    [
        ("--no-enable-lora",),
        ("--load-format", "safetensors"),
        ("--quantization", "fp8"),
        ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}'),
    ],
)
def test_what_is_forecast_gets_a_verdict(words: tuple[str, ...]) -> None:
    assert forecast(plan(LLM, engine={"extra_args": list(words)}), LLM).fits is True


def test_blocks_that_are_counted_are_the_cache() -> None:
    words = ["--num-gpu-blocks-override", "600"]
    found = plan(LLM, engine={"extra_args": words})
    memory, candidate = forecast(found, LLM), candidate_of_plan(found, LLM)
    assert memory.kv_mib * (1 << 20) == 600 * layout_for(LLM.model, candidate).block_bytes
    assert memory.fits is True
    assert 0 <= memory.max_model_len - found.value("max_model_len") < 1024
    assert memory.max_model_len < LLM.model.max_model_len
    many = plan(LLM, engine={"extra_args": [words[0], "600000"]})
    assert forecast(many, LLM).fits is False


def test_the_length_of_blocks_and_the_type_of_states_are_those_asked_for() -> None:
    def tokens(machine: Inventory, *words: str) -> int:
        found = plan(machine, engine={"extra_args": list(words)})
        return layout_for(machine.model, candidate_of_plan(found, machine)).block_tokens

    assert tokens(OSS) == 16
    assert tokens(OSS, "--block-size", "64") == 64
    assert tokens(LLM, "--block-size", "256") % 256 == 0
    plain = tokens(LLM)
    assert tokens(LLM, "--mamba-ssm-cache-dtype", "float32") > plain
    typed = replace(LLM.model.linear, state_dtype="float32") if LLM.model.linear else None
    machine = inventory(replace(LLM.model, linear=typed), gpus=H200)
    assert tokens(machine) == tokens(LLM, "--mamba-ssm-cache-dtype", "float32")
    assert tokens(machine, "--mamba-ssm-cache-dtype", "float16") == plain


def test_heads_that_are_not_told_get_no_verdict() -> None:
    machine = inventory(replace(LLAMA_70B_AWQ, head_dim=0), H200)
    found = plan(machine)
    assert forecast(found, machine).reason == "config.json does not state the attention heads"
    assert found.value("max_model_len") == "auto"


def test_states_of_an_unknown_shape_get_no_verdict() -> None:
    machine = inventory(replace(LLM.model, linear=None), gpus=H200)
    found = forecast(plan(machine), machine)
    assert found.fits is None
    assert "shape of the recurrent states" in found.reason
    granite = LinearAttention(1, 128, 128, 64, 4, "auto")
    machine = inventory(replace(LLM.model, linear=None, mamba=granite), gpus=H200)
    assert forecast(plan(machine), machine).fits is True
    both = replace(machine.model, layer_types=("full_attention",) * 8)
    assert forecast(plan(inventory(both, gpus=H200)), inventory(both, gpus=H200)).fits is None
