"""Reasons and warnings say what is so of this machine."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Unplannable
from caovand.engines.common.gguf.converted import figures
from caovand.engines.vllm.memory.candidate import utilization
from caovand.engines.vllm.memory.settings import candidate_of_plan
from caovand.engines.vllm.planning.decisions import forecast
from tests.boxes.machines import BOXES, box_with
from tests.boxes.models import model
from tests.core.machines import (
    A100,
    FIXED,
    GPT_OSS,
    QWEN_27B_AWQ,
    cards,
    inventory,
    named,
    plan,
    turing,
)


def test_linked_cards_are_not_called_unlinked() -> None:
    linked = plan(inventory(QWEN_27B_AWQ, BOXES["2080ti-22g-x2-nvlink"]))
    apart = plan(inventory(QWEN_27B_AWQ, turing(2)))
    name = "disable_custom_all_reduce"
    assert linked.value(name) is apart.value(name) is True
    assert "without full NVLink" in apart.settings[name].reason
    assert "NVLink" not in linked.settings[name].reason


def test_one_card_is_one_card() -> None:
    found = plan(inventory(QWEN_27B_AWQ, named("A100")))
    assert found.settings["tensor_parallel_size"].reason == "one card"


@pytest.mark.parametrize(("card", "told"), [("RTX 3090", False), ("RTX 2080 Ti 11 GB", True)])
def test_a_graph_mode_is_lost_only_to_another_one(card: str, told: bool) -> None:
    words = ["--compilation-config", '{"max_cudagraph_capture_size": 8}']
    small = model("Llama-3.1-8B-AWQ")
    found = plan(inventory(small, named(card)), engine={"extra_args": words})
    assert any("captures its own" in text for text in found.warnings) is told


def test_mxfp4_on_an_old_card_is_sent_to_what_exists() -> None:
    machine = inventory(GPT_OSS, named("T4"))
    (problem,) = forecast(plan(machine), machine).conflicts
    assert problem.remedy == 'use a newer card, or its GGUF with [engine] kind = "llamacpp"'


def test_a_card_that_is_left_out_is_not_told_to_be_left_out() -> None:
    old = replace(cards(1, "Tesla P40", (6, 1), 24576)[0], index=1)
    machine = box_with("3090", model("Llama-3.1-8B"))
    found = plan(replace(machine, gpus=(*machine.gpus, old)))
    (told,) = [text for text in found.warnings if text.startswith("GPU 1")]
    assert told.endswith("no kernels before SM75")


def test_drafts_give_way_to_what_the_reason_names() -> None:
    machine = _two_a100()
    fp8 = {"policy": {"kv_cache_dtype": "fp8"}}
    found = plan(machine, **fp8)
    assert found.mtp == 0
    assert found.value("compilation_config") == {"cudagraph_mode": "FULL_AND_PIECEWISE"}
    reason = found.settings["speculative_config"].reason
    assert reason.startswith("drafting nothing keeps full CUDA graphs, which vLLM 0.21.0")
    small = plan(box_with("a10", model("Qwen3.6-27B-AWQ"), FIXED))
    reason = small.settings["speculative_config"].reason
    assert "no room for the drafter while it is loaded" in reason
    for version in ("0.21.0", "0.33.0"):
        engine = replace(FIXED, version=version)
        fewer = plan(box_with("3060-12g", model("Qwen3.5-9B-AWQ"), engine))
        assert fewer.mtp == 1
        reason = fewer.settings["speculative_config"].reason
        assert reason.endswith(
            "instead of 3 leaves memory for other settings, which is worth more here"
        )


def _two_a100() -> Inventory:
    machine = box_with("a100-80g-x8", model("Qwen3-Next-80B-A3B-FP8"), FIXED)
    return replace(machine, gpus=machine.gpus[:2])


def test_memory_that_the_host_and_others_keep_is_not_called_unmeasured() -> None:
    unified = plan(box_with("gb10", model("gpt-oss-120b")))
    share = unified.value("gpu_memory_utilization")
    reason = unified.settings["gpu_memory_utilization"].reason
    found = [int(number) for number in re.findall(r"(\d+) MiB", reason)]
    assert "15568 MiB remain for the host (unified memory), " in reason
    assert sum(found) == pytest.approx(124_546 * (1 - share), abs=1)
    gpu = replace(A100[0], free_mib=41_620, users=((9001, "python3", 40_000),))
    shared = plan(inventory(model("Llama-3.1-8B"), (gpu,)))
    reason = shared.settings["gpu_memory_utilization"].reason
    assert f"{gpu.total_mib - 41_620} MiB are used by other programs" in reason
    alone = plan(inventory(model("Llama-3.1-8B"), A100))
    assert "are used by other programs" not in alone.settings["gpu_memory_utilization"].reason


def test_weights_that_fit_next_to_others_in_8_bits_are_named() -> None:
    card = model("R1-Distill-Qwen-32B")
    gpu = replace(A100[0], free_mib=41_620, users=((9001, "python3", 40_000),))
    with pytest.raises(Unplannable, match="leaves the model no room as it is stored") as caught:
        plan(inventory(card, (gpu,)))
    (tokens,) = re.findall(r"--quantization fp8 in .* context of (\d+) tokens", str(caught.value))
    machine = inventory(card, (gpu,))
    found = plan(machine, engine={"extra_args": ["--quantization", "fp8"]})
    assert found.value("max_model_len") == int(tokens) > 8192
    assert forecast(found, machine).fits
    full = replace(gpu, free_mib=20_000)
    with pytest.raises(Unplannable, match="leaves the model no room \\(alone"):
        plan(inventory(card, (full,)))


def test_a_gguf_file_is_named_with_what_it_would_do() -> None:
    machine = box_with("3070-8g", model("Qwen3.5-9B-AWQ"))
    found = plan(machine)
    assert found.value("cpu_offload_gb") > 0
    (told,) = [text for text in found.warnings if "stay in host memory" in text]
    assert "use a GGUF file of type Q4_K_M, about 5.4 GiB, all on the GPU: " in told
    assert "the CPU computes" not in told
    odd = replace(machine, model=replace(machine.model, model_type="unheard_of"))
    (told,) = [text for text in plan(odd).warnings if "stay in host memory" in text]
    assert "llama.cpp the CPU computes" in told


def test_a_plan_that_does_not_fit_says_that_memory_is_short() -> None:
    found = plan(box_with("3060-12g", model("Llama-3.1-8B")), model={"max_model_len": 131072})
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        assert found.settings[name].reason.startswith("memory is short")


def test_fewer_sequences_than_the_cache_holds_have_their_own_reason() -> None:
    found = plan(box_with("4090", model("Llama-3.1-8B")), model={"max_model_len": 104_000})
    assert found.value("max_num_seqs") <= 12
    assert found.settings["max_num_seqs"].reason.startswith("every sequence needs memory")


def test_a_gguf_of_an_mxfp4_model_is_mxfp4() -> None:
    found = figures(model("gpt-oss-20b"), BOXES["2080ti-11g-x2"], box_with("3090", GPT_OSS).host)
    assert found is not None
    assert found.kind == "MXFP4"
    assert found.text.startswith("of type MXFP4")


@pytest.mark.parametrize(("used", "least"), [(700, 1500), (1400, 1500), (3000, 1300)])
def test_a_cache_larger_than_needed_leaves_the_reserve_next_to_others(
    used: int, least: int
) -> None:
    """On a card of its own the engine leaves 1,867 MiB."""
    machine = box_with("4090", model("gpt-oss-20b"))
    (gpu,) = machine.gpus
    made = plan(replace(machine, gpus=(replace(gpu, free_mib=gpu.total_mib - used),)))
    assert made.value("max_model_len") == 131_072
    share = made.settings["gpu_memory_utilization"]
    left = gpu.total_mib * (1 - share.value) - used
    assert left >= least
    assert f"{used} MiB are used by other programs, and {left:.0f} MiB are left" in share.reason


def test_a_batch_keeps_all_of_its_cache_next_to_others() -> None:
    machine = box_with("4090", model("Llama-3.1-8B-AWQ"))
    (gpu,) = machine.gpus
    machine = replace(machine, gpus=(replace(gpu, free_mib=gpu.total_mib - 1400),))
    made = plan(machine, policy={"workload": "batch"})
    assert made.value("kv_cache_memory_bytes") is None
    share = utilization(candidate_of_plan(made, machine), machine.gpus)
    assert made.value("gpu_memory_utilization") == share


def test_a_tight_card_with_a_desktop_says_what_is_left() -> None:
    machine = box_with("3060-12g", model("Llama-3.1-8B-AWQ"))
    (gpu,) = machine.gpus
    made = plan(
        replace(machine, gpus=(replace(gpu, free_mib=gpu.total_mib - 600),)),
        engine={"extra_args": ["--gpu-memory-utilization", "0.88"]},
    )
    assert made.value("gpu_memory_utilization") == 0.88
    made = plan(
        replace(machine, gpus=(replace(gpu, free_mib=gpu.total_mib - 600),)),
        model={"max_model_len": 8192},
    )
    share = made.settings["gpu_memory_utilization"]
    left = gpu.total_mib * (1 - share.value)
    assert (
        f"leaves {left:.0f} MiB; 600 MiB are used by other programs, and {left - 600:.0f}"
        in share.reason
    )
