"""A log of several months: starts, alarms and its end are explained, in bounded memory."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.adapters import log_excerpt
from caovand.adapters.log_excerpt import excerpt_of
from caovand.cli.main import main
from caovand.engines.registry import MODULES, engine_of
from caovand.engines.writer import starts
from tests.daemon_process import ROOT
from tests.examples import examples

BANNER = (
    "(APIServer pid=1) INFO 11-20 09:20:00 [x.py:1] vLLM server version 0.32.0, serving model /m"
)
BEGIN = "(APIServer pid=1) INFO 11-20 09:20:00 [x.py:1] non-default args: {'max_num_seqs': 64}"
LINE = "(APIServer pid=1) INFO 11-20 09:20:01 [x.py:1] line {}"
CAUSE = "(EngineCore pid=2) ERROR 11-20 09:20:02 [core.py:1142] torch.OutOfMemoryError: CUDA out"
SAMPLES = ROOT / "tests" / "samples"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_excerpt, "PIECE_BYTES", 700)
    monkeypatch.setattr(log_excerpt, "MAX_END_BYTES", 5000)
    monkeypatch.setattr(log_excerpt, "START_LINES", 20)
    monkeypatch.setattr(log_excerpt, "SAME_START", 5)


def explained(
    tmp_path: Path, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> dict[str, object]:
    log = tmp_path / "engine.log"
    log.write_text("\n".join(lines) + "\n")
    assert main(["explain", str(log), "--json"]) == 0
    printed = capsys.readouterr()
    assert "lines of normal operation are omitted" in printed.err
    told: dict[str, object] = json.loads(printed.out)
    return told


@pytest.mark.parametrize("at", [1, 40, 500, 1001])
def test_a_failure_anywhere_is_found_with_its_own_line_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], at: int
) -> None:
    lines = [LINE.format(n) for n in range(1000)]
    lines.insert(at - 1, CAUSE)
    told = explained(tmp_path, lines, capsys)
    assert (told["failure"], told["line"]) == ("device-oom-load", at)


def test_the_last_start_is_read_however_long_ago_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [LINE.format(n) for n in range(1000)]
    older, newer = BEGIN.replace("64", "8"), BEGIN
    told = explained(tmp_path, [older, *lines, newer, BANNER, *lines, CAUSE], capsys)
    assert told["engine_version"] == "0.32.0"
    assert told["configured"] == {"max_num_seqs": 64}
    assert told["line"] == 2004


def test_many_alarms_and_endless_lines_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_excerpt, "MAX_ALARM_BYTES", 3000)
    monkeypatch.setattr(log_excerpt, "MAX_HEAD_BYTES", 2000)
    monkeypatch.setattr(log_excerpt, "MAX_LINE_BYTES", 1000)
    text = "\n".join(["non-default args: ERROR " + "x" * 400] * 300 + ["y" * 100_000, "z\n" * 3000])
    found = excerpt_of(io.BytesIO(text.encode()), ("non-default args",))
    assert len(found.text) < 3000 + 4 * 3000 + 5000 + 2 * 700
    assert found.text.endswith("z\n")


@given(st.binary(max_size=9000) | st.lists(st.sampled_from([b"a", b"ERROR", b"\r", b"\n" * 9])).map(
    lambda parts: b"\n".join(parts * 99)))  # fmt: skip
@examples(60)
def test_every_line_is_kept_or_counted_as_left_out(raw: bytes) -> None:
    found = excerpt_of(io.BytesIO(raw), ("a",))
    lines = raw.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    assert found.left_out + len(found.numbers) == len(lines)
    assert list(found.numbers) == sorted(set(found.numbers))
    kept = b"".join(lines[number - 1] + b"\n" for number in found.numbers)
    assert found.text.rstrip("\n") == kept.decode(errors="replace").rstrip("\n")


def test_a_small_log_is_kept_whole() -> None:
    found = excerpt_of(io.BytesIO(b"a\nb\r\nc"), starts())
    assert (found.text, list(found.numbers), found.left_out) == ("a\nb\r\nc", [1, 2, 3], 0)


@pytest.mark.parametrize("name", MODULES)
def test_a_start_of_every_engine_is_known_by_its_first_lines(name: str) -> None:
    begins = engine_of(name).log.begins
    folder = SAMPLES / ("logs" if name == "vllm" else name)
    logs = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    assert any(text in log for log in logs for text in begins)
