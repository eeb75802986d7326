"""Weights in host memory are read as fast as published runs of llama.cpp read them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caovand.core.facts.inventory import Host
from caovand.engines.common.processors import core_of, read_seconds

DESKTOP = Host(65536, 60000, 0, 0, cpus=6, instructions=("sse4_2", "avx", "fma", "avx2"))
GB = 1e9


@pytest.mark.parametrize(
    ("dense", "experts", "tokens_s"),
    [
        (4.921, 0, 4.2),  # 8B
        (4.683, 0, 4.9),  # 7B
        (1.930, 0, 11.8),  # 3B
        (0.8, 1.2, 10.6),  # 30B-A3B, 18.6 GB in all
    ],
)
def test_a_desktop_with_ddr4_reads_as_an_i7_8700_does(
    dense: float, experts: float, tokens_s: float
) -> None:
    modelled = 1 / read_seconds(DESKTOP, dense * GB, experts * GB)
    assert modelled == pytest.approx(tokens_s, rel=0.2)


def test_experts_of_a_120b_are_read_as_a_14900k_with_ddr5_does() -> None:
    fast = replace(DESKTOP, cpus=24, memory_gb_s=75.0)
    seconds = read_seconds(fast, 0, 1.8 * GB)
    assert 1 / (seconds + 0.006) == pytest.approx(25.6, rel=0.2)  # and what the card takes


def test_an_old_server_is_slower_than_its_memory() -> None:
    old = Host(
        131072, 120000, 0, 0, cpus=16, memory_gb_s=90.0, numa_nodes=2,
        instructions=("sse4_2", "avx"),
    )  # fmt: skip
    naive = 2 * GB / (90 * 0.8 * GB)
    assert 3 < read_seconds(old, 0, 2 * GB) / naive < 5
    one = replace(old, numa_nodes=1, instructions=("avx2",))
    assert read_seconds(one, 2 * GB, 0) == pytest.approx(naive)


def test_cores_are_known_by_the_best_of_their_extensions() -> None:
    speeds = [
        core_of(replace(DESKTOP, instructions=names)).gflop_s
        for names in (("sse4_2",), ("sse4_2", "avx"), ("avx", "avx2"), ("avx2", "avx512f"))
    ]
    assert speeds == sorted(set(speeds))
    assert core_of(replace(DESKTOP, instructions=())) == core_of(DESKTOP)
