"""The context that nobody asked for: how long it is, and what is said of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.sizing.choice import ENOUGH_EXACT
from tests.core.machines import (
    HOST,
    LLAMA_70B_AWQ,
    cards,
    inventory,
    made_up,
    named,
    plan,
    turing,
)

EXACT = {"engine": {"extra_args": ["--kv-cache-dtype", "auto"]}}
"""Without an 8-bit cache, which would hold twice as much."""


def test_a_context_that_gives_way_to_speed_says_what_would_fit_and_how() -> None:
    machine = inventory(LLAMA_70B_AWQ, cards(2, "NVIDIA A40", (8, 6), 32768))
    found = plan(machine, **EXACT)
    reason = found.settings["max_model_len"].reason
    match = re.search(r"(\d+)(?: or more)? fit if .* set \[model\] max_model_len = (\d+)", reason)
    assert match
    assert match[1] == match[2]
    longest = int(match[1])
    assert longest > found.value("max_model_len")
    typed = plan(machine, model={"max_model_len": longest}, **EXACT)
    assert typed.value("max_model_len") == longest
    assert forecast(typed, machine).fits


@pytest.mark.parametrize(
    ("mib", "graphs"), [(22000, False), (26000, True), (32000, True), (38000, True)]
)
def test_a_context_nobody_asked_for_is_the_longest_that_fits(mib: int, graphs: bool) -> None:
    """Not only in doublings, and up to what is kept back since forecasts err."""
    machine = inventory(LLAMA_70B_AWQ, cards(2, "NVIDIA A40", (8, 6), mib))
    found = plan(machine, **EXACT)
    context = found.value("max_model_len")
    assert (found.value("enforce_eager") is None) is graphs
    reason = found.settings["max_model_len"].reason
    assert "the longest that fits" in reason
    margin = "5% of the cache and 128 MiB are left in case the forecast errs"
    assert (margin in reason) is not graphs
    assert context % 1024 == 0
    room = forecast(found, machine)
    longer = room.needed_mib * (context + 2048) / context  # the share is rounded, too
    assert longer > room.kv_mib * 0.95 - 128
    assert context <= room.max_model_len


def test_graphs_are_worth_more_than_a_longer_context_and_the_reason_tells_both() -> None:
    machine = inventory(LLAMA_70B_AWQ, cards(2, "NVIDIA A40", (8, 6), 24000))
    found = plan(machine, **EXACT)
    assert found.value("enforce_eager") is None
    reason = found.settings["max_model_len"].reason
    told = re.search(r"CUDA graphs off would hold (\d+) tokens, at (\d\.\d+) times", reason)
    assert told
    assert int(told[1]) > found.value("max_model_len")
    assert float(told[2]) > 1.2
    without = plan(machine, policy={"cuda_graphs": "none"}, **EXACT)
    assert without.value("max_model_len") == int(told[1])


def test_a_context_that_does_not_fit_is_not_called_one_that_does() -> None:
    found = plan(inventory(LLAMA_70B_AWQ, turing(1), host=replace(HOST, ram_mib=8192)))
    assert found.settings["max_model_len"].reason.startswith("no context fits")


def test_the_vision_tower_gives_way_to_a_short_context_alone() -> None:
    towers = {}
    for mib in range(23000, 40000, 1000):
        found = plan(inventory(gpus=cards(1, "NVIDIA L40", (8, 9), mib)))
        context = found.value("max_model_len")
        towers[found.value("language_model_only") is None] = context
        assert found.value("language_model_only") is not None or context > 0.9 * ENOUGH_EXACT
    assert set(towers) == {True, False}


@pytest.mark.parametrize("card", ["RTX 3090", "RTX 4090"])
def test_the_models_limit_is_worth_more_than_the_last_sequences(card: str) -> None:
    """Published as 39,936 of 40,960 tokens, which clients that trust the model's card exceed."""
    small = replace(made_up("qwen3-8b"), max_model_len=40960)
    found = plan(inventory(small, named(card)))
    assert found.value("max_model_len") == 40960
    assert found.value("max_num_seqs") >= 2
