"""What a step holds at its peak, against what PyTorch's allocator held on the H200."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.facts.inventory import ModelCard
from caovand.engines.vllm.memory.candidate import Candidate
from caovand.engines.vllm.memory.steps import (
    FIRST_STREAMS,
    forward_bytes,
    sampler_bytes,
    uncompressed_tokens,
)
from tests.core.machines import GEMMA_4, GPT_OSS, LLAMA_70B_AWQ, QWEN_27B, made_up


def forward(model: ModelCard, tokens: int, compiled: bool = False, **settings: Any) -> float:
    whole = {"context": 1, "sequences": 1, "cold": compiled, "eager": not compiled, **settings}
    return forward_bytes(model, Candidate(batch_tokens=tokens, utilization=0.9, **whole))


@pytest.mark.parametrize(
    ("name", "tokens", "held"),
    [
        ("llama-3.1-8b", 8192, 939_524_096),
        ("gemma-3-12b", 8192, 1_103_101_952),
        ("qwen2.5-7b", 8192, 1_200_619_520),
        ("mistral-small-24b", 8192, 1_895_825_408),
        ("phi-3.5-mini", 4096, 310_378_496),
        ("qwen3-30b-a3b", 8192, 897_581_056),
    ],
)
def test_an_eager_step_holds_what_was_measured(name: str, tokens: int, held: int) -> None:
    assert held <= forward(made_up(name), tokens) * 1.01 <= 1.12 * held


def test_mla_sets_room_aside_for_what_it_decompresses() -> None:
    lite = made_up("deepseek-v2-lite")
    held = forward(lite, 8192, context=8192, sequences=64, alignment=64)
    assert 1_217_396_736 <= held <= 1_217_396_736 * 1.06
    assert held > forward(lite, 8192)
    assert uncompressed_tokens(2048, 4, 64) == 16384
    assert uncompressed_tokens(2048, 2048, 64) == 2048 * 64


@pytest.mark.parametrize(
    ("name", "tokens", "held"),
    [
        ("llama-3.1-8b", 8192, 1_184_931_840),
        ("gemma-3-12b", 8192, 2_139_627_520),
        ("qwen3-8b", 2048, 1_279_279_104),
    ],
)
def test_the_first_compiled_step_copies_the_embeddings(name: str, tokens: int, held: int) -> None:
    assert forward(made_up(name), tokens, compiled=True) == pytest.approx(held, rel=0.10)
    assert forward(made_up(name), tokens, compiled=True) >= held


def test_a_logit_takes_14_bytes_in_the_samplers_warm_up() -> None:
    """1,024 sequences of Llama 3.2 1B, whose sampler held more than its step."""
    found = sampler_bytes(made_up("llama-3.2-1b"), 1024, 8192, drafting=False)
    assert found == pytest.approx(1_986_140_160, rel=0.02)


@given(
    model=st.sampled_from([QWEN_27B, GPT_OSS, GEMMA_4, LLAMA_70B_AWQ]),
    tokens=st.integers(1, 65536),
    ranks=st.sampled_from([1, 2, 4, 8]),
    compiled=st.booleans(),
)
def test_more_tokens_hold_more_and_more_ranks_hold_less(
    model: ModelCard, tokens: int, ranks: int, compiled: bool
) -> None:
    held = forward(model, tokens, compiled, tensor_parallel=ranks)
    assert forward(model, tokens + 1, compiled, tensor_parallel=ranks) > held
    assert forward(model, tokens, compiled, tensor_parallel=ranks * 2) <= held
    assert forward(model, tokens, compiled, tensor_parallel=ranks, mtp=1) >= held
    assert FIRST_STREAMS * tokens * model.hidden_size * 2 < held
