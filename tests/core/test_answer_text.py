"""The setting that an answer names is one that can be typed."""

from __future__ import annotations

from typing import Any

import pytest

from caovand.core.reporting.answer_text import remedy


@pytest.mark.parametrize(
    ("option", "value", "shown"),
    [
        ("--enforce-eager", True, "--enforce-eager"),
        ("--max-model-len", 512, "--max-model-len 512"),
        ("--async-scheduling", None, "without --async-scheduling"),
    ],
)
def test_a_flag_is_shown_without_a_value(option: str, value: Any, shown: str) -> None:
    change = {"does": "run", "key": "", "option": option, "value": value}
    answer = {"changes": [change], "heals": "no", "how": "", "reports": []}
    assert next(iter(remedy(answer))).endswith(f"run: {shown}")
