"""Every signature takes its real lines, and leaves alone what only looks like them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from caovand.core.healing.failure import FAILURES
from caovand.engines.vllm.log.line import take_apart
from caovand.engines.vllm.log.signatures import BY_ID, SIGNATURES, benign, match

SAMPLES = Path(__file__).parents[1] / "samples"


class Sample(NamedTuple):
    """One line of a sample file: `expected` is what must be read from it."""

    id: str
    taken: bool
    phase: str
    failure: str
    line: str
    expected: dict[str, str]


def samples() -> Iterator[Sample]:
    """All sample lines; see tests/samples/README.md for the format."""
    for path in sorted(SAMPLES.glob("*.log")):
        phase = failure = ""
        pending: list[Sample] = []
        for line in path.read_text(encoding="utf-8").splitlines():
            sign, text = line[:2], line[2:]
            if sign == "= ":
                phase, failure = text.split(": ")
            elif sign in ("+ ", "- "):
                pending.append(Sample(path.stem, sign == "+ ", phase, failure, text, {}))
            elif sign == "  ":
                pending[-1].expected.update(pair.split("=", 1) for pair in text.split())
            else:
                assert sign == "# ", f"{path.name}: unknown line {line!r}"
        yield from pending


ALL = list(samples())


def named(sample: Sample) -> str:
    return f"{sample.id}-{'takes' if sample.taken else 'leaves'}"


def taken_by(line: str) -> str | None:
    parts = take_apart(line)
    found = match(parts)
    if found:
        return found[0].id
    harmless = benign(parts.message)
    return harmless.id if harmless else None


def test_every_row_has_samples_and_every_sample_a_row() -> None:
    assert {sample.id for sample in ALL if sample.taken} == set(BY_ID)
    assert {sample.id for sample in ALL if not sample.taken} == set(BY_ID)


def test_ids_of_rows_are_unique_and_failures_known() -> None:
    assert len(BY_ID) == len(SIGNATURES)
    assert {row.failure for row in SIGNATURES} <= set(FAILURES)


@pytest.mark.parametrize("sample", [s for s in ALL if s.taken], ids=named)
def test_a_row_takes_its_line_and_means_the_failure(sample: Sample) -> None:
    assert taken_by(sample.line) == sample.id
    assert BY_ID[sample.id].means(sample.phase) == sample.failure


@pytest.mark.parametrize("sample", [s for s in ALL if s.expected], ids=named)
def test_a_row_reads_numbers_and_names_from_its_line(sample: Sample) -> None:
    found = match(take_apart(sample.line))
    assert found is not None
    for name, value in sample.expected.items():
        assert found[1][name].startswith(value)


@pytest.mark.parametrize("sample", [s for s in ALL if not s.taken], ids=named)
def test_a_row_leaves_near_misses_alone(sample: Sample) -> None:
    assert taken_by(sample.line) != sample.id


@pytest.mark.parametrize("sample", [s for s in ALL if s.taken], ids=named)
@pytest.mark.parametrize("level", ["INFO", "WARNING", "DEBUG"])
def test_a_prompt_that_quotes_an_error_is_no_failure(sample: Sample, level: str) -> None:
    quoted = take_apart(sample.line).message
    line = f"(APIServer pid=1) {level} 11-20 09:00:00 [request_logger.py:56] Received: {quoted!r}"
    assert match(take_apart(line)) is None
    # A line end inside what is logged repeats the prefix, so a prompt cannot begin a raw line.
    line = f"(APIServer pid=1) {level} 11-20 09:00:00 [request_logger.py:56] {quoted}"
    assert match(take_apart(line)) is None
