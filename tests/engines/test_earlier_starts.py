"""A log of several starts, the last without an error, and a download's bars before an error."""

from __future__ import annotations

import pytest

from caovand.engines.writer import explain_log

FAILED = "llama_model_load: error loading model: unknown pre-tokenizer type: 'NAME'"
BEGIN = (
    "main: build = 3680 (947538ac)\nllama_model_loader: loaded meta data with 39 key-value pairs"
)
SERVES = 'INFO:     10.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK'


def failed(text: str) -> tuple[int, str] | None:
    found = explain_log(text)
    assert found is not None
    finding = found[1].finding
    return (finding.line, finding.text.rpartition(": ")[2]) if finding else None


def test_an_error_before_a_start_without_one_counts() -> None:
    assert failed(f"{FAILED}\n{BEGIN}\n") == (1, "'NAME'")


def test_of_several_starts_the_last_that_failed_counts() -> None:
    one, two = (f"{BEGIN}\n{FAILED}".replace("NAME", name) for name in ("one", "two"))
    assert failed(f"{one}\n{two}\n{BEGIN}\n") == (6, "'two'")


def test_a_start_that_serves_got_over_what_failed_before() -> None:
    begin = BEGIN.partition("\n")[0]
    assert failed(f"{FAILED}\n{begin}\n{SERVES}\n") is None


@pytest.mark.parametrize(
    "bars",
    [
        "pulling 00e1317cbf74...  87% ▕█████████████   ▏ 4.0 GB/4.7 GB   39 MB/s     15s ",
        "pulling 00e1317cbf74:  87% ▕████▉ ▏ 4.0 GB/4.7 GB  39 MB/s  1m15s\r",
        "\x1b[?25lpulling 1... 8% ▕█ ▏ 4 MB\x1b[K\x1b[1Gpulling 2... 9% ▕██▏ 5 MB/6 MB\x1b[K",
    ],
)
def test_an_error_on_the_line_of_a_downloads_bars_is_found(bars: str) -> None:
    found = explain_log(
        f"{bars}Error: write /models/blobs/sha256-0-partial: no space left on device"
    )
    assert found is not None
    assert "The disk is full" in found[1].advice[0]
