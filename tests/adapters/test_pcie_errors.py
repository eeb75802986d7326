"""Corrected PCIe errors of a card, from the kernel's files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from caovand.adapters.gpu.pcie_errors import count_corrected
from caovand.core.doctor.checks import MIN_LINK_ERRORS, link_checks
from tests.cli.test_offline_verbs import GOOD
from tests.core.machines import turing

COUNTS = "RxErr 12\nBadTLP 3\nBadDLLP 0\nRollover 0\nTimeout 5\nTOTAL_ERR_COR {}\n"


@pytest.mark.parametrize(
    ("bus", "text", "found"),
    [
        ("00000000:0A:00.0", COUNTS.format(4711), {0: 4711}),
        ("0000:0a:00.0", COUNTS.format(0), {0: 0}),
        ("00000000:0A:00.0", "", {}),
        ("00000000:0A:00.0", None, {}),
        ("", COUNTS.format(1), {}),
        ("../../x", COUNTS.format(1), {}),
    ],
)
def test_the_kernel_s_count_is_read_by_the_card_s_address(
    tmp_path: Path, bus: str, text: str | None, found: dict[int, int]
) -> None:
    folder = tmp_path / "0000:0a:00.0"
    folder.mkdir()
    if text is not None:
        (folder / "aer_dev_correctable").write_text(text)
    assert count_corrected([replace(turing(1)[0], bus=bus)], tmp_path) == found


def test_a_few_are_normal_and_a_flood_is_a_warning() -> None:
    few = replace(GOOD, link_errors={0: MIN_LINK_ERRORS - 1})
    assert list(link_checks(few)) == []
    (warning,) = link_checks(replace(GOOD, link_errors={1: MIN_LINK_ERRORS}))
    assert warning.verdict == "WARN"
    assert "riser" in warning.remedy
