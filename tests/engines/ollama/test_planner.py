"""Plans for Ollama: variables with reasons, refusals, forecast, rungs, command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from caovand.core.config.parser import parse
from caovand.core.facts.gguf import Gguf, GgufLayer
from caovand.core.facts.inventory import EngineInfo, Gpu, Host, Inventory, ModelCard
from caovand.core.healing.failure import FAILURES, Failure, Finding
from caovand.core.healing.ladder import LadderRules, decide
from caovand.core.plan import Plan, Unplannable
from caovand.engines.ollama.engine import ENGINE
from caovand.engines.ollama.healing.cures import CURES
from caovand.engines.ollama.healing.rungs import RUNGS

MIB = 1 << 20
STORE = "/usr/share/ollama/.ollama/models"
HOST = Host(ram_mib=65536, available_mib=60000, swap_mib=0, shm_mib=32768, cpus=8)
CUDA = EngineInfo("/usr/bin/python3", "0.12.3", "", "cuda", executable="/usr/local/bin/ollama")
LAYER = GgufLayer(120 * MIB, 0, 1024, 1024)
QWEN_8B = ModelCard(
    f"{STORE}/blobs/sha256-a3de86cd1c13", "qwen3", "qwen3", ("full_attention",) * 36, 40960,
    hidden_size=4096, intermediate_size=12288, vocab_size=151936, heads=32, kv_heads=8,
    head_dim=128, quantization="Q4_K",
    gguf=Gguf((LAYER,) * 36, 300 * MIB, 400 * MIB, 0, (("Q4_K", 36 * 120 * MIB),), ()),
)  # fmt: skip
EXPERTS = replace(
    QWEN_8B, experts=128, experts_per_token=8, expert_size=768,
    gguf=replace(QWEN_8B.gguf, layers=(GgufLayer(360 * MIB, 330 * MIB, 1024, 1024),) * 48),
)  # fmt: skip


def machine(*mib: int, model: ModelCard = QWEN_8B, host: Host = HOST) -> Inventory:
    gpus = tuple(Gpu(n, "RTX 2080 Ti", (7, 5), size, size - 300) for n, size in enumerate(mib))
    return Inventory(gpus, host, CUDA if mib else replace(CUDA, build="cpu"), model)


def plan(inventory: Inventory, *, remembered: Plan | None = None, **sections: Any) -> Plan:
    sections.setdefault("model", {}).setdefault("path", "qwen3:8b")
    sections.setdefault("engine", {})["kind"] = "ollama"
    return ENGINE.planning.make(parse(sections), inventory, remembered=remembered)


def values(made: Plan) -> Mapping[str, Any]:
    return {name: one.value for name, one in made.env.items()}


def test_every_variable_is_planned_with_a_reason() -> None:
    made = plan(machine(22527))
    assert values(made) == {
        "OLLAMA_MODELS": STORE, "OLLAMA_NUM_PARALLEL": "2", "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_FLASH_ATTENTION": "1", "OLLAMA_KV_CACHE_TYPE": "f16",
        "OLLAMA_MAX_LOADED_MODELS": "1", "OLLAMA_NOPRUNE": "1", "OLLAMA_LOAD_TIMEOUT": "10m",
        "CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }  # fmt: skip
    assert made.value("max_model_len") == 40960
    assert made.served_name == made.model == "qwen3:8b"
    assert all(one.reason for one in (*made.env.values(), *made.settings.values()))
    assert ENGINE.planning.context(made) == 40960
    assert ENGINE.planning.at_once(made) == 2


def test_the_command_is_serve_with_variables() -> None:
    made = plan(machine(22527), server={"host": "::1", "port": 9000})
    command = ENGINE.planning.command(made, CUDA, None)
    assert command.argv == command.shown == ("/usr/local/bin/ollama", "serve")
    assert command.env["OLLAMA_HOST"] == "[::1]:9000"
    assert command.env["OLLAMA_CONTEXT_LENGTH"] == "40960"
    assert command.env["OLLAMA_NUM_PARALLEL"] == "2"


def test_a_small_card_gets_an_8_bit_cache_and_fewer_requests_before_layers_leave_it() -> None:
    made = plan(machine(6656))
    found = values(made)
    assert (found["OLLAMA_KV_CACHE_TYPE"], found["OLLAMA_NUM_PARALLEL"]) == ("q8_0", "1")
    assert made.settings["max_model_len"].reason == "the longest with every layer on the cards"
    memory = ENGINE.planning.forecast(made, machine(6656))
    assert memory.fits
    assert dict(memory.parts)["weights"] == 36 * 120 + 400
    assert memory.max_model_len == made.value("max_model_len") < 40960


def test_what_ollama_leaves_free_on_a_card_is_left() -> None:
    made = plan(machine(6656))
    memory = ENGINE.planning.forecast(made, machine(6656))
    spare = 6356 * 0.03 + 457 - 350  # of the free memory, and beyond CUDA's own context
    assert dict(memory.parts)["free"] > spare


def test_without_cuda_no_card_is_named() -> None:
    made = plan(machine())
    assert "CUDA_VISIBLE_DEVICES" not in values(made)
    assert ENGINE.planning.cards(made, machine()) == ()
    assert made.device == "cpu"


def test_cards_of_another_slot_are_left_alone() -> None:
    inventory = machine(22527, 22527)
    made = plan(inventory, engine={"gpus": [1]})
    assert values(made)["CUDA_VISIBLE_DEVICES"] == "1"
    assert [gpu.index for gpu in ENGINE.planning.cards(made, inventory)] == [1]
    with pytest.raises(Unplannable, match="no such card exists"):
        plan(inventory, engine={"gpus": [2]})


def test_a_model_larger_than_the_card_is_forecast_in_host_memory_as_well() -> None:
    inventory = machine(8192, model=EXPERTS)
    memory = ENGINE.planning.forecast(plan(inventory), inventory)
    assert memory.fits
    on_card = dict(memory.parts)["weights"] - 400  # the output is there first
    assert on_card % 360 == 0  # whole layers, with their experts
    little = machine(8192, model=EXPERTS, host=replace(HOST, available_mib=4096))
    made = plan(little)
    assert ENGINE.planning.forecast(made, little).fits is False
    assert any("it does not fit" in text for text in made.warnings)


def test_keys_become_variables() -> None:
    made = plan(
        machine(22527),
        policy={"max_num_seqs": 3, "kv_cache_dtype": "q4_0", "gpu_memory_utilization": 0.5},
        model={"max_model_len": 4096},
        engine={"env": {"OLLAMA_KEEP_ALIVE": "1h"}},
    )
    found = values(made)
    assert (found["OLLAMA_NUM_PARALLEL"], found["OLLAMA_KV_CACHE_TYPE"]) == ("3", "q4_0")
    assert found["OLLAMA_GPU_OVERHEAD"] == str(22527 // 2 * MIB)
    assert found["OLLAMA_KEEP_ALIVE"] == "1h"
    assert made.env["OLLAMA_KEEP_ALIVE"].origin == "user"
    assert made.value("max_model_len") == 4096


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"engine": {"extra_args": ["--verbose"]}}, "takes no options"),
        ({"server": {"api_key_file": "/etc/key"}}, "does not check keys"),
        ({"model": {"served_name": "mine"}}, "ollama cp qwen3:8b mine"),
        ({"model": {"max_model_len": 40961}}, "the model's own limit is 40960"),
        ({"policy": {"kv_cache_dtype": "fp8"}}, "set [policy] kv_cache_dtype to one of"),
        ({"engine": {"env": {"OLLAMA_HOST": "0.0.0.0"}}}, "set [server] host and port instead"),
        ({"engine": {"env": {"OLLAMA_CONTEXT_LENGTH": "9"}}}, "set [model] max_model_len"),
        ({"engine": {"env": {"CUDA_VISIBLE_DEVICES": "0"}}}, "set [engine] gpus instead"),
        ({"engine": {"env": {"OLLAMA_NUM_PARALLEL": "many"}}}, "a whole number"),
    ],
)
def test_what_ollama_cannot_do_is_refused(sections: dict[str, Any], text: str) -> None:
    with pytest.raises(Unplannable) as caught:
        plan(machine(22527), **sections)
    assert text in str(caught.value)


def test_flash_attention_that_is_off_keeps_the_cache_in_half_precision() -> None:
    made = plan(machine(6656), engine={"env": {"OLLAMA_FLASH_ATTENTION": "false"}})
    assert values(made)["OLLAMA_KV_CACHE_TYPE"] == "f16"
    typed = {"engine": {"env": {"OLLAMA_FLASH_ATTENTION": "0", "OLLAMA_KV_CACHE_TYPE": "q8_0"}}}
    kept = "without flash attention Ollama keeps the cache in half precision"
    assert kept in plan(machine(22527), **typed).warnings
    on = {"engine": {"env": {"OLLAMA_FLASH_ATTENTION": "true", "OLLAMA_KV_CACHE_TYPE": "q8_0"}}}
    assert kept not in plan(machine(22527), **on).warnings


def test_warnings_name_what_has_no_effect_and_what_is_open_to_all() -> None:
    made = plan(machine(22527), server={"host": "0.0.0.0"}, policy={"mtp": 2})
    assert any("[policy] mtp has no effect" in text for text in made.warnings)
    assert any("does not check API keys" in text for text in made.warnings)
    assert any("[watch] idle_probe_s" in text for text in made.warnings)
    assert plan(machine(22527), watch={"idle_probe_s": 60}).warnings == ()


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_every_rung_goes_one_way_and_ends(rung: Any) -> None:
    made = plan(machine(22527))
    taken = []
    while (step := rung.step(made, Finding("hang", ""))) is not None:
        assert step.change
        assert set(step.settings) | set(step.env) <= set(rung.touches)
        taken.append(step.value)
        env = {name: replace(made.env["OLLAMA_MODELS"], value=v) for name, v in step.env.items()}
        settings = {
            name: replace(made.settings["max_model_len"], value=v)
            for name, v in step.settings.items()
        }
        made = replace(made, env={**made.env, **env}, settings={**made.settings, **settings})
    assert taken
    assert len(taken) == len(set(taken))


def descend(made: Plan, inventory: Inventory, failure: Failure) -> tuple[Plan, list[str]]:
    """The last plan, and the rungs taken until there is none left."""
    conflicts = ENGINE.planning.conflicts
    rules = LadderRules(ENGINE.healing, conflicts=lambda plan: conflicts(plan, inventory))
    taken: list[str] = []
    while (decided := decide(made, Finding(failure, "", "load"), 99, rules)).plan is not None:
        made = decided.plan
        taken.append(decided.rung)
        assert len(taken) < 40
    return made, taken


@pytest.mark.parametrize("failure", FAILURES)
def test_the_ladder_ends_and_a_kept_plan_has_its_steps(failure: Failure) -> None:
    inventory = machine(22527)
    made, taken = descend(plan(inventory), inventory, failure)
    assert bool(taken) == bool(CURES.get((failure, ""))) or failure == "unknown"
    again = plan(inventory, remembered=made)
    assert values(again) == values(made)
    assert again.value("max_model_len") == made.value("max_model_len")


def test_layers_leave_a_full_card_before_the_processor_takes_all() -> None:
    inventory = machine(22527)
    made, taken = descend(plan(inventory), inventory, "device-oom-load")
    assert taken[:5] == [f"overhead {mib} MiB" for mib in (1024, 2048, 4096, 8192, 16384)]
    assert taken[-1] == "processor cpu"
    assert values(made)["CUDA_VISIBLE_DEVICES"] == "-1"
    assert ENGINE.planning.cards(made, inventory) == ()


def test_a_cache_that_the_heads_do_not_divide_is_never_quantised() -> None:
    odd = machine(8192, model=replace(QWEN_8B, head_dim=80))
    made = plan(odd)
    assert values(made)["OLLAMA_KV_CACHE_TYPE"] == "f16"
    assert not [rung for rung in descend(made, odd, "host-oom")[1] if rung.startswith("cache")]


def test_cures_name_rungs() -> None:
    assert {name for names in CURES.values() for name in names} == {rung.name for rung in RUNGS}


def test_a_token_reads_its_own_experts_alone() -> None:
    inventory = machine(24576, model=EXPERTS)
    made = plan(inventory)
    speed = ENGINE.planning.speed(made, inventory)
    assert speed is not None
    assert 60 < speed < 120  # of 17 GB a token reads 3
    assert "OLLAMA_GPU_OVERHEAD" not in values(made)


def test_unified_memory_leaves_the_host_its_part() -> None:
    host = replace(HOST, ram_mib=124_546, available_mib=118_000)
    card = replace(
        machine(124_546).gpus[0], unified=True, free_mib=118_000 - 124_546 // 8,
        compute_capability=(12, 1),
    )  # fmt: skip
    inventory = replace(machine(1, host=host), gpus=(card,))
    made = plan(inventory)
    assert values(made)["OLLAMA_GPU_OVERHEAD"] == str(124_546 // 8 * MIB)
    assert ENGINE.planning.forecast(made, inventory).fits
    typed = plan(inventory, policy={"gpu_memory_utilization": 0.5})
    assert values(typed)["OLLAMA_GPU_OVERHEAD"] == str(124_546 // 2 * MIB)


def test_a_model_that_embeds_is_refused_with_the_engine_for_it() -> None:
    with pytest.raises(
        Unplannable, match=r'its task is embeddings, .* set \[engine\] kind = "llamacpp"'
    ):
        plan(machine(22527, model=replace(QWEN_8B, task="embed")))


def test_two_requests_name_the_longer_context_that_one_alone_would_have() -> None:
    made = plan(machine(14336))
    one = plan(machine(14336), policy={"max_num_seqs": 1})
    assert values(made)["OLLAMA_NUM_PARALLEL"] == "2"
    assert made.value("max_model_len") < one.value("max_model_len")
    said = f"a single request could have {one.value('max_model_len')} ([policy] max_num_seqs = 1)"
    assert said in made.settings["max_model_len"].reason
    assert "alone" not in one.settings["max_model_len"].reason
