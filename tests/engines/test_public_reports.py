"""Failures that people published are named rightly: all of the first ones, most of the others."""

from __future__ import annotations

import pytest

from tests.public_reports import Report, judged, reports


@pytest.mark.parametrize("report", reports("first"), ids=lambda report: report.source.split(",")[0])
def test_the_first_reports_are_all_right(report: Report) -> None:
    one = judged(report)
    assert one.verdict == "right", one.told
