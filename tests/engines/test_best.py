"""The best candidate of a space: a table of what is fixed on which card, and what is chosen."""

from __future__ import annotations

from typing import Any

import pytest

from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.sizing.choice import choose, choose_candidate
from caovand.engines.vllm.sizing.space import Choice, Space
from tests.boxes.models import model
from tests.core.machines import named

LLAMA = model("Llama-3.1-8B")
OWN = Candidate(context=131072, sequences=1, batch_tokens=8192, utilization=0.9)
EIGHT_BITS = OWN.but(kv_dtype="fp8")
OPEN: dict[str, Any] = {}


def shown(choice: Choice) -> str:
    one, second = choice.candidate, choice.runner_up
    words = [
        f"{one.context} x{one.sequences} step {one.batch_tokens} {one.kv_dtype}",
        "eager" if one.eager else "graphs",
    ]
    words += [f"{one.offload_gib:.1f} GiB offloaded"] if choice.offloaded else []
    words += [] if choice.fits else ["does not fit"]
    if second:
        graphs = "eager" if second.candidate.eager else "graphs"
        words.append(f"before {second.candidate.context} {second.candidate.kv_dtype} {graphs}")
    return ", ".join(words)


def chosen(card: str, fixed: dict[str, Any]) -> Choice:
    bases = (OWN, EIGHT_BITS)
    return choose_candidate(Space(**{"bases": bases, **fixed}), LLAMA, named(card))


@pytest.mark.parametrize(
    ("card", "fixed", "expected"),
    [
        ("H100", OPEN, "131072 x64 step 8192 auto, graphs"),
        ("RTX 3090", OPEN, "88064 x16 step 4096 fp8, graphs, before 47104 auto graphs"),
        (
            "RTX 3090",
            {"bases": (OWN,)},
            "47104 x12 step 2048 auto, graphs, before 51200 auto eager",
        ),
        ("RTX 3090", {"context": 32768}, "32768 x8 step 8192 auto, graphs"),
        ("RTX 3090", {"sequences": 2}, "90112 x2 step 4096 fp8, graphs, before 46080 auto graphs"),
        (
            "RTX 3090",
            {"batch_tokens": 2048},
            "90112 x16 step 2048 fp8, graphs, before 47104 auto graphs",
        ),
        (
            "RTX 3090",
            {"utilization": 0.8},
            "36864 x6 step 4096 fp8, graphs, before 18432 auto graphs",
        ),
        (
            "RTX 3090",
            {"graphs": "none"},
            "98304 x16 step 4096 fp8, eager, before 51200 auto eager",
        ),
        (
            "RTX 3090",
            {"context": 131072, "sequences": 64},
            "131072 x64 step 512 auto, eager, does not fit",
        ),
        ("RTX 4060", OPEN, "512 x1 step 512 auto, eager, does not fit"),
        ("RTX 4060", {"ram_mib": 65536}, "32768 x8 step 1024 fp8, eager, 10.6 GiB offloaded"),
        (
            "RTX 4060",
            {"ram_mib": 65536, "context": 16384},
            "16384 x4 step 1024 fp8, eager, 9.5 GiB offloaded",
        ),
    ],
)
def test_the_best_candidate_of_a_space(card: str, fixed: dict[str, Any], expected: str) -> None:
    assert shown(chosen(card, fixed)) == expected


@pytest.mark.parametrize(
    "fixed",
    [{"context": 16384}, {"sequences": 1}, {"batch_tokens": 512}, {"graphs": "none"}],
    ids=str,
)
def test_fixing_a_value_never_finds_a_better_one(fixed: dict[str, Any]) -> None:
    assert chosen("RTX 3090", fixed).score >= chosen("RTX 3090", OPEN).score


def test_the_runner_up_is_no_faster_in_score_and_another_kind() -> None:
    choice = chosen("RTX 3090", OPEN)
    assert choice.runner_up is not None
    second = choice.runner_up.candidate
    assert (second.kv_dtype, second.eager) != (choice.candidate.kv_dtype, choice.candidate.eager)
    without = chosen("RTX 3090", {"bases": (OWN,)})
    assert without.candidate == second, "it is the best once the winner's base is left out"


@pytest.mark.parametrize(
    ("card", "fixed", "kind"),
    [
        ("RTX 3090", OPEN, "auto"),  # 47,104 tokens are enough, though 8 bits would hold more
        ("RTX 3090", {"context": 65536}, "fp8"),
        ("RTX 3060", OPEN, "fp8, weights in 8 bits"),  # in 16 they leave no room
        ("RTX 3070", OPEN, "auto"),  # nothing fits, so nothing gives way
    ],
)
def test_only_what_has_to_gives_way_for_context(
    card: str, fixed: dict[str, Any], kind: str
) -> None:
    bases = (OWN, EIGHT_BITS, OWN.but(quantization="fp8"), EIGHT_BITS.but(quantization="fp8"))
    found = choose(Space(bases=bases, **fixed), LLAMA, named(card)).candidate
    assert found.kv_dtype + ", weights in 8 bits" * bool(found.quantization) == kind


def test_equal_spaces_are_searched_once_and_no_other_is_taken_for_them() -> None:
    choose_candidate.cache_clear()
    found = chosen("RTX 3090", OPEN)
    assert chosen("RTX 3090", {"bases": (OWN.but(), EIGHT_BITS.but())}) is found
    graphs = OWN.but(compilation={"cudagraph_capture_sizes": [1]})
    assert hash(graphs) == hash(OWN)
    others: tuple[dict[str, Any], ...] = ({"bases": (graphs, EIGHT_BITS)}, {"sequences": 2})
    assert all(chosen("RTX 3090", fixed) is not found for fixed in others)
