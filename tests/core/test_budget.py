"""One budget limits what a model's headers claim: bytes, values, depth, parts, seconds."""

from __future__ import annotations

import json

import pytest

from caovand.core.checkpoint import budget
from caovand.core.checkpoint.budget import BadHeader, Budget, TooLarge


def fresh(**left: int) -> Budget:
    return Budget(lambda: 0.0, **left)


@pytest.mark.parametrize(
    ("document", "fact"),
    [
        ([0] * 101, "more than 100 values"),
        ([[]] * 60, "more than 100 values"),
        ([{}] * 60, "more than 100 values"),
        ({str(n): n for n in range(101)}, "more than 100 values"),
    ],
)
def test_a_document_is_parsed_only_if_it_has_few_values(document: object, fact: str) -> None:
    with pytest.raises(TooLarge, match=fact):
        fresh().json(json.dumps(document).encode(), 100)


@pytest.mark.parametrize("depth", [65, 90, 400_000])
@pytest.mark.parametrize("one", [("[", "]"), ('{"a":', "}")])
def test_a_document_has_few_levels(depth: int, one: tuple[str, str]) -> None:
    text = f"{one[0] * depth}1{one[1] * depth}"
    with pytest.raises(TooLarge, match="more than 64 levels deep"):
        fresh().json(text.encode(), 1_000_000)
    shallow = f"{one[0] * 64}1{one[1] * 64}"
    assert fresh().json(f"[{shallow}]".encode()[1:-1], 1_000_000)


def test_what_is_no_json_is_refused_as_that() -> None:
    for data in (b"", b"{", b"\xff", b"[1,]", b"9" * 5000):
        with pytest.raises(BadHeader, match="it is not JSON"):
            fresh().json(data, 100)


def test_all_files_share_it() -> None:
    data = json.dumps(list(range(50))).encode()
    bytes_left, values_left = fresh(bytes_left=3 * len(data)), fresh(values_left=160)
    parts_left = fresh(parts_left=3)
    for _ in range(3):
        bytes_left.json(data, 100)
        values_left.json(data, 100)
        parts_left.begin_part()
    with pytest.raises(TooLarge, match="it exceeds the limit for all headers"):
        bytes_left.json(data, 100)
    with pytest.raises(
        TooLarge,
        match="it exceeds the limit for all headers and tables of a model, 6,000,000 values",
    ):
        values_left.json(data, 100)
    with pytest.raises(TooLarge, match="more than 1000 files"):
        parts_left.begin_part()
    with pytest.raises(TooLarge, match="160 MiB"):
        fresh().require(budget.MAX_BYTES + 1)


def test_it_ends_after_a_minute_of_work() -> None:
    now = 5.0
    one = Budget(lambda: now)
    now = 64.0
    one.spend(values=1)
    now = 66.0
    with pytest.raises(
        TooLarge, match="exceeds the limit for all headers and tables of a model, 60 s of CPU time"
    ):
        one.spend(values=1)
