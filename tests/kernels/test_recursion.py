"""The recursion limit that caovand requests in the engine's processes."""

import sys

import pytest
from caovan_vllm_sm75_turbo3 import deepen_recursion


@pytest.mark.parametrize(
    ("wanted", "limit"), [("50000", 50000), ("10", 1000), ("", 1000), ("many", 1000)]
)
def test_the_limit_is_raised_and_never_lowered(wanted: str, limit: int) -> None:
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(1000)
        deepen_recursion(wanted)
        assert sys.getrecursionlimit() == limit
    finally:
        sys.setrecursionlimit(before)
