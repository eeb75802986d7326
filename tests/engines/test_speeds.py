"""How fast cards are, by their own figures, their names and their generations."""

from __future__ import annotations

import pytest

from caovand.core.facts.inventory import Gpu
from caovand.engines.common.speeds import Speed, card_speed


def card(name: str, capability: tuple[int, int], **facts: object) -> Gpu:
    return Gpu(0, name, capability, 16384, 16000, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "capability", "gb_s"),
    [
        ("Tesla P40", (6, 1), 347),
        ("Tesla P100-PCIE-16GB", (6, 0), 732),
        ("Tesla V100-SXM2-32GB", (7, 0), 900),
        ("NVIDIA GB10", (12, 1), 273),
        ("NVIDIA Jetson AGX Orin Developer Kit", (8, 7), 205),
        ("NVIDIA GeForce RTX 5060 Ti", (12, 0), 448),
        ("NVIDIA GeForce RTX 5080", (12, 0), 960),
        ("Quadro RTX 6000", (7, 5), 672),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9), 960),
        ("NVIDIA RTX A6000", (8, 6), 768),
        ("NVIDIA RTX A4000", (8, 6), 448),  # no A40
        ("NVIDIA A100-SXM4-40GB", (8, 0), 1555),
        ("NVIDIA A100 80GB PCIe", (8, 0), 2039),
        ("NVIDIA L20", (8, 9), 864),
        ("NVIDIA A30", (8, 0), 933),
        ("NVIDIA B300 SXM6 AC", (10, 3), 8000),
        ("NVIDIA GeForce GTX 1660 SUPER", (7, 5), 336),
    ],
)
def test_a_name_has_its_makers_figures(name: str, capability: tuple[int, int], gb_s: float) -> None:
    assert card_speed(card(name, capability)).gb_s == gb_s


def test_what_the_driver_reports_of_a_card_goes_before_its_name() -> None:
    pcie = card("NVIDIA A100-PCIE-40GB", (8, 0), memory_gb_s=1555.2)
    assert card_speed(pcie) == Speed(1555.2, 312)


def test_an_unknown_card_is_measured_by_its_memory_and_multiprocessors() -> None:
    own = {"memory_gb_s": 1008.0, "multiprocessors": 60, "clock_mhz": 3000}
    found = card_speed(card("NVIDIA GeForce RTX 6070", (13, 0), **own))
    assert found.gb_s == 1008.0
    assert found.tflop_s == pytest.approx(60 * 1024 * 3000 * 0.85 / 1e6)
    assert card_speed(card("NVIDIA GeForce RTX 6070", (13, 0))).gb_s < 1000  # not a 5090's


def test_a_part_of_a_card_has_its_share_of_multiprocessors() -> None:
    part = card(
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb", (9, 0),
        mig=True, multiprocessors=16, clock_mhz=1980, memory_gb_s=419.0,
    )  # fmt: skip
    assert card_speed(part).tflop_s < 989 / 6
