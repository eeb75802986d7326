"""Cache blocks, against what vLLM computed for the same models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.facts.inventory import LinearAttention, ModelCard
from caovand.engines.vllm.memory.candidate import Candidate, Kernels
from caovand.engines.vllm.memory.kv_cache import Layout, head_bytes, layout_for, state_bytes
from tests.core.machines import (
    GEMMA_4,
    GIB,
    GPT_OSS,
    LLAMA_70B_AWQ,
    QWEN_27B,
    QWEN_27B_MEASURED,
    TINY_HYBRID,
)

VERSION = (0, 21, 0)


def layout(model: ModelCard, batch_tokens: int = 8192, **settings: Any) -> Layout:
    settings = {"kernels": Kernels(version=VERSION), **settings}
    return layout_for(model, Candidate(4096, 1, batch_tokens, 0.9, **settings))


def test_attention_pages_cover_a_state_as_in_the_h200_log() -> None:
    blocks = layout(QWEN_27B_MEASURED, mtp=3, aligned_states=True)
    assert blocks.block_tokens == 416
    assert blocks.tokens(int(57.59 * GIB), 16384, VERSION) == 635_699


def test_attention_pages_cover_a_state_as_in_the_2080ti_log() -> None:
    assert layout(QWEN_27B, kv_dtype="fp8", mtp=3, tensor_parallel=2).block_tokens == 1600


def test_what_a_whole_context_needs_is_what_vllm_asked_for() -> None:
    blocks = layout(QWEN_27B_MEASURED, mtp=3)
    assert blocks.needed(262144) / GIB == pytest.approx(17.35, abs=0.005)
    assert blocks.longest(int(11.71 * GIB), 262144) == 175_552


@pytest.mark.parametrize(
    ("dtype", "gib", "tokens"),
    [
        ("auto", 9.195, 272_938),
        ("int8_per_token_head", 9.195, 518_397),
        ("turboquant_k8v4", 7.06, 520_461),
        ("turboquant_4bit_nc", 7.06, 735_084),
    ],
)
def test_published_token_counts_come_out_exactly(dtype: str, gib: float, tokens: int) -> None:
    blocks = layout(QWEN_27B, kv_dtype=dtype, mtp=3, tensor_parallel=2)
    assert blocks.tokens(int(gib * GIB), 262144, VERSION) == tokens


def test_the_cpu_build_reports_what_is_forecast() -> None:
    blocks = layout(TINY_HYBRID, mtp=3, alignment=128)
    assert blocks.block_tokens == 256
    assert blocks.tokens(704 << 20, 131072, (0, 32, 0)) == 709_805


def test_a_block_is_held_back_by_later_releases_as_in_the_cpu_log() -> None:
    dense = replace(
        TINY_HYBRID, layer_types=("full_attention",) * 2, mtp_layers=0, head_dim=32, linear=None
    )
    later = layout(dense, alignment=128, kernels=Kernels(version=(0, 32, 0)))
    assert later.longest(16 << 20, 131072) == 32_640
    assert layout(dense, alignment=128).longest(16 << 20, 131072) == 32_768


def test_window_layers_take_blocks_by_their_window() -> None:
    blocks = layout(GPT_OSS, batch_tokens=2048)
    assert blocks.concurrency(int(36.56 * GIB), 131072) == pytest.approx(11.99, abs=0.01)
    assert blocks.tokens(int(36.56 * GIB), 131072, (0, 19, 0)) == pytest.approx(798_624, rel=1e-3)


@pytest.mark.parametrize(("batch", "blocks"), [(2048, 192), (2049, 192), (2050, 193)])
def test_a_window_ends_with_the_token_that_is_computed(batch: int, blocks: int) -> None:
    """vLLM's SlidingWindowSpec: a window of 1024 and the step, which share a token; and a block."""
    found = layout(GEMMA_4, batch_tokens=batch)
    window = found.window_groups * (blocks + 1)
    assert found.blocks_of_request(262144) == 262144 // found.block_tokens + window


