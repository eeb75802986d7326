"""Sizing and forecast read one load: what is planned to fit is forecast to fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from caovand.core.facts.inventory import Inventory
from caovand.core.plan import Plan, Unplannable
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.estimate import kv_bytes
from caovand.engines.vllm.memory.settings import candidate_of_plan
from caovand.engines.vllm.planning import size_on_split as plan_size
from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.planning.draft_schedule import by_batch_size
from caovand.engines.vllm.planning.partial_plan import PartialPlan
from tests.core.machines import (
    A100,
    CPU,
    CUDA,
    GEMMA_4,
    GPT_OSS,
    H200,
    LLAMA_70B_AWQ,
    QWEN_27B,
    QWEN_27B_AWQ,
    QWEN_27B_MEASURED,
    SMALL_HYBRID,
    STARTS,
    TINY_HYBRID,
    cards,
    inventory,
    made_up,
    plan,
    turing,
)

MODELS = {
    "27B": QWEN_27B, "27B measured": QWEN_27B_MEASURED, "27B AWQ": QWEN_27B_AWQ,
    "small hybrid": SMALL_HYBRID, "gpt-oss": GPT_OSS, "Gemma 4": GEMMA_4, "70B AWQ": LLAMA_70B_AWQ,
    "tiny hybrid": TINY_HYBRID,
}  # fmt: skip
SAMPLES = {path.stem: made_up(path.stem) for path in sorted(STARTS.glob("models/*.json"))}
"""The models that were started on an H200."""
ENGINES = {
    "0.21": CUDA,
    "0.32": replace(CUDA, version="0.32.0", flashinfer="0.7.2"),
    "0.33": replace(CUDA, version="0.33.0", flashinfer="0.7.2"),
}
CARDS = {
    "2080 Ti": turing(2),
    "SM86": cards(1, "NVIDIA GeForce RTX 3090", (8, 6), 22600),
    "A100": A100,
    "H200": H200,
}
ASKED: tuple[dict[str, Any], ...] = (
    {},
    {"model": {"max_model_len": 8192}, "policy": {"mtp": 0}},
    {"policy": {"max_num_seqs": 4, "max_num_batched_tokens": 2048, "cuda_graphs": "full"}},
    {"model": {"text_only": False}},
    {"engine": {"extra_args": ["--no-enable-prefix-caching"]}},
    {"engine": {"extra_args": ["--enable-prefix-caching"]}},
    {"engine": {"extra_args": ["--block-size", "64", "-O", "0"]}},
    {"engine": {"extra_args": ["-cc", '{"cudagraph_mode":"NONE"}', "--max-num-seqs", "1k"]}},
    {"engine": {"extra_args": ["--kv-cache-memory-bytes", str(2 << 30)]}},
    {"engine": {"extra_args": ["--num-gpu-blocks-override", "4000"]}},
    {"engine": {"extra_args": ["--cpu-offload-gb", "4", "--gpu-memory-utilization", "0.9"]}},
)


def weighed(
    monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], *machine: Any
) -> tuple[Plan, list[Candidate]]:
    """The plan, and the loads that were sized on the way to it."""
    seen: list[Candidate] = []
    size = plan_size.size_together

    def noting(partials: list[PartialPlan]) -> PartialPlan:
        found = size(partials)
        varied = by_batch_size(found).choice  # which follows once the best is known
        if varied and not found.why_unmodelled:
            seen.append(varied.candidate)
        return found

    monkeypatch.setattr(plan_size, "size_together", noting)
    return plan(inventory(*machine), **sections), seen


def check(name: str, asked: dict[str, Any], machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forecast of a plan is a load that was sized, and it fits if a context was chosen."""
    try:
        found, seen = weighed(monkeypatch, asked, *machine)
    except Unplannable:
        return
    finally:
        monkeypatch.undo()
    box = inventory(*machine)
    candidate = candidate_of_plan(found, box)
    assert not seen or alike(candidate, box) in [alike(one, box) for one in seen], name
    planned = found.settings["max_model_len"]
    if planned.origin == "policy" and not found.advice:
        memory = forecast(found, inventory(*machine))
        assert memory.fits is not False or memory.conflicts, name


def alike(candidate: Candidate, machine: Inventory) -> Candidate:
    """The load without what means nothing to it, an eager engine capturing no graphs, and with the
    bytes of a cache that we size: what is forecast is the start that no longer compiles."""
    if candidate.in_bytes:
        size = int(kv_bytes(machine.model, candidate, machine.gpus))
        candidate = replace(candidate, kv_bytes=size, in_bytes=False)
    if candidate.kv_bytes:
        candidate = replace(candidate, utilization=0)  # a hurdle at the start, and no more
    candidate = replace(candidate, cold=False)
    return replace(candidate, compilation={}) if candidate.eager else candidate


def combinations() -> Iterator[Any]:
    """Every engine with all cards and all that is asked."""
    for engine, gpus, asked in itertools.product(ENGINES, CARDS, ASKED):
        yield pytest.param(engine, gpus, asked, id=f"{engine}-{gpus}-{asked}")


@pytest.mark.long
@pytest.mark.parametrize(("engine", "gpus", "asked"), list(combinations()))
def test_sizing_and_forecast_read_one_load(
    engine: str, gpus: str, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, model in MODELS.items():
        check(name, asked, (model, CARDS[gpus], ENGINES[engine]), monkeypatch)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("engine", ENGINES)
def test_sizing_and_forecast_read_one_load_of_every_model_sample(
    engine: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for gpus in CARDS.values():
        for asked in ASKED[:2]:
            check(name, asked, (SAMPLES[name], gpus, ENGINES[engine]), monkeypatch)


def test_a_plan_for_many_sequences_fits_in_every_release() -> None:
    """States that are kept at block borders count in each, whatever flag asks for it."""
    planned = {}
    for version, engine in ENGINES.items():
        machine = inventory(QWEN_27B_AWQ, CARDS["SM86"], engine)
        found = plan(machine, model={"max_model_len": 8192}, policy={"mtp": 0})
        assert forecast(found, machine).fits
        planned[version] = found.value("max_num_seqs"), found.value("mamba_cache_mode")
    (first, asked), (second, unasked) = planned["0.32"], planned["0.33"]
    assert (asked, unasked) == ("align", None)
    assert first == second


@pytest.mark.parametrize("name", [*MODELS, *SAMPLES])
@pytest.mark.parametrize("version", ["0.21.0", "0.32.0", "0.33.0"])
def test_the_cpu_build_plans_a_cache_that_holds_the_planned_context(
    version: str, name: str
) -> None:
    model = {**MODELS, **SAMPLES}[name]
    machine = inventory(model, (), replace(CPU, version=f"{version}+cpu"))
    memory = forecast(plan(machine), machine)
    assert 0 < memory.needed_mib <= memory.kv_mib


@pytest.mark.parametrize("words", [[], ["--block-size", "64"], ["--no-enable-prefix-caching"]])
def test_the_cpu_build_plans_a_cache_that_is_forecast_to_fit(words: list[str]) -> None:
    for model in (TINY_HYBRID, replace(TINY_HYBRID, mtp_layers=0)):
        machine = inventory(model, (), CPU)
        found = plan(machine, engine={"extra_args": words})
        assert forecast(found, machine).fits


def test_a_cache_of_a_given_size_has_to_fit_a_card_beside_the_weights() -> None:
    words = {"engine": {"extra_args": ["--kv-cache-memory-bytes", str(90 << 30)]}}
    machine = inventory(SMALL_HYBRID, A100)
    found = plan(machine, **words)
    assert forecast(found, machine).fits is False
