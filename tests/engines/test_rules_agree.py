"""Rule, conflict and doctor ask one predicate: what a key may not be, no flag may, and vice versa.

The machines are those of the other tests; every value is asked for as a key of caovan.toml and as a
verbatim flag.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.inventory import EngineInfo, Inventory, ModelCard
from caovand.core.plan import Unplannable
from caovand.engines.vllm.doctor import checkup
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.machine.attention import UNKNOWN_WIDTH
from caovand.engines.vllm.planning.decisions import forecast
from tests.cli.test_offline_verbs import GOOD
from tests.core.machines import (
    CUDA,
    GEMMA_4,
    GPT_OSS,
    H200,
    LLAMA_70B_AWQ,
    QWEN_27B,
    QWEN_27B_AWQ,
    SMALL_HYBRID,
    inventory,
    named,
    plan,
    turing,
)

GEMMA_3 = replace(SMALL_HYBRID, model_type="gemma3_text", linear=None, layer_types=())
GEMMA_3 = replace(GEMMA_3, layer_types=("full_attention",) * 8, mtp_layers=0, head_dim=128)
MODELS = {
    "27B": QWEN_27B, "27B AWQ": QWEN_27B_AWQ, "small": SMALL_HYBRID, "Gemma 3": GEMMA_3,
    "Gemma 4": GEMMA_4, "gpt-oss": GPT_OSS, "70B AWQ": LLAMA_70B_AWQ,
    "narrow": replace(SMALL_HYBRID, head_dim=96), "latent": replace(SMALL_HYBRID, latent=576),
    "unknown width": replace(SMALL_HYBRID, head_dim=0),
}  # fmt: skip
CARDS = {
    "two 2080 Ti": turing(2), "four 2080 Ti": turing(4),
    "3090": named("RTX 3090"), "H200": H200,
}  # fmt: skip
READY = replace(GOOD.engine or CUDA, plugin=None)
ENGINES = {
    "0.21": READY,
    "0.21 broken FlashInfer": replace(READY, flashinfer="0.6.12"),
    "0.21 no FlashInfer": replace(READY, flashinfer=None),
    "0.21 no nvcc": replace(READY, nvcc=None),
    "0.33": replace(READY, version="0.33.0", flashinfer="0.7.2"),
    "0.33 plugin": replace(READY, version="0.33.0", flashinfer="0.7.2", plugin="0.1"),
    "0.33 plugin no nvcc": replace(
        READY, version="0.33.0", flashinfer="0.7.2", plugin="0.1", nvcc=None
    ),
}
REFUSED = {("Gemma 4", "3090"), ("70B AWQ", "3090")} | {
    ("Gemma 4", gpus) for gpus in CARDS if "2080 Ti" in gpus
}
"""Most weights would stay in host memory, or heads are too wide for Turing."""
OF_ATTENTION = ("narrow", "latent", "unknown width")  # like the small one in all else


def machines(*gpus: str) -> Any:
    """A test on each of these cards, with each model that differs in more than its attention."""
    found = [
        (model, card)
        for model in MODELS
        for card in gpus
        if model not in OF_ATTENTION and (model, card) not in REFUSED
    ]
    return pytest.mark.parametrize(("name", "gpus"), found)


def asked(machine: Inventory, **sections: Any) -> tuple[list[str], DoctorFacts]:
    """Why this cannot run, by the rule or the conflicts; and what the doctor is given of it."""
    facts = replace(GOOD, gpus=machine.gpus, engine=machine.engine, model=machine.model)
    facts = replace(facts, gpus=tuple(replace(g, driver="580.65", cuda="13.0") for g in facts.gpus))
    env = sections.get("engine", {}).get("env", {})
    facts = replace(facts, engine_env=frozenset(env))
    try:
        found = plan(machine, **sections)
    except Unplannable as problem:
        return [str(problem)], replace(facts, plan_problem=str(problem))
    memory = forecast(found, machine)
    facts = replace(facts, memory=memory, caveats=found.caveats)
    return list(map(str, memory.conflicts)), replace(facts, dtype=str(found.value("dtype") or ""))


def check(machine: Inventory, section: str, key: str, value: Any, **engine: Any) -> None:
    """That the key is refused if the flag is, and that the doctor fails what is refused."""
    words = [*engine.pop("extra_args", []), option(key), str(value)]
    others = {"engine": {**engine, "extra_args": words[:-2]}}
    by_key, of_key = asked(machine, **others, **{section: {key: value}})
    by_flag, of_flag = asked(machine, engine={**engine, "extra_args": words})
    assert bool(by_key) == bool(by_flag), (by_key, by_flag)
    for refused, facts in ((by_key, of_key), (by_flag, of_flag)):
        failed = [f"{f.text}; {f.remedy}" for f in checkup(facts) if f.verdict == "FAIL"]
        assert set(refused) <= set(failed)


@pytest.mark.long
@machines("two 2080 Ti", "3090", "H200")
def test_the_type_that_is_computed_in(name: str, gpus: str) -> None:
    machine = inventory(MODELS[name], CARDS[gpus], READY)
    for dtype in ("bfloat16", "half", "float32"):
        check(machine, "policy", "dtype", dtype)
    planned = plan(machine).value("dtype")
    for refusals in (
        asked(machine, policy={"dtype": "bfloat16"})[0],
        asked(machine, engine={"extra_args": ["--dtype", "bfloat16"]})[0],
    ):
        for text in refusals:
            assert "bfloat16" not in text or planned in text.rpartition("; ")[2]


@pytest.mark.long
@machines("two 2080 Ti", "H200")
@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
        {"env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0"}},
        {"extra_args": ["--hf-overrides", '{"rope_scaling": {"factor": 4}}']},
    ],
    ids=str,
)
def test_the_length_of_the_context(name: str, gpus: str, engine: dict[str, Any]) -> None:
    model = MODELS[name]
    for length in (model.max_model_len, model.max_model_len + 1):
        machine = inventory(model, CARDS[gpus], READY)
        check(machine, "model", "max_model_len", length, **engine)


def test_a_limit_that_is_not_known_refuses_no_length() -> None:
    machine = inventory(replace(SMALL_HYBRID, limit_known=False), H200, READY)
    check(machine, "model", "max_model_len", 10 * SMALL_HYBRID.max_model_len)


def test_a_length_that_vllm_was_told_to_take_is_forecast() -> None:
    machine, length = inventory(QWEN_27B_AWQ, H200, READY), 2 * QWEN_27B_AWQ.max_model_len
    env = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    for sections in (
        {"model": {"max_model_len": length}, "engine": {"env": env}},
        {"engine": {"env": env, "extra_args": ["--max-model-len", str(length)]}},
    ):
        memory = forecast(plan(machine, **sections), machine)
        assert memory.fits
        assert memory.max_model_len == length


@pytest.mark.long
@machines("two 2080 Ti", "four 2080 Ti", "H200")
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--enable-expert-parallel"],
        ["--data-parallel-size", "2"],
        ["--nnodes", "2"],
        ["--distributed-executor-backend", "ray"],
    ],
    ids=" ".join,
)
def test_the_split(name: str, gpus: str, words: list[str]) -> None:
    machine = inventory(MODELS[name], CARDS[gpus], READY)
    for size in (2, 3, 8):
        check(machine, "policy", "tensor_parallel_size", size, extra_args=words)


TYPED: tuple[dict[str, Any], ...] = (
    {}, {"engine": {"env": {"CUDA_HOME": "/opt/cuda"}}}, {"policy": {"dtype": "float32"}}
)  # fmt: skip


def of_attention() -> Iterator[Any]:
    """Each model with all that is typed."""
    for name, sections in itertools.product(MODELS, TYPED):
        yield pytest.param(name, sections, id=f"{name}-{sections}")


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "sections"), list(of_attention()))
def test_the_attention_of_turing(engine: str, name: str, sections: dict[str, Any]) -> None:
    """The rule plans FlashInfer where the doctor says that it serves, and no flag is refused."""
    model, typed = MODELS[name], sections.get("policy", {})
    if "dtype" in typed or name == "Gemma 4":  # heads that Triton's attention has room for, too
        model = replace(model, head_dim=min(model.head_dim, 128), global_head_dim=0)
    machine = inventory(model, turing(2), ENGINES[engine])
    backend = plan(machine, **sections).settings["attention_backend"]
    _, facts = asked(machine, **sections)
    (said,) = [
        finding
        for finding in checkup(facts)
        if finding.group == "engine" and ("attention" in finding.text or "SM75" in finding.text)
    ]
    assert (backend.value == "FLASHINFER") == said.text.endswith("supports SM75")
    words = {"extra_args": ["--attention-backend", "FLASHINFER"]}
    given = {**sections, "engine": {**sections.get("engine", {}), **words}}
    refused = [text for text in asked(machine, **given)[0] if "FLASHINFER" in text]
    warned = [w for w in plan(machine, **given).warnings if "FLASHINFER cannot start" in w]
    serves = backend.value == "FLASHINFER" or said.text.startswith(UNKNOWN_WIDTH)
    assert serves == (not refused and not warned)


@pytest.mark.parametrize("kind", ["fp8", "fp8_e5m2", "fp8_e4m3", "int8_per_token_head"])
@pytest.mark.parametrize("engine", [e for e in ENGINES if "no FlashInfer" in e or e == "0.33"])
def test_the_cache_that_tritons_attention_keeps(engine: str, kind: str) -> None:
    machine = inventory(SMALL_HYBRID, turing(2), ENGINES[engine])
    found = plan(machine, policy={"kv_cache_dtype": kind})
    flag = asked(machine, engine={"extra_args": ["--kv-cache-dtype", kind]})[0]
    assert (found.value("kv_cache_dtype") is None) == bool(flag)


def test_models_and_engines_of_these_tests_are_what_they_are_called() -> None:
    model: ModelCard = MODELS["Gemma 3"]
    engine: EngineInfo = ENGINES["0.33"]
    assert plan(inventory(model, turing(2), READY)).value("dtype") == "float32"
    assert engine.release >= (0, 33)
