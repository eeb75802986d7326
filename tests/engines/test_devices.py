"""Which cards are used, and over how many a model may be split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caovand.core.checkpoint.config_json import describe
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.plan import Unplannable
from caovand.engines.vllm.machine.ranks import shape_problem
from caovand.engines.vllm.memory.candidate import visible_mib
from caovand.engines.vllm.memory.settings import gpus_of
from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.planning.devices import freest_cards
from tests.boxes.machines import BOXES
from tests.boxes.models import model
from tests.core.machines import (
    A100,
    CPU,
    CUDA,
    DEFAULT,
    HOST,
    LLAMA_70B_AWQ,
    QWEN_27B,
    SMALL_HYBRID,
    cards,
    inventory,
    named,
    plan,
    turing,
    weights,
)

PASCAL = Gpu(0, "GTX 1080 Ti", (6, 1), 11264, 11000)
VOLTA = Gpu(0, "Tesla V100", (7, 0), 32768, 32000)
PARTS = tuple(
    replace(A100[0], name="A100 MIG 3g.40gb", total_mib=40192, free_mib=free, mig=True, uuid=uuid)
    for free, uuid in ((40000, "MIG-aaaa"), (39000, "MIG-bbbb"))
)


@pytest.mark.parametrize("old", [PASCAL, VOLTA])
def test_a_card_older_than_vllm_serves_is_left_out_and_said(old: Gpu) -> None:
    gpus = (old, *(replace(gpu, index=gpu.index + 1) for gpu in turing(2)))
    found = plan(inventory(gpus=gpus))
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "1,2"
    assert any(old.name in text and "SM75" in text for text in found.warnings)


@pytest.mark.parametrize("old", [PASCAL, VOLTA])
def test_only_cards_that_are_too_old_are_no_plan(old: Gpu) -> None:
    for engine in ({}, {"gpus": [0]}):
        with pytest.raises(Unplannable, match="no kernels before SM75; ") as caught:
            plan(inventory(SMALL_HYBRID, (old,)), engine=engine)
        assert caught.value.failure == "backend-unsupported"
        assert 'kind = "ollama"' in str(caught.value)


def test_a_part_of_a_partitioned_card_is_planned_with_its_own_memory() -> None:
    machine = inventory(SMALL_HYBRID, PARTS)
    found = plan(machine)
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "MIG-aaaa"
    assert found.value("tensor_parallel_size") == 1
    assert gpus_of(found, machine) == PARTS[:1]
    assert plan(machine, engine={"gpus": [0]}).env["CUDA_VISIBLE_DEVICES"].value == "MIG-aaaa"


def test_a_partitioned_card_whose_parts_are_unknown_is_never_planned_whole() -> None:
    whole = replace(A100[0], mig=True, uuid="GPU-1")
    with pytest.raises(Unplannable, match=r"MIG.*CUDA_VISIBLE_DEVICES"):
        plan(inventory(SMALL_HYBRID, (whole,)))
    beside = replace(A100[0], index=1)
    found = plan(inventory(SMALL_HYBRID, (whole, beside)))
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "1"
    assert any("partitioned" in text for text in found.warnings)


def test_the_freest_cards_are_taken_where_not_all_are_needed() -> None:
    first, *rest = turing(3)
    found = plan(inventory(gpus=(replace(first, free_mib=9000), *rest)))
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "1,2"
    assert "most free memory" in found.env["CUDA_VISIBLE_DEVICES"].reason


def test_experts_are_cut_at_their_own_width() -> None:
    """Qwen3-30B-A3B: 6144 wide outside its experts, which are 768 wide, six groups of 128."""
    moe = replace(
        QWEN_27B, heads=32, kv_heads=4, linear=None, experts=128, expert_size=768,
        intermediate_size=6144, group_size=128,
    )  # fmt: skip
    assert shape_problem(moe, 2) is None
    assert "experts of 768" in str(shape_problem(moe, 4))
    assert shape_problem(replace(moe, experts=0), 4) is None


MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 4096,
    "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "intermediate_size": 12288, "num_experts": 128,
    "moe_intermediate_size": 1536, "max_position_embeddings": 40960,
}  # fmt: skip
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NESTED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128}}},
}


@pytest.mark.parametrize(
    ("change", "splits"),
    [
        ({}, [1, 2, 4, 8]),
        ({"quantization_config": BLOCKS}, [1, 2, 4]),  # 1536 / 8 = 192
        ({"quantization_config": BLOCKS, "moe_intermediate_size": 768}, [1, 2]),
        ({"quantization_config": NESTED, "moe_intermediate_size": 768}, [1, 2]),
        ({"num_experts": 0, "intermediate_size": 12290}, [1, 2]),
        ({"intermediate_size": 12290, "mlp_only_layers": []}, [1, 2, 4, 8]),
        ({"intermediate_size": 12290, "mlp_only_layers": [0]}, [1, 2]),
        ({"shared_expert_intermediate_size": 1026}, [1, 2]),
        ({"quantization_config": BLOCKS, "shared_expert_intermediate_size": 256}, [1, 2]),
        ({"quantization_config": {**BLOCKS, "modules_to_not_convert": ["shared_expert"]},
          "shared_expert_intermediate_size": 256}, [1, 2, 4]),
        ({"quantization_config": {**BLOCKS, "ignore": ["re:.*shared_expert_gate", "mlp.gate"]},
          "shared_expert_intermediate_size": 256}, [1, 2]),
        ({"quantization_config": {**BLOCKS, "ignore": ["model.layers.0.mlp.gate_proj"]},
          "intermediate_size": 12544, "mlp_only_layers": [0]}, [1, 2, 4]),
        ({"quantization_config": {**BLOCKS, "ignore": ["re:.*mlp.gate$", "mlp.experts"]},
          "intermediate_size": 12544, "mlp_only_layers": [0]}, [1, 2]),
        ({"num_experts": 0, "head_dim": 32, "quantization_config": NESTED}, [1, 2, 4, 8]),
        ({"num_experts": 0, "head_dim": 8, "quantization_config": NESTED}, [1, 2, 4]),
        ({"num_experts": 0, "head_dim": 8,
          "quantization_config": {**NESTED, "ignore": ["re:.*self_attn.*"]}}, [1, 2, 4, 8]),
    ],
)  # fmt: skip
def test_only_splits_that_vllm_can_cut_are_chosen(
    change: dict[str, Any], splits: list[int]
) -> None:
    card = describe({**MOE, **change})
    assert [size for size in range(1, 9) if not shape_problem(card, size)] == splits


def test_a_split_that_cuts_experts_in_the_middle_of_a_block_is_said() -> None:
    card = describe({**MOE, "quantization_config": BLOCKS})
    card = replace(card, weights=weights(experts=200, layers=10))
    machine = inventory(card, cards(8, "NVIDIA H100 80GB HBM3", (9, 0), 81559))
    found = plan(machine)
    assert found.value("tensor_parallel_size") == 8
    assert "cannot be cut in 8" in found.settings["enable_expert_parallel"].reason
    cut = plan(machine, engine={"extra_args": ["--no-enable-expert-parallel"]})
    assert cut.value("tensor_parallel_size") == 4
    (idle,) = (text for text in cut.warnings if "idle" in text)
    assert idle.startswith("GPU 4, GPU 5, GPU 6 and GPU 7 stay idle: the largest split")
    assert "its experts of 1536 cannot be cut in 8" in idle
    typed = ["-tp", "8"]
    said = "its experts of 1536 cannot be cut in 8 with quantisation groups of 128; choose fewer"
    refused = plan(machine, engine={"extra_args": [*typed, "--no-enable-expert-parallel"]})
    assert any(said in text for text in refused.warnings)
    for asked in (
        plan(machine, engine={"extra_args": typed}),
        plan(machine, policy={"tensor_parallel_size": 8}),
    ):
        assert asked.value("enable_expert_parallel") is True
        assert not any("cannot" in text for text in asked.warnings)
    whole = plan(machine, engine={"extra_args": [*typed, "--enable-expert-parallel"]})
    assert not any("cannot" in text for text in whole.warnings)
    alone = plan(machine, engine={"extra_args": ["--enable-expert-parallel"]})
    assert alone.value("tensor_parallel_size") == 8


UNEVEN = describe({
    **MOE, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "moe_intermediate_size": 1408, "n_shared_experts": 1, "shared_expert_intermediate_size": 1408,
})  # fmt: skip
"""Neither its experts nor those that all tokens share can be cut."""


def test_cards_that_no_split_uses_are_the_stages_of_a_pipeline() -> None:
    machine = inventory(
        replace(UNEVEN, weights=weights(experts=60, layers=3)), named("RTX 3090", 4)
    )
    found = plan(machine)
    assert (found.value("tensor_parallel_size"), found.value("pipeline_parallel_size")) == (1, 4)
    assert "cannot be cut in 4" in found.settings["pipeline_parallel_size"].reason
    assert found.value("cpu_offload_gb") is None
    assert found.cards == ("0", "1", "2", "3")
    assert not any("idle" in text for text in found.warnings)


def test_where_nothing_holds_the_weights_all_cards_share_them_in_stages() -> None:
    """Its host has the RAM for what is left, of all stages together."""
    model = replace(UNEVEN, weights=weights(experts=95, layers=4))
    machine = inventory(model, named("RTX 3090", 4))
    found = plan(machine)
    assert (found.value("pipeline_parallel_size"), found.value("cpu_offload_gb") > 0) == (4, True)
    short = replace(machine, host=replace(machine.host, ram_mib=24_000, available_mib=24_000))
    assert (plan(short).value("cpu_offload_gb") or 0) < found.value("cpu_offload_gb")


def test_a_model_without_stages_says_why_cards_are_idle() -> None:
    model = replace(UNEVEN, architecture="Phi4MMForCausalLM")
    machine = inventory(replace(model, weights=weights(experts=17, layers=3)), named("RTX 3090", 2))
    (idle,) = (text for text in plan(machine).warnings if "idle" in text)
    assert "GPU 1 stays idle" in idle
    assert "does not support stages for Phi4MMForCausalLM" in idle


def test_a_card_that_a_pipeline_would_use_is_idle_at_a_price_that_is_named() -> None:
    gpus = (*named("RTX 3090"), *(replace(gpu, index=1) for gpu in named("RTX 3060")))
    small = replace(LLAMA_8B, weights=weights(layers=8, embedding=1, head=1))
    (idle,) = (text for text in plan(inventory(small, gpus)).warnings if "idle" in text)
    assert "2 cards with --pipeline-parallel-size 2 would hold a context of" in idle
    assert "times the time per token" in idle


def test_uneven_cards_hold_layers_by_their_memory() -> None:
    gpus = (*named("RTX 3090"), *(replace(gpu, index=1) for gpu in named("RTX 3060")))
    large = replace(LLAMA_8B, weights=weights(layers=22, embedding=1, head=1))
    found = plan(inventory(large, gpus))
    assert (found.value("tensor_parallel_size"), found.value("pipeline_parallel_size")) == (1, 2)
    first, second = map(int, str(found.env["VLLM_PP_LAYER_PARTITION"].value).split(","))
    assert first > second
    assert "the cards differ" in found.settings["pipeline_parallel_size"].reason


def test_of_cards_as_free_the_newest_is_taken() -> None:
    older = replace(named("RTX 3090")[0], index=1)
    newer = replace(named("RTX 4090")[0], free_mib=older.free_mib)
    assert [gpu.index for gpu in freest_cards((older, newer), 1)] == [newer.index]
    assert [gpu.index for gpu in freest_cards((newer, older), 2)] == [newer.index, older.index]


def test_of_cards_as_free_those_are_taken_that_nvlink_joins() -> None:
    pairs = {0: 2, 1: 3, 2: 0, 3: 1}
    gpus = tuple(replace(gpu, nvlink=(pairs[gpu.index],)) for gpu in turing(4))
    assert [gpu.index for gpu in freest_cards(gpus, 2)] == [0, 2]
    fuller = replace(gpus[0], free_mib=9000)
    assert [gpu.index for gpu in freest_cards((fuller, *gpus[1:]), 2)] == [1, 3]
    assert [gpu.index for gpu in freest_cards((fuller, *turing(4)[1:]), 2)] == [1, 2]


def test_a_card_that_the_environment_names_is_the_one_forecast() -> None:
    gpus = tuple(replace(gpu, uuid=f"GPU-{gpu.index}f00") for gpu in turing(2))
    machine = inventory(SMALL_HYBRID, gpus)
    for name, seen in (("1", gpus[1:]), ("GPU-1f", gpus[1:]), ("", ())):
        found = plan(machine, engine={"env": {"CUDA_VISIBLE_DEVICES": name}})
        assert gpus_of(found, machine) == seen
    assert "does not name a visible card" in forecast(found, machine).reason


LLAMA_8B = replace(
    LLAMA_70B_AWQ, path="/srv/models/Llama-8B", layer_types=("full_attention",) * 32, heads=32,
    hidden_size=4096, intermediate_size=14336, quantization=None, group_size=0, dtype="bfloat16",
    weights=weights(layers=13, embedding=0.98, head=0.98),
)  # fmt: skip


def a100(count: int, busy_mib: int) -> tuple[Gpu, ...]:
    """So many A100, others holding this much of the first."""
    first, *rest = cards(count, "NVIDIA A100-SXM4-80GB", (8, 0), 81920)
    return (replace(first, free_mib=first.free_mib - busy_mib), *rest)


@pytest.mark.parametrize(("count", "used"), [(2, "1"), (8, None)])
def test_one_busy_card_does_not_block_those_that_are_free(count: int, used: str | None) -> None:
    machine = inventory(LLAMA_8B, a100(count, 80000))
    found = plan(machine)
    assert found.value("tensor_parallel_size") == count // 2
    assert forecast(found, machine).fits
    visible = found.env["CUDA_VISIBLE_DEVICES"].value
    assert visible == used if used else "0" not in visible.split(",")
    assert "GPU 0 has only 1620 MiB free" in found.settings["tensor_parallel_size"].reason


def test_a_card_that_is_busy_is_waited_for_where_the_split_was_asked_for() -> None:
    machine = inventory(LLAMA_8B, a100(2, 80000))
    with pytest.raises(Unplannable) as caught:
        plan(machine, policy={"tensor_parallel_size": 2})
    assert caught.value.failure == "vram-busy"


def test_a_small_card_beside_a_large_one_is_used_only_where_it_helps() -> None:
    large = named("RTX 3090")
    small = replace(large[0], index=1, name="RTX 3060", total_mib=12288, free_mib=12000)
    alone = plan(inventory(LLAMA_8B, (*large, small)))
    assert alone.value("tensor_parallel_size") == 1
    assert alone.env["CUDA_VISIBLE_DEVICES"].value == "0"
    assert not alone.value("enforce_eager")
    assert alone.value("max_num_seqs") > 1
    half = replace(small, total_mib=16384, free_mib=16000)
    both = plan(inventory(replace(LLAMA_8B, weights=weights(layers=22)), (*large, half)))
    assert both.value("tensor_parallel_size") == 2


def test_a_processor_without_avx2_runs_no_vllm() -> None:
    def with_(*instructions: str, architecture: str = "x86_64") -> Inventory:
        host = replace(HOST, architecture=architecture, instructions=instructions)
        return inventory(SMALL_HYBRID, (), CPU, host)

    with pytest.raises(Unplannable, match=r'needs AVX2.*kind = "llamacpp"') as caught:
        plan(with_("sse4_2", "avx"))
    assert caught.value.failure == "backend-unsupported"
    for able in (with_("avx", "avx2"), with_(), with_("asimd", architecture="aarch64")):
        assert plan(able).device == "cpu"


def test_a_release_that_cannot_load_into_unified_memory_is_named() -> None:
    gb10 = (replace(A100[0], name="NVIDIA GB10", compute_capability=(12, 1), unified=True),)
    for version, told in (("0.21.0", True), ("0.24.0", False)):
        found = plan(inventory(SMALL_HYBRID, gb10, replace(CUDA, version=version)))
        assert any("unified memory" in text for text in found.warnings) == told
    own = (replace(gb10[0], unified=False),)
    assert not any("unified memory" in text for text in plan(inventory(gpus=own)).warnings)


def test_in_unified_memory_no_weights_are_offloaded() -> None:
    small = replace(A100[0], total_mib=16384, free_mib=12000, unified=True)
    found = plan(inventory(QWEN_27B, (small,)))
    assert found.value("cpu_offload_gb") is None
    assert any("does not fit" in text for text in found.warnings)
    own = replace(small, unified=False)
    host = replace(HOST, ram_mib=262_144)
    assert plan(inventory(QWEN_27B, (own,), host=host)).value("cpu_offload_gb")


@pytest.mark.parametrize(("box", "used_mib"), [("3090-x4", 15_000), ("2080ti-11g-x4", 2_500)])
def test_whole_experts_over_all_cards_may_be_all_that_fits_next_to_others(
    box: str, used_mib: int
) -> None:
    """The policy's own split holds nothing there, and the one that does leaves no card out."""
    busy = tuple(
        replace(gpu, free_mib=gpu.free_mib - used_mib, users=((9001, "python3", used_mib),))
        for gpu in BOXES[box]
    )
    found = plan(inventory(model("Qwen3-30B-A3B-AWQ"), busy, engine=DEFAULT))
    assert (found.value("tensor_parallel_size"), found.value("enable_expert_parallel")) == (4, True)


def test_ranks_leave_what_joining_takes_where_others_hold_a_card() -> None:
    """vLLM refuses to start if less than its share is free once NCCL has its buffers."""
    gpus = named("RTX 3090", 2)
    busy = replace(gpus[1], free_mib=gpus[1].free_mib - 5200, users=((7, "python", 5200),))
    found = plan(inventory(model("Qwen3.5-9B-AWQ"), (gpus[0], busy), engine=DEFAULT))
    assert found.value("tensor_parallel_size") == 2
    share = found.value("gpu_memory_utilization")
    assert share * visible_mib(busy.total_mib) <= busy.free_mib - 512
