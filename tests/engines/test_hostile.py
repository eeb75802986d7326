"""Whatever is in a log, it is read, and in reasonable time: prompts are not ours to choose."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.engines.common.logs.rows.kernel import find_in_kernel
from caovand.engines.vllm.log.cause import find_cause
from caovand.engines.vllm.log.explain import explain
from caovand.engines.vllm.log.phases import ROWS, read
from caovand.engines.vllm.log.signatures import SIGNATURES
from caovand.engines.vllm.metrics import parse_metrics
from tests.examples import examples

PREFIX = "(EngineCore pid=5) ERROR 11-20 09:00:00 [core.py:1140] "
PIECES = [
    "(", "(a", "(a pid=", "a", "A", "a.", "1", "1/", "%|", "1/2 [", " ", "vllm", "vllm ",
    ": error: ", "█", "\\", "[", "'", "torch_compile ", "Connect", "ModelArch['", "to serve ",
]  # fmt: skip


@pytest.mark.parametrize("start", ["", PREFIX, "Loading safetensors checkpoint shards:",
                                   "Engine ", "RuntimeError: ", "non-default args: "])  # fmt: skip
@pytest.mark.parametrize("piece", PIECES)
def test_no_line_takes_long_however_it_is_made(start: str, piece: str) -> None:
    line = start + piece * (200_000 // len(piece))
    began = time.process_time()
    read(line)
    find_cause([line])
    # Some milliseconds; what grows with the square of the length takes minutes.
    assert time.process_time() - began < 20


_WORDS = st.sampled_from(
    [PREFIX, "INFO 11-20 09:00:00 [a.py:1] ", "Traceback (most recent call last):\n",
     '  File "/x/caovan_vllm_sm75/y.py", line 1\n', "\r", "\n", "\x1b[31m", "non-default args: {",
     *(row.start for row in ROWS), *(row.pattern.pattern[:40] for row in SIGNATURES)]
)  # fmt: skip
_LOGS = st.lists(_WORDS | st.text(max_size=30), max_size=30).map("".join)


@examples(300)
@given(_LOGS)
def test_any_text_can_be_explained(text: str) -> None:
    told = explain(text)
    lines = text.split("\n")
    if told.finding:
        assert 1 <= told.finding.line <= len(lines)
    find_in_kernel(lines, {1})


@examples(200)
@given(st.text() | _LOGS)
def test_any_answer_can_be_read_as_metrics(text: str) -> None:
    assert parse_metrics(f"vllm:num_requests_running {{{text}", None, 0.0).progress.pending is None
