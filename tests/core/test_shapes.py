"""Weights made up from a configuration, against what vLLM loaded for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.core.inventory import reclaimed
from caovand.core.memory import Load, weights_bytes
from caovand.core.shapes import weights_by_shape
from tests.core.machines import GIB, QWEN_27B_MEASURED, turing


def test_the_27b_shape_weighs_what_vllm_loaded() -> None:
    card = replace(
        QWEN_27B_MEASURED, weights=weights_by_shape(QWEN_27B_MEASURED, tied=False, gated=True)
    )
    loaded = weights_bytes(card, Load(16384, 1, 8192, 0.8, mtp=3))
    assert loaded / GIB == pytest.approx(51.02, rel=0.005)


def test_the_memory_of_a_running_engine_counts_as_free_for_its_successor() -> None:
    gpu = replace(turing(1)[0], free_mib=2000, users=((7, "VLLM::Worker", 20000), (9, "Xorg", 300)))
    assert reclaimed((gpu,), {7})[0].free_mib == 22000
    assert reclaimed((gpu,), set())[0].free_mib == 2000
