"""The context that nobody asked for: how long it is, and what is said of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from caovand.engines.vllm.memory.forecast import forecast
from tests.core.machines import (
    HOST,
    LLAMA_70B_AWQ,
    QWEN_27B_AWQ,
    cards,
    inventory,
    plan,
    turing,
)


def test_a_context_that_gives_way_to_speed_says_what_would_fit_and_how() -> None:
    machine = inventory(LLAMA_70B_AWQ, cards(2, "NVIDIA A40", (8, 6), 32768))
    reason = plan(machine).settings["max_model_len"].reason
    match = re.search(r"(\d+) tokens fit: set \[model\] max_model_len = (\d+)", reason)
    assert match
    assert match[1] == match[2]
    longest = int(match[1])
    assert longest > plan(machine).value("max_model_len")
    typed = plan(machine, model={"max_model_len": longest})
    assert typed.value("max_model_len") == longest
    assert forecast(typed, machine).fits


@pytest.mark.parametrize(
    ("mib", "graphs"), [(23000, False), (26000, False), (32000, True), (38000, True)]
)
def test_a_context_nobody_asked_for_is_the_longest_that_fits(mib: int, graphs: bool) -> None:
    """Not only in doublings, and up to what is kept back since forecasts err."""
    machine = inventory(LLAMA_70B_AWQ, cards(2, "NVIDIA A40", (8, 6), mib))
    found = plan(machine)
    context = found.value("max_model_len")
    assert (found.value("enforce_eager") is None) is graphs
    assert "the longest that fits" in found.settings["max_model_len"].reason
    assert context % 1024 == 0
    room = forecast(found, machine)
    longer = room.needed_mib * (context + 2048) / context  # the share is rounded, too
    assert longer > room.kv_mib * 0.95 - 128
    assert context <= room.max_model_len


def test_graphs_are_given_up_for_a_context_only_while_it_is_short() -> None:
    machine = inventory(LLAMA_70B_AWQ, cards(2, "NVIDIA A40", (8, 6), 27500))
    found = plan(machine)
    assert found.value("enforce_eager") is True
    assert found.value("max_model_len") == 32768
    assert "not worth doing without CUDA graphs" in found.settings["max_model_len"].reason


def test_a_context_that_does_not_fit_is_not_called_one_that_does() -> None:
    found = plan(inventory(LLAMA_70B_AWQ, turing(1), host=replace(HOST, ram_mib=8192)))
    assert found.settings["max_model_len"].reason.startswith("no context fits")


def test_half_the_models_limit_is_not_called_all_that_fits() -> None:
    """Text alone, where images would cost more than half of it."""
    heavy = tuple(
        replace(part, size=3 * part.size) if part.part == "vision" else part
        for part in QWEN_27B_AWQ.weights
    )
    for mib in range(24000, 40000, 1000):
        one = cards(1, "NVIDIA L40", (8, 9), mib)
        found = plan(inventory(replace(QWEN_27B_AWQ, weights=heavy), one))
        if found.value("max_model_len") == QWEN_27B_AWQ.max_model_len // 2:
            break
    assert found.value("language_model_only") is True
    assert "half the limit" in found.settings["max_model_len"].reason
