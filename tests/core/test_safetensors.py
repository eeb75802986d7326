"""Headers of safetensors files, honest and lying."""

from __future__ import annotations

import json
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.checkpoint.budget import BadHeader, Budget
from caovand.core.checkpoint.safetensors import BadShard, header_length, parse_header

GOOD = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]},
    "b": {"dtype": "I32", "shape": [], "data_offsets": [12, 16]},
}


def read(header: object, data: int = 16) -> list[str]:
    text = json.dumps(header).encode()
    return [tensor.name for tensor in parse_header(text, 8 + len(text) + data, Budget(lambda: 0.0))]


def test_a_whole_file_names_its_tensors() -> None:
    assert read(GOOD) == ["a", "b"]


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        (GOOD, 15, "truncated"),
        (GOOD, 17, "too long"),
        ({**GOOD, "b": {"dtype": "I32", "shape": [], "data_offsets": [8, 12]}}, 16, "overlap"),
        ({**GOOD, "b": {"dtype": "I32", "shape": [], "data_offsets": [14, 18]}}, 18, "gaps"),
        ({"a": {"dtype": "F16", "shape": [9], "data_offsets": [0, 12]}}, 12, "contradicts"),
        ({"a": {"dtype": "F16", "shape": [-1], "data_offsets": [0, 12]}}, 12, "contradicts"),
        ({"a": {"dtype": "F16"}}, 0, "does not describe"),
        ({"a": 5}, 0, "does not describe"),
        ([], 0, "not a JSON object of tensors"),
    ],
)
def test_a_header_that_lies_is_caught(header: object, data: int, said: str) -> None:
    with pytest.raises(BadShard, match=said):
        read(header, data)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"version ", "Git LFS"),
        (b"", "claims 0 bytes"),
        (struct.pack("<Q", 1 << 60), "claims"),
    ],
)
def test_a_file_that_is_none_is_caught_before_it_is_read(start: bytes, said: str) -> None:
    with pytest.raises(BadShard, match=said):
        header_length(start, 1000)


@given(st.binary(max_size=200), st.integers(0, 1000))
def test_no_bytes_are_a_traceback(text: bytes, size: int) -> None:
    with suppress(BadHeader):
        parse_header(text, size, Budget(lambda: 0.0))