def test_later_releases_hold_a_windows_tokens_for_every_step_under_way() -> None:
    """As vLLM 0.33.0 counted on an H200: Gemma 3 of 24 layers, 129.88 GiB, 32,768 tokens."""
    gemma = replace(
        GEMMA_4,
        layer_types=(("sliding_attention",) * 5 + ("full_attention",)) * 4,
        heads=8, kv_heads=4, global_kv_heads=4, global_head_dim=256,
    )  # fmt: skip
    available, latest = int(129.88 * GIB), (0, 33, 0)
    blocks = layout(gemma, kernels=Kernels(version=latest))
    assert blocks.tokens(available, 32768, latest) == pytest.approx(2_326_400, rel=1e-4)
    assert layout(gemma).blocks_of_request(32768) < blocks.blocks_of_request(32768)
    staged = layout(gemma, kernels=Kernels(version=latest), batch_tokens=1024, stages=(12, 12))
    held = staged.blocks_of_request(32768) - staged.full_groups * 2048
    assert held == staged.window_groups * ((1023 + 3 * 1024 + 15) // 16 + 1)


def test_drafting_costs_states_and_a_layer() -> None:
    without, deep = layout(QWEN_27B, mtp=0), layout(QWEN_27B, mtp=4)
    assert deep.needed(65536) > without.needed(65536)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("auto", 1024),
        ("fp8", 512),
        ("int8_per_token_head", 520),
        ("turboquant_k8v4", 388),
        ("turboquant_4bit_nc", 262),
        ("turboquant_k3v4_nc", 230),
        ("turboquant_3bit_nc", 198),
        ("int4_per_token_head", 264),
    ],
)
def test_bytes_of_a_head_in_each_cache_type(dtype: str, size: int) -> None:
    assert head_bytes(dtype, 256, 2) == size


@given(available=st.integers(0, 200 * GIB), limit=st.integers(1, 1_000_000))
def test_the_longest_context_fits_and_the_next_does_not(available: int, limit: int) -> None:
    blocks = layout(LLAMA_70B_AWQ)
    longest = blocks.longest(available, limit)
    assert longest == 0 or blocks.needed(longest) <= available
    assert longest == limit or blocks.needed(longest + 1) > available


def test_full_attention_and_windows_may_have_heads_of_their_own() -> None:
    blocks = layout(GEMMA_4, batch_tokens=2048, kernels=Kernels(version=(0, 19, 0)))
    assert (blocks.block_tokens, blocks.window_tokens, blocks.block_bytes) == (32, 16, 655360)
    assert blocks.blocks_of_request(262144) == 8192 + 5 * 193
    narrow = replace(GEMMA_4, global_kv_heads=8)  # now a full page is the longer one
    blocks = layout(narrow, batch_tokens=2048)
    assert (blocks.block_tokens, blocks.window_tokens) == (16, 32)
    assert blocks.block_bytes == 5 * 16 * 8 * 512 * 2 * 2


def test_the_states_of_mamba_2_are_vllms() -> None:
    """Granite 4.0 H Small and Nemotron-H 8B, by mamba2_state_shape of mamba_utils.py."""
    granite = replace(TINY_HYBRID, linear=None, mamba=LinearAttention(1, 128, 128, 64, 4, "auto"))
    convolution, state = (8192 + 2 * 1 * 128) * 3, 128 * 64 * 128
    assert state_bytes(granite, 0, 1, 2) == 2 * (convolution + state)
    split = (8192 + 2 * 4 * 128) // 4 * 3  # one group is had by each of four ranks
    assert state_bytes(granite, 0, 4, 2) == 2 * (split + state // 4)
    nemotron = replace(
        TINY_HYBRID, linear=None, mamba=LinearAttention(8, 128, 128, 64, 4, "float32")
    )
    convolution = (8192 + 2 * 8 * 128) * 3
    assert state_bytes(nemotron, 0, 1, 2) == 2 * convolution + 4 * state
    assert state_bytes(nemotron, 0, 1, 2, "float16") == 2 * (convolution + state)


def test_layers_that_share_a_cache_take_none() -> None:
    """Gemma 3n E4B: of 35 layers the last 15 read the caches of the first 20."""
    kinds = (("sliding_attention",) * 4 + ("full_attention",)) * 7
    whole = replace(GEMMA_4, layer_types=kinds, global_kv_heads=0, global_head_dim=0)
    shared = replace(whole, kv_shared=15)
    short = replace(whole, layer_types=kinds[:20])
    assert layout(shared) == layout(short)
    assert layout(shared).needed(32768) < 0.6 * layout(whole).needed(32768)
