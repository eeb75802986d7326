"""Every signature takes its real lines, and leaves alone what only looks like them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from caovand.core.healing.failure import FAILURES
from caovand.engines.vllm.log.line import take_apart
from caovand.engines.vllm.log.signatures import BY_ID, SIGNATURES, benign, is_evidence, match

SAMPLES = Path(__file__).parents[1] / "samples"


class Sample(NamedTuple):
    """One line of a sample file: `expected` is what must be read from it."""

    id: str
    taken: bool
    phase: str
    failure: str
    line: str
    expected: dict[str, str]


def samples(folder: Path = SAMPLES) -> Iterator[Sample]:
    """All sample lines; see tests/samples/README.md for the format."""
    for path in sorted(folder.glob("*.log")):
        phase = failure = ""
        pending: list[Sample] = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            sign, text = line[:2], line[2:]
            try:
                if sign == "= ":
                    phase, failure = text.split(": ")
                elif sign in ("+ ", "- "):
                    pending.append(Sample(path.stem, sign == "+ ", phase, failure, text, {}))
                elif sign == "  ":
                    pending[-1].expected.update(pair.split("=", 1) for pair in text.split())
                elif sign != "# ":
                    raise ValueError(sign)
            except (ValueError, IndexError):
                wanted = "see tests/samples/README.md for what a line may be"
                raise ValueError(f"{path.name}:{number}: cannot read {line!r}; {wanted}") from None
        yield from pending


ALL = list(samples())


def named(sample: Sample) -> str:
    return f"{sample.id}-{'takes' if sample.taken else 'leaves'}"


@pytest.mark.parametrize("line", ["= bad-arguments", "  engine=x", "+ a\n  engine", "what"])
def test_a_malformed_sample_names_its_file_and_line(tmp_path: Path, line: str) -> None:
    text = f"# run\n{line}\n"
    (tmp_path / "a.log").write_text(text)
    with pytest.raises(ValueError, match=rf"^a\.log:{text.count(chr(10))}: cannot read '") as found:
        list(samples(tmp_path))
    assert "tests/samples/README.md" in str(found.value)


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


LEVEL = re.compile(r"^(\(\w+ pid=\d+\) )?(WARNING|ERROR|CRITICAL)(?= )")
LOGGED = [s for s in ALL if s.taken and LEVEL.match(s.line) and s.failure != "unknown"]


@pytest.mark.parametrize("sample", LOGGED, ids=named)
def test_the_same_words_at_another_level_are_no_evidence(sample: Sample) -> None:
    """Of the warnings only those of the two files that report a dead engine core so."""
    for level in ("DEBUG", "INFO"):
        line = LEVEL.sub(rf"\g<1>{level}", sample.line)
        assert match(take_apart(line)) is None, line


def test_a_warning_is_evidence_from_the_watchers_of_the_engine_core_alone() -> None:
    text = "(APIServer pid=1) {} 11-20 08:59:56 [{}:817] [shutdown] MPClient: engine core exited"
    found = {
        (level, file): is_evidence(take_apart(text.format(level, file)))
        for level in ("INFO", "WARNING", "ERROR")
        for file in ("core_client.py", "watch_dog.py", "other.py")
    }
    assert {key for key, evidence in found.items() if not evidence} == {
        ("INFO", "core_client.py"), ("INFO", "watch_dog.py"), ("INFO", "other.py"),
        ("WARNING", "other.py"),
    }  # fmt: skip
