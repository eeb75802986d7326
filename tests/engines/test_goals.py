"""A typed key is used as typed or reported as given up; a pinned one is never lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.config.schema import ModelSection, PolicySection
from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Plan, Unplannable
from caovand.engines.vllm.planning.decisions import GOALS, forecast
from tests.core.machines import (
    CPU,
    CUDA,
    GPT_OSS,
    H200,
    LLAMA_70B_AWQ,
    QWEN_27B_AWQ,
    SMALL_HYBRID,
    TINY_HYBRID,
    cards,
    inventory,
    named,
    plan,
    turing,
)
from tests.examples import examples

RTX_3090 = named("RTX 3090")
BUSY = tuple(replace(gpu, free_mib=17000) for gpu in turing(2))
MACHINES = (
    inventory(),
    inventory(gpus=turing(1)),
    inventory(gpus=BUSY),
    inventory(gpus=RTX_3090),
    inventory(engine=replace(CUDA, python_version="3.12.1")),
    inventory(engine=replace(CUDA, version="0.33.0", flashinfer="0.7.2")),
    inventory(replace(QWEN_27B_AWQ, mtp_layers=0), RTX_3090),
    inventory(LLAMA_70B_AWQ, RTX_3090),
    inventory(GPT_OSS, H200),
    inventory(SMALL_HYBRID, H200, replace(CUDA, flags=frozenset({"--max-model-len", "--port"}))),
    inventory(TINY_HYBRID, (), CPU),
)


def graphs(plan: Plan) -> str:
    config = plan.value("compilation_config") or {}
    return "none" if plan.value("enforce_eager") else str(config.get("cudagraph_mode")).lower()


HAD: Mapping[str, Callable[[Plan], Any]] = {
    "mtp": lambda plan: plan.mtp,
    "cuda_graphs": graphs,
    **{
        name: lambda plan, name=name: plan.value(name)  # type: ignore[misc]
        for name in (
            "gpu_memory_utilization", "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens",
            "tensor_parallel_size", "dtype", "max_model_len",
        )
    },
}  # fmt: skip
WISHES = st.fixed_dictionaries(
    {},
    optional={
        "mtp": st.integers(0, 8),
        "gpu_memory_utilization": st.sampled_from([0.3, 0.8, 0.95, 0.99]),
        "kv_cache_dtype": st.sampled_from(["fp8", "fp8_e5m2", "int8_per_token_head", "float16"]),
        "max_num_seqs": st.sampled_from([1, 8, 512]),
        "max_num_batched_tokens": st.sampled_from([512, 2048, 16384]),
        "tensor_parallel_size": st.integers(1, 2),
        "dtype": st.sampled_from(["half", "float32"]),
        "cuda_graphs": st.sampled_from(
            ["none", "piecewise", "full", "full_and_piecewise", "full_decode_only"]
        ),
        "max_model_len": st.sampled_from([2048, 32768, 131072]),
    },
)


def planned(machine: Inventory, typed_keys: Mapping[str, Any], pinned: list[str]) -> Plan | str:
    """The plan, or why there is none."""
    typed = dict(typed_keys)
    context = typed.pop("max_model_len", None)
    sections: dict[str, Any] = {"policy": {**typed, "pinned": pinned}}
    if context:
        sections["model"] = {"max_model_len": context}
    try:
        return plan(machine, **sections)
    except Unplannable as problem:
        return str(problem)


@examples(300)
@given(st.sampled_from(MACHINES), WISHES, st.sets(st.sampled_from(sorted(HAD))))
def test_no_typed_key_is_overruled_without_a_word_and_no_pinned_one_at_all(
    machine: Inventory, typed_keys: dict[str, Any], kept: set[str]
) -> None:
    pinned = sorted(kept & set(typed_keys))
    found = planned(machine, typed_keys, pinned)
    if isinstance(found, str):
        assert "; " in found
        return
    for key, typed in typed_keys.items():
        told = [text for text in found.warnings if f"] {key} " in text or f"{key} means" in text]
        had = HAD[key](found)
        if had == typed or (not had and not typed):
            continue
        assert told, f"{key} is {had}, not {typed}"
        assert key not in pinned or "has no effect on a CPU build" in told[0]


def test_every_key_that_the_policy_decides_by_default_is_a_goal() -> None:
    keys = [key for section in (ModelSection, PolicySection) for key in fields(section)]
    auto = {key.name for key in keys if key.default is None}
    auto -= {"ladder"}  # of the daemon
    auto -= {"activations", "lm_head"}  # variables: what cannot be had is refused, not given up
    goals = {goal.key for goal in GOALS if goal.section in ("model", "policy")}
    assert auto <= goals <= {key.name for key in keys}


GRAPHS = {"cuda_graphs": "piecewise"}


def test_pinned_graphs_stay_and_the_context_gives_way() -> None:
    """A 3090 with the 27B and a share that vLLM measures, where it runs without graphs if nobody
    asks for them."""
    machine = inventory(gpus=RTX_3090)
    engine = {"extra_args": ["--gpu-memory-utilization", "0.946"]}
    policy = {**GRAPHS, "pinned": ["cuda_graphs"]}
    free, pinned = plan(machine, engine=engine), plan(machine, policy=policy, engine=engine)
    assert free.value("enforce_eager") is True
    assert pinned.value("enforce_eager") is None
    assert pinned.value("compilation_config") == {"cudagraph_mode": "PIECEWISE"}
    assert 4096 < pinned.value("max_model_len") < free.value("max_model_len")
    assert forecast(pinned, machine).fits
    strict = plan(machine, policy={**GRAPHS, "strict": True}, engine=engine)
    assert strict.identity == pinned.identity


def test_typed_graphs_that_give_way_are_named() -> None:
    words = ["--gpu-memory-utilization", "0.957"]  # what compiling takes is then not in the cache
    found = plan(inventory(gpus=turing(1)), policy=GRAPHS, engine={"extra_args": words})
    (told,) = [text for text in found.warnings if "cuda_graphs" in text]
    assert told.startswith('[policy] cuda_graphs is piecewise, but "none" is planned: memory is')
    assert "pinned" in told


@pytest.mark.parametrize(
    "words", [["--compilation-config", '{"cudagraph_mode":"PIECEWISE"}'], ["--no-enforce-eager"]]
)
def test_a_verbatim_flag_keeps_the_graphs(words: list[str]) -> None:
    machine = inventory(gpus=RTX_3090)
    found = plan(machine, engine={"extra_args": words})
    assert not found.value("enforce_eager")
    assert forecast(found, machine).fits


def test_graphs_that_leave_no_room_are_advised_against() -> None:
    """Where no memory of the host can take weights either."""
    machine = inventory(gpus=cards(1, "NVIDIA GeForce RTX 3090", (8, 6), 22000))
    machine = replace(machine, host=replace(machine.host, ram_mib=2048, available_mib=1024))
    asked = {"policy": {**GRAPHS, "pinned": ["cuda_graphs"]}, "model": {"max_model_len": 8000}}
    found = plan(machine, **asked)
    assert forecast(found, machine).fits is False
    assert any(text.startswith('cuda_graphs = "none" leaves room') for text in found.advice)


def test_a_typed_cache_that_no_attention_here_keeps_is_given_up_and_a_pinned_one_stays() -> None:
    machine, fp8 = inventory(engine=replace(CUDA, version="0.33.0", flashinfer="0.7.2")), {}
    fp8 = {"kv_cache_dtype": "fp8"}
    found = plan(machine, policy=fp8)
    assert (found.value("kv_cache_dtype"), forecast(found, machine).fits) == (None, True)
    assert any("] kv_cache_dtype is fp8, but none is planned" in text for text in found.warnings)
    pinned = plan(machine, policy={**fp8, "pinned": ["kv_cache_dtype"]})
    assert pinned.value("kv_cache_dtype") == "fp8"
    assert "cannot keep the cache in fp8" in str(forecast(pinned, machine).conflicts[0])
