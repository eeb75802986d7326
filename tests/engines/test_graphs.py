"""CUDA graphs, against what vLLM logged of them."""

from __future__ import annotations

from typing import Any

import pytest

from caovand.engines.vllm.memory.steps import (
    captured_sizes,
    compiles,
    expected_mib,
    graph_kinds,
    graph_mode,
    graphs_mib,
)


@pytest.mark.parametrize(
    ("sequences", "mtp", "batch", "kind", "piecewise", "full", "largest"),
    [
        (1, 3, 8192, "qwen3_5_text", 2, 1, 8),
        (4, 3, 8192, "qwen3_5_text", 5, 3, 32),
        (256, 0, 2048, "gpt_oss", 83, 35, 1024),
        (256, 0, 2048, "gemma4", 51, 35, 512),
    ],
)
def test_so_many_are_captured_as_the_logs_say(
    sequences: int, mtp: int, batch: int, kind: str, piecewise: int, full: int, largest: int
) -> None:
    captured = captured_sizes(sequences, mtp, batch, {}, kind)
    assert (len(captured), captured[-1]) == (piecewise, largest)
    assert graph_kinds("PIECEWISE", captured, sequences, mtp) == (piecewise, 0)
    assert graph_kinds("FULL_DECODE_ONLY", captured, sequences, mtp) == (0, full)
    assert graph_kinds("full_and_piecewise", captured, sequences, mtp) == (piecewise, full)
    assert graph_kinds("NONE", captured, sequences, mtp) == (0, 0)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_cudagraph_capture_size": 16}, (1, 2, 4, 8, 16)),
        ({"cudagraph_capture_sizes": [1, 64]}, (1, 64)),
        ({"cudagraph_capture_sizes": [4, 9000]}, (4,)),
    ],
)
def test_sizes_that_were_asked_for_are_the_ones(
    config: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert captured_sizes(64, 0, 8192, config) == expected


def test_layers_of_mamba_with_experts_take_less() -> None:
    """Granite 4 H Tiny on an H200: vLLM took 502 MiB, and its cache shows that it expected 280."""
    captured = captured_sizes(256, 0, 8192, {}, "granitemoehybrid")
    piecewise, full = graph_kinds("FULL_AND_PIECEWISE", captured, 256, 0)
    assert 502 <= graphs_mib(piecewise + full, 40, True, captured[-1], mamba=True) <= 502 * 1.1
    expected = expected_mib(piecewise, full, 40, True, captured[-1], mamba=True)
    assert 280 <= expected <= 280 * 1.2
    assert graphs_mib(10, 40, mamba=True) == graphs_mib(10, 40)


def test_graphs_grow_with_layers() -> None:
    assert graphs_mib(10, 64) > graphs_mib(10, 24) > graphs_mib(0, 64) == 0
    assert graphs_mib(10, 64, largest=512) > graphs_mib(10, 64)


@pytest.mark.parametrize(
    ("piecewise", "full", "layers", "experts", "largest", "mib"),
    [
        (51, 35, 32, False, 512, 368),  # Llama 3.1 8B: 134 + 50 x 4 + 34 x 1
        (51, 35, 36, False, 512, 362),
        (19, 11, 48, False, 128, 194),  # Gemma 3 12B
        (35, 19, 27, True, 256, 446),  # DeepSeek V2 Lite
        (19, 11, 27, True, 128, 284),
    ],
)
def test_vllm_expects_less_of_graphs_than_they_take(
    piecewise: int, full: int, layers: int, experts: bool, largest: int, mib: float
) -> None:
    found = expected_mib(piecewise, full, layers, experts, largest)
    assert found == pytest.approx(mib, rel=0.2)
    assert found <= graphs_mib(piecewise + full, layers, experts, largest)
    assert expected_mib(0, 0, layers, experts) == 0


@pytest.mark.parametrize(
    ("config", "level", "captured"),
    [
        ({}, None, "FULL_AND_PIECEWISE"),
        ({}, 0, "NONE"),
        ({}, 1, "PIECEWISE"),
        ({"cudagraph_mode": "PIECEWISE"}, 0, "NONE"),  # there are no pieces
        ({"cudagraph_mode": "full", "mode": "none"}, None, "FULL"),
        ({"cudagraph_mode": "PIECEWISE", "mode": "VLLM_COMPILE"}, None, "PIECEWISE"),
    ],
)
def test_what_is_captured_follows_what_is_compiled(
    config: dict[str, object], level: int | None, captured: str
) -> None:
    assert graph_mode(config, level) == captured


@pytest.mark.parametrize(
    ("config", "level", "compiled"),
    [({}, None, True), ({}, 0, False), ({"mode": "none"}, 2, False), ({"mode": 3}, 0, True),
     ({"cudagraph_mode": "NONE"}, None, True)],
)  # fmt: skip
def test_a_model_without_graphs_may_be_compiled(
    config: dict[str, object], level: int | None, compiled: bool
) -> None:
    assert compiles(config, level) is compiled
