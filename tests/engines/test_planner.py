"""The policy: what it decides, for whom, and who overrules it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import lcm
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.config.schema import MODES, Config
from caovand.core.facts.inventory import Gpu, Inventory, ModelCard, Node
from caovand.core.facts.occupancy import without_other_processes
from caovand.core.plan import Setting, Taken, Unplannable
from caovand.core.reporting.report import values
from caovand.engines.vllm.command import build
from caovand.engines.vllm.memory.settings import candidate_of_plan, gpus_of
from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.planning.devices import choose_gpus, freest_cards
from caovand.engines.vllm.planning.planner import make_plan
from caovand.engines.vllm.sizing.offloading import step_cost
from tests.boxes.machines import box_with
from tests.boxes.models import model
from tests.core.machines import (
    A100,
    ABSENT,
    CPU,
    CUDA,
    GPT_OSS,
    H200,
    HOST,
    LLAMA_70B_AWQ,
    QWEN_27B,
    QWEN_27B_AWQ,
    SMALL_HYBRID,
    TINY_HYBRID,
    cards,
    in_four_bits,
    inventory,
    named,
    plan,
    turing,
)
from tests.examples import examples

ON_CPU = inventory(TINY_HYBRID, (), CPU)


@pytest.mark.parametrize(
    ("mode", "gpus", "depth"),
    [("auto", 1, 3), ("auto", 2, 3), ("auto", 4, 4), ("stable", 4, 3), ("fast", 1, 4)],
)
def test_the_mode_and_the_number_of_gpus_decide_the_depth(mode: str, gpus: int, depth: int) -> None:
    machine = inventory(SMALL_HYBRID, turing(gpus))
    assert plan(machine, policy={"mode": mode}).mtp == depth


@pytest.mark.parametrize(("mode", "depth"), [("auto", 3), ("stable", 3), ("fast", 4)])
def test_the_cpu_counts_as_one_gpu(mode: str, depth: int) -> None:
    machine = replace(ON_CPU, model=replace(ON_CPU.model, linear=None))
    assert plan(machine, policy={"mode": mode}).mtp == depth


@pytest.mark.parametrize(
    ("policy", "depth"), [({}, 0), ({"mtp": 3}, 3), ({"mode": "fast"}, 4), ({"mtp": 0}, 0)]
)
def test_drafts_that_may_end_the_cpu_build_are_for_those_who_ask(
    policy: dict[str, Any], depth: int
) -> None:
    """A request with fewer drafts than the others of its step, as for an answer in JSON."""
    found = plan(ON_CPU, policy=policy)
    assert found.mtp == depth
    assert any("as JSON answers cause" in text for text in found.warnings) is (depth > 0)
    reason = found.settings["speculative_config"].reason
    assert ("[policy] mtp = 3 drafts anyway" in reason) is (not policy)
    assert not any("as JSON answers" in text for text in plan(inventory()).warnings)


VERBATIM = {"extra_args": ["--speculative-config", '{"method":"mtp","num_speculative_tokens":7}']}


@pytest.mark.parametrize(
    ("sections", "how", "depth"),
    [
        (
            {"engine": VERBATIM, "policy": {"mtp": 2}},
            {"environ": {"CAOVAN_AUTO_SPEC": "1"}, "mode": "fast"},
            7,
        ),
        ({"policy": {"mtp": 2}}, {"environ": {"CAOVAN_AUTO_SPEC": "1"}, "mode": "fast"}, 1),
        ({"engine": {"env": {"CAOVAN_AUTO_SPEC": "5"}}}, {"mode": "fast"}, 5),
        ({"policy": {"mtp": 2}}, {"mode": "fast"}, 2),
        ({"policy": {"mode": "stable"}}, {"mode": "fast"}, 4),
        ({"policy": {"mode": "fast"}}, {}, 4),
        ({}, {"environ": {"CAOVAN_AUTO_SPEC": "off"}}, 0),
        ({}, {"environ": {"CAOVAN_AUTO_SPEC": ""}}, 3),
    ],
)
def test_who_overrules_whom_on_the_depth(
    sections: dict[str, Any], how: dict[str, Any], depth: int
) -> None:
    assert plan(how=how, **sections).mtp == depth


def test_a_mode_that_was_chosen_is_the_users() -> None:
    assert plan(how={"mode": "fast"}).settings["speculative_config"].origin == "user"
    assert plan(policy={"mode": "fast"}).settings["speculative_config"].origin == "user"
    assert plan().settings["speculative_config"].origin == "policy"


def test_a_default_of_the_configuration_is_not_called_the_users() -> None:
    made = plan(ON_CPU, server={"port": 8001})
    origins = {name: made.settings[name].origin for name in ("host", "port", "shutdown_timeout")}
    assert origins == {"host": "policy", "port": "user", "shutdown_timeout": "policy"}


def test_a_mode_that_changes_no_depth_needs_no_restart() -> None:
    assert plan().identity == plan(how={"mode": "stable"}).identity
    assert plan().identity != plan(how={"mode": "fast"}).identity


def test_a_model_with_no_mtp_head_drafts_nothing() -> None:
    found = plan(inventory(replace(QWEN_27B_AWQ, mtp_layers=0)), policy={"mtp": 3})
    assert found.mtp == 0
    assert "no MTP head" in found.settings["speculative_config"].reason


@pytest.mark.parametrize(
    ("layers", "policy", "depth"),
    [
        (1, {"mode": "fast"}, 4),
        (3, {"mode": "fast"}, 3),
        (3, {"mtp": 8}, 6),
        (3, {"mtp": 2}, 2),
        (8, {"mode": "fast"}, 4),
    ],
)
def test_a_head_of_several_layers_drafts_in_whole_rounds(
    layers: int, policy: dict[str, Any], depth: int
) -> None:
    """vLLM refuses another depth beyond the layers, before it loads anything."""
    machine = inventory(replace(QWEN_27B_AWQ, mtp_layers=layers))
    found = plan(machine, policy=policy)
    assert found.mtp == depth
    reason = found.settings["speculative_config"].reason
    assert ("multiples of the 3 layers" in reason) is (layers == 3 and depth != policy.get("mtp"))
    with pytest.raises(Unplannable, match="set mtp = 6"):
        plan(inventory(replace(QWEN_27B_AWQ, mtp_layers=3)), policy={"mtp": 7, "pinned": ["mtp"]})


def test_a_pinned_depth_without_a_head_is_a_contradiction() -> None:
    with pytest.raises(Unplannable, match="no MTP head"):
        plan(inventory(replace(QWEN_27B_AWQ, mtp_layers=0)), policy={"mtp": 3, "pinned": ["mtp"]})


def test_an_unknown_auto_spec_is_refused_with_what_would_do() -> None:
    with pytest.raises(Unplannable, match="set it to 0-8, off, auto, stable or fast"):
        plan(how={"environ": {"CAOVAN_AUTO_SPEC": "many"}})


def test_all_three_are_injected_where_none_is_given() -> None:
    found = plan()
    assert found.mtp == 3
    assert found.value("compilation_config") == {"cudagraph_mode": "PIECEWISE"}
    assert 0.85 < found.value("gpu_memory_utilization") < 0.9
    assert found.value("additional_config") == {"caovan": True, "caovan_mode": "auto"}


def test_the_operators_additional_config_is_merged_and_its_mode_is_the_mode() -> None:
    own = json.dumps({"caovan_mode": "fast", "gdn_prefill_backend": "triton"})
    found = plan(engine={"extra_args": ["--additional-config", own]}, how={"mode": "stable"})
    assert found.mtp == 4
    assert found.value("additional_config") == {
        "caovan": True,
        "caovan_mode": "fast",
        "gdn_prefill_backend": "triton",
    }


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Unplannable, match='caovan_mode "turbo"'):
        plan(engine={"extra_args": ["--additional-config", '{"caovan_mode":"turbo"}']})


@pytest.mark.parametrize("gpus", [turing(2), turing(4), H200, A100])
@pytest.mark.parametrize(
    "model",
    [QWEN_27B_AWQ, SMALL_HYBRID, GPT_OSS, LLAMA_70B_AWQ, replace(QWEN_27B, architecture="")],
)
@pytest.mark.parametrize("words", [[], ["-pp", "2"], ["--cpu-offload-gb", "30"]])
def test_every_plan_for_cards_has_a_share(
    model: ModelCard, gpus: tuple[Gpu, ...], words: list[str]
) -> None:
    found = plan(inventory(model, gpus), engine={"extra_args": words})
    assert 0 < found.value("gpu_memory_utilization") < 1


def test_verbatim_flags_win_and_are_named() -> None:
    words = ["--gpu_memory_utilization=0.5", "-cc", '{"cudagraph_mode":"FULL"}', "--port", "9000"]
    found = plan(engine={"extra_args": words}, policy={"gpu_memory_utilization": 0.7})
    assert found.value("gpu_memory_utilization") == 0.5
    assert found.value("compilation_config") == {"cudagraph_mode": "FULL"}
    assert found.value("port") == 9000
    assert {"gpu_memory_utilization", "compilation_config", "port"} <= found.verbatim
    assert found.extra_args == tuple(words)


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ('{"max_cudagraph_capture_size": 64}', "FULL_AND_PIECEWISE"),
        ('{"max_cudagraph_capture_size": 64, "cudagraph_mode": null}', "FULL_AND_PIECEWISE"),
        ('{"max_cudagraph_capture_size": 64, "cudagraph_mode": "PIECEWISE"}', "PIECEWISE"),
        ('{"max_cudagraph_capture_size": 64, "cudagraph_mode": "none"}', "NONE"),
        ('{"max_cudagraph_capture_size": 64, "mode": 0}', "NONE"),
        ('{"max_cudagraph_capture_size": 64, "mode": 3}', "FULL_AND_PIECEWISE"),
    ],
)
def test_graph_settings_without_a_mode_are_vllms_own_mode(config: str, mode: str) -> None:
    machine = inventory(gpus=H200)
    found = plan(machine, engine={"extra_args": ["--compilation-config", config]})
    graphs = dict(forecast(found, machine).parts)["graphs"]
    full = {"cudagraph_mode": mode, "max_cudagraph_capture_size": 64}
    same = plan(machine, engine={"extra_args": ["--compilation-config", json.dumps(full)]})
    assert graphs == dict(forecast(same, machine).parts)["graphs"]
    assert (graphs > 0) is (mode != "NONE")
    told = any("has no cudagraph_mode" in warning for warning in found.warnings)
    assert not told  # what would be planned here is the same


def test_turing_gets_the_recommended_settings() -> None:
    found = plan()
    wanted = {
        "dtype": "half",
        "kv_cache_dtype": "fp8",
        "disable_custom_all_reduce": True,
        "max_num_batched_tokens": 8192,
        "enable_flashinfer_autotune": True,
        "attention_backend": "FLASHINFER",
        "max_model_len": 262144,
        "tensor_parallel_size": 2,
    }
    assert {name: found.value(name) for name in wanted} == wanted
    env = {name: setting.value for name, setting in found.env.items()}
    assert env["OMP_NUM_THREADS"] == "12"
    assert env["MAX_JOBS"] == "16"
    assert env["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert env["TRITON_CACHE_AUTOTUNING"] == "1"
    assert env["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    assert env["HF_HUB_OFFLINE"] == "1"


AMPERE_PAIR = named("RTX 3090", 2)
EXPANDING = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize(
    ("gpus", "extra", "expands"),
    [
        (AMPERE_PAIR[:1], (), True),
        (AMPERE_PAIR, (), False),
        (AMPERE_PAIR, ("--disable-custom-all-reduce",), True),
        (AMPERE_PAIR, ("--enforce-eager",), True),
        (AMPERE_PAIR, ("--tensor-parallel-size", "1"), True),
        (turing(2), (), True),  # all-reduce is NCCL's there
    ],
)
def test_memory_that_graphs_share_between_cards_is_not_in_expandable_segments(
    gpus: tuple[Gpu, ...], extra: tuple[str, ...], expands: bool
) -> None:
    machine = inventory(model=QWEN_27B_AWQ, gpus=gpus)
    found = plan(machine, engine={"extra_args": list(extra)})
    assert ("PYTORCH_CUDA_ALLOC_CONF" in found.env) is expands
    assert not [said for said in found.warnings if "expandable" in said]

    typed = plan(machine, engine={"extra_args": list(extra), "env": EXPANDING})
    assert typed.env["PYTORCH_CUDA_ALLOC_CONF"].value == EXPANDING["PYTORCH_CUDA_ALLOC_CONF"]
    warned = [said for said in typed.warnings if "expandable" in said]
    assert bool(warned) is not expands


@pytest.mark.parametrize(
    "engine",
    [
        replace(CUDA, version="0.33.0", flashinfer="0.7.2"),
        replace(CUDA, version="0.33.0", flashinfer="0.6.15", plugin="0.1.0"),
        replace(CUDA, flashinfer="0.6.12"),
        replace(CUDA, flashinfer=None),
    ],
)
def test_turing_without_a_flashinfer_that_serves_it_falls_to_triton(engine: Any) -> None:
    found = plan(inventory(engine=engine))
    assert found.value("attention_backend") == "TRITON_ATTN"
    assert found.value("kv_cache_dtype") is None
    assert any("Triton" in text for text in found.warnings)


def test_the_plugin_brings_flashinfer_back_to_later_releases() -> None:
    later = replace(CUDA, version="0.33.0", flashinfer="0.7.2.post1", plugin="0.1.0")
    found = plan(inventory(engine=later))
    assert found.value("attention_backend") == "FLASHINFER"
    assert found.value("kv_cache_dtype") == "fp8"
    assert plan(inventory(engine=later), engine={"plugin": False}).value("kv_cache_dtype") is None


def test_newer_cards_get_vllms_own_choices() -> None:
    found = plan(inventory(SMALL_HYBRID, H200))
    for name in ("dtype", "kv_cache_dtype", "attention_backend", "disable_custom_all_reduce"):
        assert found.value(name) is None
    undrafted = plan(inventory(SMALL_HYBRID, H200), policy={"mtp": 0})
    assert undrafted.value("mamba_cache_mode") == "align"


def test_a_model_that_is_no_hybrid_gets_no_mamba_flags() -> None:
    assert plan(inventory(GPT_OSS, A100)).value("mamba_cache_mode") is None


def test_bfloat16_on_turing_is_refused_with_what_to_set() -> None:
    with pytest.raises(Unplannable, match=r'SM75.*set dtype = "half"'):
        plan(policy={"dtype": "bfloat16"})


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(Unplannable, match="set max_model_len = 262144 or less"):
        plan(model={"max_model_len": 300000})


def test_a_context_whose_limit_is_unknown_is_left_to_vllm() -> None:
    for known in (inventory(gpus=H200), ON_CPU):
        model = replace(known.model, max_model_len=2048, limit_known=False)
        machine = replace(known, model=model)
        found = plan(machine)
        assert found.value("max_model_len") == "auto"
        assert "does not state" in found.settings["max_model_len"].reason
        memory = forecast(found, machine)
        assert memory.fits is None
        assert "set max_model_len" in memory.reason
        asked = plan(machine, model={"max_model_len": 8192})
        assert asked.value("max_model_len") == 8192
        assert forecast(asked, machine).fits is True
        assert not forecast(asked, machine).conflicts


def test_a_split_the_heads_do_not_allow_is_refused() -> None:
    with pytest.raises(Unplannable, match="key-value heads"):
        plan(inventory(gpus=turing(3)), policy={"tensor_parallel_size": 3})


def test_the_largest_split_the_heads_allow_is_taken() -> None:
    found = plan(inventory(gpus=turing(3)))
    assert found.value("tensor_parallel_size") == 2
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "0,1"


def test_no_card_for_a_cuda_engine_is_something_to_wait_for() -> None:
    with pytest.raises(Unplannable, match="no NVIDIA GPU") as caught:
        plan(inventory(gpus=()))
    assert caught.value.failure == "gpu-absent"


def test_a_card_that_is_not_there_is_named() -> None:
    with pytest.raises(Unplannable, match="GPU 5"):
        plan(engine={"gpus": [5]})


def test_only_the_named_cards_are_used() -> None:
    found = plan(inventory(gpus=turing(4)), engine={"gpus": [3, 1]})
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "3,1"
    assert found.mtp == 3


def test_a_small_display_card_is_left_out_unless_it_is_named() -> None:
    display = replace(turing(1)[0], total_mib=4096, free_mib=3500)
    gpus = (display, *(replace(gpu, index=gpu.index + 1) for gpu in turing(2)))
    assert plan(inventory(gpus=gpus)).env["CUDA_VISIBLE_DEVICES"].value == "1,2"
    named = plan(inventory(SMALL_HYBRID, gpus), engine={"gpus": [0]})
    assert named.env["CUDA_VISIBLE_DEVICES"].value == "0"


def test_a_70b_model_on_an_8_gb_card_is_refused_for_its_speed() -> None:
    machine = inventory(LLAMA_70B_AWQ, named("RTX 4060"))
    with pytest.raises(
        Unplannable, match=r"usable speed: 3\d.* would generate 0\.\d tokens/s"
    ) as refused:
        plan(machine)
    amount = re.search(r"--cpu-offload-gb ([\d.]+)", str(refused.value))
    assert amount
    assert 'kind = "llamacpp"' in str(refused.value)
    found = plan(machine, engine={"extra_args": ["--cpu-offload-gb", amount[1]]})
    assert found.value("cpu_offload_gb") == float(amount[1])


def test_a_batch_is_judged_by_all_its_answers_and_what_generates_nothing_is_not() -> None:
    machine = inventory(LLAMA_70B_AWQ, turing(1))
    with pytest.raises(Unplannable, match="usable speed"):
        plan(machine)
    assert plan(machine, policy={"workload": "batch"}).value("cpu_offload_gb")
    embedder = inventory(replace(LLAMA_70B_AWQ, task="embed"), turing(1))
    assert plan(embedder).value("cpu_offload_gb")


def test_an_offloaded_model_gets_what_context_costs_little() -> None:
    """Its states take most of the cache, whatever the length."""
    fast = tuple(replace(gpu, pcie=(4, 16)) for gpu in turing(1))
    found = plan(inventory(QWEN_27B, gpus=fast))
    assert found.value("enforce_eager") is True
    assert found.value("compilation_config") is None
    assert 30 < found.value("cpu_offload_gb") < 40
    assert found.value("max_model_len") > 8000


def test_prompts_of_an_offloaded_model_are_read_in_few_steps() -> None:
    """Every one of them reads nearly all experts that are in host memory."""
    machine = box_with("3060-12g", model("gpt-oss-20b"))
    found = plan(machine)
    assert found.value("cpu_offload_gb") > 4
    assert found.value("max_num_batched_tokens") >= 2048
    assert "from host memory" in found.settings["max_num_batched_tokens"].reason
    asked = plan(machine, policy={"max_num_batched_tokens": 1024})
    assert asked.value("max_num_batched_tokens") == 1024


def test_what_fits_without_drafting_is_not_offloaded() -> None:
    found = plan(inventory(gpus=turing(1)))
    assert (found.value("cpu_offload_gb"), found.mtp) == (None, 0)
    assert (
        "no room for the drafter while it is loaded" in found.settings["speculative_config"].reason
    )
    drafting = plan(inventory(gpus=turing(1)), policy={"mtp": 3})
    assert drafting.value("cpu_offload_gb") > 0


def test_offloading_is_never_silent() -> None:
    fast = tuple(replace(gpu, pcie=(4, 16)) for gpu in turing(1))
    (text,) = plan(inventory(QWEN_27B, gpus=fast)).warnings
    assert re.search(r"each step waits about 1\.\d s for 3\d\.\d+ GiB a card over PCIe 4.0", text)
    words = ["--cpu-offload-gb", "4"]
    assert any("PCIe" in text for text in plan(engine={"extra_args": words}).warnings)


@pytest.mark.parametrize(
    ("gib", "lanes", "shown"), [(1, 16, "0.085"), (20, 8, "3.4"), (20, 1, "27"), (100, 1, "136")]
)
def test_what_a_step_waits_for_is_said_in_seconds_that_can_be_read(
    gib: int, lanes: int, shown: str
) -> None:
    gpu = replace(turing(1)[0], pcie=(3, lanes))
    told = step_cost(gib, QWEN_27B, [gpu])
    assert told.startswith(f"each step waits about {shown} s for {gib} GiB")


def test_offloading_that_a_setting_of_the_operators_brings_names_it() -> None:
    for sections in (
        {"policy": {"tensor_parallel_size": 1}},
        {"engine": {"extra_args": ["-tp", "1"]}},
    ):
        advice = "leave tensor_parallel_size to the policy and none stay there: it plans 4"
        with pytest.raises(Unplannable, match=advice):
            plan(inventory(LLAMA_70B_AWQ, gpus=turing(4)), **sections)


def test_a_model_that_is_not_known_is_split_by_a_power_of_two() -> None:
    found = plan(inventory(ABSENT, turing(3)))
    assert found.value("tensor_parallel_size") == 2


def test_prefix_caching_goes_with_the_step_that_was_asked_for() -> None:
    """vLLM 0.21 refuses a step shorter than a block where states are kept at block borders."""
    for sections in (
        {"policy": {"mtp": 0, "max_num_batched_tokens": 512}},
        {"policy": {"mtp": 0}, "engine": {"extra_args": ["--max-num-batched-tokens", "512"]}},
    ):
        found = plan(**sections)
        assert found.value("enable_prefix_caching") is False
        assert found.value("mamba_cache_mode") is None
    longer = plan(policy={"mtp": 0, "max_num_batched_tokens": 2048})
    assert longer.value("mamba_cache_mode") == "align"
    dense = inventory(LLAMA_70B_AWQ, A100)
    assert plan(dense, policy={"max_num_batched_tokens": 512}).value("enable_prefix_caching")


def busy(free_mib: int, *users: tuple[int, str, int]) -> Inventory:
    gpus = turing(2)
    return inventory(gpus=tuple(replace(gpu, free_mib=free_mib, users=users) for gpu in gpus))


def test_memory_that_others_hold_is_waited_for_by_name() -> None:
    with pytest.raises(Unplannable, match=r"leaves the model no room .*; stop them") as caught:
        plan(busy(6000, (4242, "python", 16000)))
    assert caught.value.failure == "vram-busy"
    assert "python (pid 4242) holds 16000 MiB of GPU 1" in str(caught.value)
    with pytest.raises(Unplannable, match="16527 MiB of GPU 0 are used by processes that the"):
        plan(busy(6000))
    with pytest.raises(Unplannable, match=r"used by x \(pid 7\)"):
        plan(busy(6000, (7, "x", 0)))


def test_memory_that_others_hold_is_no_reason_to_wait_where_it_would_not_help() -> None:
    one = replace(turing(1)[0], free_mib=14000, pcie=(4, 16))
    host = replace(HOST, ram_mib=131_072)
    assert plan(inventory(QWEN_27B, gpus=(one,), host=host)).value("cpu_offload_gb") > 5
    words = {"extra_args": ["--cpu-offload-gb", "12"]}
    assert plan(busy(9000), engine=words).value("cpu_offload_gb") == 12
    assert plan(busy(14500)).value("max_model_len") >= 8192


def test_context_that_other_programs_cost_is_said() -> None:
    machine = busy(12500, (4242, "python", 10000))
    found = plan(machine)
    alone = plan(replace(machine, gpus=without_other_processes(machine.gpus)))
    short, whole = found.value("max_model_len"), alone.value("max_model_len")
    assert short < whole
    said = f"the context is {short} tokens instead of {whole}; stop them"
    told = [text for text in found.warnings if said in text]
    assert "python (pid 4242) holds 10000 MiB of GPU 1" in told[0]
    assert not any("instead of" in text for text in alone.warnings)
    asked = plan(machine, model={"max_model_len": 8192})
    assert not any("instead of" in text for text in asked.warnings)


def test_cards_that_other_programs_cost_are_said() -> None:
    first, *rest = cards(4, "NVIDIA A100-SXM4-80GB", (8, 0), 81920)
    found = plan(inventory(LLAMA_70B_AWQ, (replace(first, free_mib=1000), *rest)))
    assert any("2 instead of 4 cards serve the model; stop" in text for text in found.warnings)


def test_a_busy_card_that_is_left_out_on_another_node_is_the_reason_and_is_named() -> None:
    own = cards(4, "NVIDIA A100-SXM4-80GB", (8, 0), 81920)
    busy = Node("n2", (*own[:3], replace(own[3], free_mib=2000)))
    found = plan(replace(inventory(LLAMA_70B_AWQ, own), others=(busy,)))
    split = found.settings["tensor_parallel_size"]
    assert (split.value, split.reason) == (
        2,
        "2 of 4 cards hold more than all: every card contributes the same amount of memory, and "
        "a card of n2 has only 2000 MiB free",
    )
    lost = "programs on n2 hold 79920 MiB of a card there: 4 instead of 8 cards serve the model"
    assert [text for text in found.warnings if text.startswith(lost)]


def test_a_share_that_was_typed_too_small_is_no_reason_to_offload() -> None:
    typed = {"policy": {"gpu_memory_utilization": 0.4}, "model": {"max_model_len": 262144}}
    machine = inventory(QWEN_27B, H200)
    found = plan(machine, **typed)
    assert found.value("cpu_offload_gb") is None
    memory = forecast(found, machine)
    assert not memory.fits
    assert any("max_model_len" in text for text in memory.advice)


def test_what_cannot_fit_says_so_and_what_would_help() -> None:
    small = named("RTX 4060")
    found = plan(inventory(LLAMA_70B_AWQ, small, host=replace(HOST, ram_mib=16384)))
    assert any("does not fit" in text and "cards" in text for text in found.warnings)


def test_eight_cards_are_used_together() -> None:
    found = plan(inventory(LLAMA_70B_AWQ, cards(8, "NVIDIA H100", (9, 0), 81559)))
    assert found.value("tensor_parallel_size") == 8
    assert found.value("max_model_len") == 131072


def test_the_vision_tower_stays_where_there_is_room() -> None:
    assert plan().value("language_model_only") is None
    assert plan(inventory(gpus=turing(1))).value("language_model_only") is True


@pytest.mark.parametrize(
    ("kind", "cost"), [("turboquant_k8v4", "1.2 %"), ("turboquant_4bit_nc", "2.7 %")]
)
def test_a_turboquant_cache_is_only_named_and_its_cost_is_said(kind: str, cost: str) -> None:
    for mode in MODES:
        assert plan(policy={"mode": mode}).value("kv_cache_dtype") == "fp8"
    found = plan(policy={"kv_cache_dtype": kind})
    assert found.value("kv_cache_dtype") == kind
    assert any(cost in text for text in found.warnings)


def test_a_typed_share_is_lowered_to_what_is_free_and_said() -> None:
    busy = tuple(replace(gpu, free_mib=15000) for gpu in turing(2))
    found = plan(inventory(gpus=busy), policy={"gpu_memory_utilization": 0.9})
    assert found.value("gpu_memory_utilization") < 0.67
    assert "requests 0.9" in found.settings["gpu_memory_utilization"].reason
    pinned = {"gpu_memory_utilization": 0.9, "pinned": ["gpu_memory_utilization"]}
    found = plan(inventory(gpus=busy), policy=pinned)
    assert found.value("gpu_memory_utilization") == 0.9
    assert any("is free now" in text for text in found.warnings)


def test_the_cpu_build_gets_no_cuda_settings() -> None:
    found = plan(ON_CPU, policy={"mtp": 3})
    assert found.value("enable_prefix_caching") is False
    assert found.value("enforce_eager") is True
    assert found.value("kv_cache_memory_bytes") > 0
    for name in ("compilation_config", "additional_config", "gpu_memory_utilization"):
        assert found.value(name) is None
    assert not {"CUDA_VISIBLE_DEVICES", "MAX_JOBS"} & set(found.env)
    assert found.env["TORCHDYNAMO_DISABLE"].value == "1"
    typed = plan(ON_CPU, engine={"extra_args": ["--no-enforce-eager"]})
    assert "TORCHDYNAMO_DISABLE" not in typed.env


def test_stages_on_the_cpu_build_are_warmed_up_and_not_compiled() -> None:
    """Without its warm-up a later stage fails an assertion at the first completion."""
    found = plan(ON_CPU, engine={"extra_args": ["--pipeline-parallel-size", "2"]})
    assert found.value("enforce_eager") is None
    assert found.value("compilation_config") == {"mode": 1, "backend": "eager"}
    assert found.env["TORCHDYNAMO_DISABLE"].value == "1"
    typed = plan(ON_CPU, engine={"extra_args": ["-pp", "2", "--no-enforce-eager"]})
    assert typed.value("compilation_config") is None
    typed = plan(ON_CPU, engine={"extra_args": ["-pp", "2", "--enforce-eager"]})
    assert any("remove --enforce-eager" in text for text in typed.warnings)
    for words, env, what in (
        (["--enable-lora"], {}, "--enable-lora"),
        (["-cc.mode=0"], {}, "--compilation-config of mode 0"),
        ([], {"TORCH_COMPILE_DISABLE": "1"}, "TORCH_COMPILE_DISABLE"),
    ):
        typed = plan(ON_CPU, engine={"extra_args": ["-pp", "2", *words], "env": env})
        assert any(f"remove {what}" in text for text in typed.warnings), what
    assert not any("pipeline stages with" in text for text in found.warnings)


def test_the_cpu_cache_does_not_follow_the_memory_that_happens_to_be_free() -> None:
    less = replace(ON_CPU, host=replace(HOST, available_mib=1000))
    assert plan(less).identity == plan(ON_CPU).identity


def test_a_flag_the_engine_does_not_take_is_left_out_and_said() -> None:
    bare = replace(CUDA, flags=frozenset({"--max-model-len", "--host", "--port"}))
    found = plan(inventory(engine=bare), policy={"mtp": 0})
    assert found.value("mamba_cache_mode") is None
    assert found.settings["mamba_cache_mode"].reason == "vLLM 0.21.0 has no --mamba-cache-mode"
    assert found.value("max_model_len") == 262144


def test_an_unknown_verbatim_flag_is_passed_with_a_warning() -> None:
    known = replace(CUDA, flags=frozenset({"--max-model-len", "--port"}))
    words = ("--frobnicate", "1", "--no-such-flag-at-all")
    found = plan(inventory(engine=known), engine={"extra_args": list(words)})
    assert found.extra_args == words
    assert any("has no --frobnicate and will refuse to start" in text for text in found.warnings)
    assert any(
        "has no --no-such-flag-at-all and will refuse to start" in text for text in found.warnings
    )


def test_a_secret_is_never_in_the_settings() -> None:
    found = plan(engine={"extra_args": ["--api-key", "hunter2", "hunter3"]})
    assert "hunter" not in json.dumps({k: s.value for k, s in found.settings.items()})
    seen = (
        "every user of this machine can see the values if several --api-key are passed: "
        "pass only one"
    )
    assert seen in found.warnings
    assert seen not in plan(engine={"extra_args": ["--api-key", "hunter2"]}).warnings


def test_steps_of_the_ladder_are_kept_from_a_degraded_plan() -> None:
    lower = Setting(4096, "ladder", "the cache was short")
    before = plan()
    before = replace(
        before, settings={**before.settings, "max_model_len": lower}, taken=(Taken("ctx"),)
    )
    found = plan(how={"remembered": before})
    assert found.value("max_model_len") == 4096
    assert found.settings["max_model_len"].origin == "remembered"
    assert found.rungs == ("ctx",)
    twice = plan(how={"remembered": found})
    assert twice.settings["max_model_len"].reason == found.settings["max_model_len"].reason
    other = replace(before, model="/srv/models/other")
    assert plan(how={"remembered": other}).rungs == ()


def test_a_remembered_step_keeps_todays_mode_and_its_environment() -> None:
    off = Setting({"caovan": False, "caovan_mode": "auto"}, "ladder", "the plugin crashed")
    before = replace(
        plan(),
        settings={"additional_config": off},
        env={"VLLM_PLUGINS": Setting("", "ladder", "the plugin crashed")},
        taken=(Taken("plugin-off"),),
    )
    found = plan(how={"remembered": before, "mode": "fast"})
    assert found.value("additional_config") == {"caovan": False, "caovan_mode": "fast"}
    assert found.env["VLLM_PLUGINS"].value == ""
    assert found.mtp == 4


def test_a_model_that_is_not_here_yet_gets_a_share_and_no_verdict() -> None:
    unknown = replace(
        QWEN_27B, architecture="", layer_types=(), folder=False, mtp_layers=0, max_model_len=0
    )
    machine = inventory(unknown)
    found = plan(machine)
    assert found.mtp == 0
    assert "HF_HUB_OFFLINE" not in found.env
    memory = values(forecast(found, machine))
    assert 0.8 < found.value("gpu_memory_utilization") < 0.95
    assert memory["gpu_memory_utilization"] == found.value("gpu_memory_utilization")
    assert memory["fits"] is memory["kv_gib"] is None
    assert memory["reserve_mib"] > 1000
    assert "not on this machine" in memory["reason"]


def test_a_configuration_without_layers_gets_a_share_all_the_same() -> None:
    machine = inventory(replace(QWEN_27B, layer_types=()), H200)
    found = plan(machine)
    assert 0.9 < found.value("gpu_memory_utilization") < 0.99
    assert forecast(found, machine).fits is None


@pytest.mark.parametrize("words", [["-pp", "2"], ["-dp", "2"]])
def test_stages_and_replicas_get_a_share_of_what_is_free(words: list[str]) -> None:
    busy = tuple(replace(gpu, free_mib=15000) for gpu in turing(4))
    machine = inventory(gpus=busy)
    found = plan(machine, engine={"extra_args": words})
    assert 0.5 < found.value("gpu_memory_utilization") <= 15000 / 22527
    typed = {"gpu_memory_utilization": 0.4}
    found = plan(machine, engine={"extra_args": words}, policy=typed)
    assert found.value("gpu_memory_utilization") == 0.4


MODELS = (QWEN_27B_AWQ, QWEN_27B, SMALL_HYBRID, GPT_OSS, LLAMA_70B_AWQ)


@st.composite
def machines(draw: st.DrawFn) -> Inventory:
    """Any number of equal or unequal cards, partly used by others, with any of the models."""
    kind = draw(st.sampled_from([(7, 5), (8, 0), (8, 9), (9, 0)]))
    gpus = []
    for index in range(draw(st.integers(1, 8))):
        total = draw(st.integers(6000, 180_000))
        gpus.append(Gpu(index, "card", kind, total, draw(st.integers(0, total))))
    ram = draw(st.integers(4096, 512_000))
    model = draw(st.sampled_from(MODELS))
    if model.quantization is not None:
        group, block = draw(st.sampled_from([(0, 0), (32, 0), (128, 0), (128, 128)]))
        model = replace(model, group_size=group, block_size=block)
    return Inventory(tuple(gpus), replace(HOST, ram_mib=ram), CUDA, model)


POLICIES = st.fixed_dictionaries(
    {"mode": st.sampled_from(MODES)},
    optional={
        "mtp": st.integers(0, 8),
        "max_num_seqs": st.integers(1, 64),
        "max_num_batched_tokens": st.sampled_from([512, 2048, 16384]),
        "gpu_memory_utilization": st.floats(0.1, 0.99),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
        "cuda_graphs": st.sampled_from(["none", "full", "auto"]),
    },
)


def serves(machine: Inventory, policy: dict[str, Any], size: int) -> bool:
    """Whether the model fits the cards with the most free memory, split over so many."""
    fewer = replace(machine, gpus=freest_cards(choose_gpus(Config(), machine), size))
    try:
        found = plan(fewer, policy={**policy, "tensor_parallel_size": size})
    except Unplannable:
        return False
    return bool(forecast(found, fewer).fits) and found.value("cpu_offload_gb") is None


@examples(50)
@given(machine=machines(), policy=POLICIES)
def test_whatever_the_machine_a_plan_is_possible_and_explained(
    machine: Inventory, policy: dict[str, Any]
) -> None:
    try:
        found = plan(machine, policy=policy)
    except Unplannable as problem:
        assert problem.failure == "vram-busy"  # noqa: PT017
        assert "the driver does not list" in str(problem)  # noqa: PT017
        for size in range(1, len(machine.gpus) + 1):
            assert not serves(machine, policy, size)
        return
    model, size = machine.model, found.value("tensor_parallel_size")
    share = found.value("gpu_memory_utilization")
    assert all(share * gpu.total_mib <= gpu.free_mib for gpu in gpus_of(found, machine))
    assert model.heads % size == 0
    assert model.kv_heads % size == 0 or size % model.kv_heads == 0
    if model.linear:
        assert model.linear.key_heads % size == model.linear.value_heads % size == 0
    each = lcm(model.group_size or 1, model.block_size or 1)
    whole = found.value("enable_expert_parallel")
    assert model.experts if whole else model.intermediate_size % (size * each) == 0 or size == 1
    assert model.heads * model.head_dim % (size * each) == 0 or size == 1
    assert size * (found.value("pipeline_parallel_size") or 1) == len(gpus_of(found, machine))
    assert found.value("max_model_len") <= model.max_model_len
    for setting in (*found.settings.values(), *found.env.values()):
        assert setting.reason
        assert setting.origin in ("user", "policy", "ladder", "remembered")
    again = plan(machine, policy=policy)
    assert again == found
    assert again.identity == found.identity
    assert candidate_of_plan(found, machine).tensor_parallel == size


@examples(60)
@given(
    machine=machines(),
    words=st.lists(
        st.sampled_from(
            [
                ("--max-model-len", "1024"),
                ("--gpu-memory-utilization", "0.77"),
                ("--kv-cache-dtype", "fp8_e5m2"),
                ("--no-enable-prefix-caching",),
                ("--enforce-eager",),
                ("-tp", "1"),
                ("--speculative-config", '{"method":"ngram"}'),
                ("--seed=7",),
            ]
        ),
        unique=True,
    ),
)
def test_the_operators_flags_are_never_rewritten(
    machine: Inventory, words: list[tuple[str, ...]]
) -> None:
    flat = [word for group in words for word in group]
    free = replace(machine, gpus=without_other_processes(machine.gpus))
    found = plan(free, engine={"extra_args": flat})
    assert found.value("gpu_memory_utilization") is not None
    assert found.extra_args == tuple(flat)
    assert all(found.settings[name].origin == "user" for name in found.verbatim)
    assert build(found, free.engine).argv[-len(flat) :] == tuple(flat) or not flat
    ours = build(found, free.engine).argv[: -len(flat) or None]
    long = {"-tp": "--tensor-parallel-size"}
    typed = {word.split("=")[0].replace("--no-", "--") for word in flat if word.startswith("-")}
    assert not {long.get(word, word) for word in typed} & set(ours)


def test_make_plan_is_what_the_daemon_calls() -> None:
    assert make_plan(Config(), inventory()).model == QWEN_27B_AWQ.path


@pytest.mark.parametrize(
    ("policy", "cache_mib", "tokens"),
    [({"mtp": 3}, 320, 322_638), ({"mtp": 0}, 192, 388_661)],
)
def test_the_forecast_is_what_the_real_cpu_engine_said(
    policy: dict[str, Any], cache_mib: int, tokens: int
) -> None:
    found = plan(ON_CPU, policy=policy)
    memory = forecast(found, ON_CPU)
    assert found.value("kv_cache_memory_bytes") == cache_mib << 20
    assert memory.kv_tokens == tokens


def test_kernels_that_are_not_wanted_are_turned_off() -> None:
    assert "CAOVAN_KERNELS" not in plan().env
    assert plan(engine={"plugin": False}).env["CAOVAN_KERNELS"].value == "off"


def test_keys_that_a_cpu_build_does_not_heed_are_said() -> None:
    found = plan(ON_CPU, policy={"gpu_memory_utilization": 0.5})
    assert "[policy] gpu_memory_utilization has no effect on a CPU build" in found.warnings
    with pytest.raises(Unplannable, match="CPU build"):
        plan(ON_CPU, policy={"tensor_parallel_size": 2})


def test_a_name_the_engine_does_not_know_is_refused_with_the_one_meant() -> None:
    choices = (("--kv-cache-dtype", ("auto", "fp8", "turboquant_k8v4")),)
    engine = replace(CUDA, choices=choices, tool_parsers=frozenset({"hermes", "qwen3_coder"}))
    with pytest.raises(Unplannable, match='use "turboquant_k8v4"'):
        plan(inventory(engine=engine), policy={"kv_cache_dtype": "turboquant_k8v8"})
    with pytest.raises(Unplannable, match='use "qwen3_coder"'):
        plan(inventory(engine=engine), server={"tool_call_parser": "qwen_coder"})


TEMPLATE = "{% if tools %}<tool_call><function=x></tool_call>{% endif %}<think>"


@pytest.mark.parametrize(
    ("kind", "template", "tools", "reasoning"),
    [
        ("qwen3_5_text", TEMPLATE, "qwen3_coder", "qwen3"),
        ("qwen3_5_text", TEMPLATE.replace("<function=x>", ""), "hermes", "qwen3"),
        ("qwen3", TEMPLATE.replace("<function=x>", ""), "hermes", "qwen3"),
        ("qwen3_moe", TEMPLATE, "qwen3_coder", "qwen3"),
        ("gpt_oss", "tools <|channel|>", "openai", "openai_gptoss"),
        ("llama", "tools", "llama3_json", None),
        ("qwen3_5_text", "plain", None, None),
        ("unheard_of", TEMPLATE, "qwen3_coder", None),
        ("qwen3", None, None, None),
    ],
)
def test_parsers_follow_the_family_and_its_template(
    kind: str, template: str | None, tools: str | None, reasoning: str | None
) -> None:
    found = plan(inventory(replace(QWEN_27B_AWQ, model_type=kind, chat_template=template)))
    assert found.value("tool_call_parser") == tools
    assert found.value("enable_auto_tool_choice") == (True if tools else None)
    assert found.value("reasoning_parser") == reasoning


R1 = "{% if '</think>' in content %}{% endif %}<｜Assistant｜>"


@pytest.mark.parametrize("kind", ["qwen2", "llama", "unheard_of"])
def test_a_model_distilled_from_r1_has_its_thoughts_parsed(kind: str) -> None:
    found = plan(inventory(replace(QWEN_27B_AWQ, model_type=kind, chat_template=R1)))
    assert found.value("reasoning_parser") == "deepseek_r1"
    assert "DeepSeek-R1" in found.settings["reasoning_parser"].reason


@pytest.mark.parametrize(
    ("kind", "template", "tools", "reasoning"),
    [
        ("qwen3_5_text", None, "no chat template mentions tools", "thinking"),
        ("qwen3_5_text", "plain", "does not mention tools", "does not mention thinking"),
        (
            "unheard_of",
            TEMPLATE,
            "the chat template has Qwen3-Coder's format of tool calls",
            "is unknown; set one",
        ),
        ("llama", TEMPLATE, "", "the thoughts format of models of type llama is unknown"),
    ],
)
def test_a_parser_that_is_not_chosen_has_its_reason(
    kind: str, template: str | None, tools: str, reasoning: str
) -> None:
    found = plan(inventory(replace(QWEN_27B_AWQ, model_type=kind, chat_template=template)))
    assert tools in found.settings["tool_call_parser"].reason
    assert reasoning in found.settings["reasoning_parser"].reason


def test_parsers_that_were_typed_win_and_none_is_none() -> None:
    model = replace(QWEN_27B_AWQ, chat_template=TEMPLATE)
    typed = {"tool_call_parser": "pythonic", "reasoning_parser": "none"}
    found = plan(inventory(model), server=typed)
    assert found.value("tool_call_parser") == "pythonic"
    assert found.value("reasoning_parser") is None


def test_a_model_the_engine_does_not_know_is_said() -> None:
    engine = replace(CUDA, architectures=frozenset({"LlamaForCausalLM"}))
    warnings = plan(inventory(engine=engine)).warnings
    assert any("has no model Qwen3_5" in text and "; install " in text for text in warnings)
    assert plan(inventory(LLAMA_70B_AWQ, A100, engine)).warnings == ()


@pytest.mark.parametrize(
    ("sections", "open_to_all"),
    [
        ({}, False),
        ({"server": {"host": "localhost"}}, False),
        ({"server": {"host": "::1"}}, False),
        ({"server": {"host": "0.0.0.0"}}, True),
        ({"server": {"host": "::"}}, True),
        ({"server": {"host": "my-box.lan"}}, True),
        ({"server": {"host": "0.0.0.0", "api_key_file": "/etc/k"}}, False),
        ({"server": {"host": "0.0.0.0"}, "engine": {"env": {"VLLM_API_KEY": "k"}}}, False),
        ({"server": {"host": "0.0.0.0"}, "engine": {"env": {"VLLM_API_KEY": ""}}}, True),
        ({"engine": {"extra_args": ["--host", "10.0.0.1"]}}, True),
        ({"engine": {"extra_args": ["--host", "10.0.0.1", "--api-key", "k"]}}, False),
        ({"server": {"host": "0.0.0.0"}, "engine": {"extra_args": ["--uds", "/run/s"]}}, False),
    ],
)
def test_an_engine_open_to_all_is_warned_of(sections: dict[str, Any], open_to_all: bool) -> None:
    warnings = plan(**sections).warnings
    assert any("anyone who can reach that address" in text for text in warnings) is open_to_all


def test_a_kernel_that_cannot_be_built_is_not_chosen() -> None:
    asked = replace(CUDA, python_version="3.12.1")
    assert plan(inventory(SMALL_HYBRID, H200, asked)).value("gdn_prefill_backend") == "triton"
    able = replace(asked, nvcc="/usr/local/cuda/bin/nvcc")
    assert plan(inventory(SMALL_HYBRID, H200, able)).value("gdn_prefill_backend") is None
    assert plan(inventory(engine=asked)).value("gdn_prefill_backend") is None


def test_stages_and_replicas_get_their_cards() -> None:
    words = {"extra_args": ["--pipeline-parallel-size", "2"]}
    machine = inventory(gpus=turing(4))
    found = plan(machine, engine=words)
    assert found.value("tensor_parallel_size") == 2
    assert found.env["CUDA_VISIBLE_DEVICES"].value == "0,1,2,3"
    assert forecast(found, machine).fits is True


FLAGS = (
    "--gpu-memory-utilization", "--max-model-len", "--max-num-seqs", "-tp", "-sc", "-cc",
    "--kv-cache-dtype", "--cpu-offload-gb", "--additional-config", "--kv-cache-memory-bytes",
    "--dtype", "--max-num-batched-tokens", "-pp", "--port", "--enforce-eager", "--api-key",
    "--mamba-cache-mode", "--no-enable-prefix-caching", "--model", "-O", "--foo.bar",
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(["0", "-1", "1e99", "auto", "64M", "0.5", "{}", "[]", "null", "true", "x", ""]),
    st.text(max_size=6).filter(lambda text: "\0" not in text),  # which no configuration holds
    st.integers(-10, 10**12).map(str),
)


@examples(300)
@given(
    words=st.lists(st.tuples(st.sampled_from(FLAGS), VALUES), max_size=6),
    machine=st.sampled_from([inventory(), inventory(SMALL_HYBRID, H200), ON_CPU]),
)
def test_no_verbatim_flag_however_odd_is_a_traceback(
    words: list[tuple[str, str]], machine: Inventory
) -> None:
    flat = [word for pair in words for word in pair]
    try:
        found = plan(machine, engine={"extra_args": flat})
    except Unplannable as problem:
        assert ";" in str(problem)  # noqa: PT017
    else:
        assert found.extra_args == tuple(flat)
        assert isinstance(found.mtp, int)
        forecast(found, machine)


def test_float32_gives_way_where_it_would_move_weights_to_host_memory() -> None:
    gtx = cards(1, "NVIDIA GeForce GTX 1650", (7, 5), 4096)
    card = model("Qwen3-8B")
    tenth = tuple(replace(one, size=one.size // 13) for one in card.weights)
    small = replace(card, weights=tenth, layer_types=card.layer_types[:28], hidden_size=1024)
    found = plan(inventory(small, gtx))
    assert found.value("dtype") == "half"
    assert found.value("cpu_offload_gb") is None
    assert found.value("max_model_len") >= 8192
    assert "in float32 the weights leave no room" in found.settings["dtype"].reason
    typed = plan(inventory(small, gtx), policy={"dtype": "float32"})
    assert typed.value("dtype") == "float32"


def test_cards_without_tensor_cores_compute_in_float32() -> None:
    gtx = cards(1, "NVIDIA GeForce GTX 1660 Ti", (7, 5), 6144)
    found = plan(inventory(replace(SMALL_HYBRID, head_dim=128), gtx))
    assert found.value("dtype") == "float32"
    assert (
        "GPU 0 (NVIDIA GeForce GTX 1660 Ti) has no tensor cores" in found.settings["dtype"].reason
    )
    assert plan(inventory(SMALL_HYBRID, turing(1))).value("dtype") == "half"
    wide = plan(inventory(SMALL_HYBRID, gtx))
    assert wide.value("dtype") == "half"
    assert "does not support heads of 256 in float32" in wide.settings["dtype"].reason
    assert any("nine times slower" in text for text in wide.warnings)
    four_bits = plan(inventory(in_four_bits(SMALL_HYBRID), gtx))
    assert four_bits.value("dtype") == "half"
    assert any("no tensor cores, for which" in text for text in four_bits.warnings)


def test_what_fits_beside_other_programs_is_named_and_can_be_asked_for() -> None:
    """A context that we choose leaves a margin; one that the operator sets may fill the cache."""
    gpu = replace(turing(1)[0], free_mib=21500, users=((7, "Xorg", 900),))
    machine = inventory(QWEN_27B_AWQ, (gpu,))
    with pytest.raises(Unplannable, match="room for a context of") as caught:
        plan(machine)
    (most,) = map(int, re.findall(r"set \[model\] max_model_len = (\d+)", str(caught.value)))
    served = plan(machine, model={"max_model_len": most})
    assert forecast(served, machine).fits
    with pytest.raises(Unplannable, match="room for a context of"):
        plan(machine, model={"max_model_len": most + 256})
