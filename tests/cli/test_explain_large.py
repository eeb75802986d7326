"""A log of months: its end is explained, and that is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caovand.cli import explain as verb
from caovand.cli.main import main

LINE = "(APIServer pid=1) INFO 11-20 09:20:01 [x.py:1] line {}\n"
CAUSE = "(EngineCore pid=2) ERROR 11-20 09:20:02 [core.py:1142] torch.OutOfMemoryError: CUDA out\n"


@pytest.mark.parametrize(
    ("limit", "most"), [("MAX_BYTES", 5000), ("MAX_LINES", 50), ("MAX_LINES", 10**6)]
)
def test_the_end_of_a_large_log_is_explained_with_its_own_line_numbers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limit: str,
    most: int,
) -> None:
    monkeypatch.setattr(verb, "PIECE_BYTES", 700)
    monkeypatch.setattr(verb, limit, most)
    log = tmp_path / "engine.log"
    log.write_text("".join(LINE.format(n) for n in range(1, 1000)) + CAUSE)
    assert main(["explain", str(log), "--json"]) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert (told["failure"], told["line"]) == ("device-oom-load", 1000)
    assert ("only the end of" in printed.err) == (most < 10**6)


@pytest.mark.parametrize("text", [b"", b"\n", b"x" * 20_000, b"x\n" * 9000 + b"y" * 9000])
def test_any_end_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(verb, "PIECE_BYTES", 700)
    monkeypatch.setattr(verb, "MAX_BYTES", 5000)
    log = tmp_path / "engine.log"
    log.write_bytes(text)
    with open(log, "rb") as file:
        raw, skipped = verb._end_of(file)
    assert text.endswith(raw)
    assert len(raw) < 6000
    assert text[: len(text) - len(raw)].count(b"\n") == skipped
