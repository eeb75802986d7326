"""A worker's evidence of a failed start fits one message and arrives intact; anything else is
refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.cluster import evidence
from caovand.core.cluster.evidence import CARD, MARK, MAX_LINE, NodeEvidence, select_evidence
from caovand.core.cluster.messages import MAX_BYTES, MAX_TEXT
from caovand.core.document import BadDocument
from caovand.core.healing.failure import FAILURES
from tests.core.cluster.test_messages import documents, texts

lengthy = st.builds(lambda text, count: text * count, st.text(max_size=5), st.integers(0, 3000))
readings = st.none() | st.integers(0, 9999) | st.floats(0, 1e6)
samples = st.fixed_dictionaries({
    "index": st.integers(0, 99), "used_mib": st.integers(0, 99999), "at": st.floats(0, 1e6),
    "total_mib": st.integers(0, 99999), "utilization": readings, "temperature": readings,
    "power_w": readings, "throttled": lengthy, "fault": lengthy, "users": st.just([[1, 2]]),
})  # fmt: skip
findings = st.fixed_dictionaries({
    "failure": st.sampled_from(FAILURES), "text": lengthy, "phase": lengthy, "signature": lengthy,
    "captures": st.dictionaries(texts, lengthy, max_size=3), "line": st.integers(0, 9),
})  # fmt: skip
reports = st.fixed_dictionaries(
    {"at": texts, "finding": findings, "gpu_samples": st.lists(samples, max_size=99)}
)
logs = st.builds(
    lambda lines, count: "\n".join(lines) * count, st.lists(lengthy), st.integers(1, 9)
)
files = st.fixed_dictionaries(
    {}, optional={f"{name}.txt": logs for name in ("log", "kernel", "stacks")}
)
found = st.builds(select_evidence, texts, reports, files, failed=st.booleans(), lacks=lengthy)


def report(**changes: Any) -> dict[str, Any]:
    finding = {"failure": "hang", "text": "t", "phase": "p", "signature": "", "captures": {},
               "line": 0}  # fmt: skip
    return {"at": "now", "finding": finding, "gpu_samples": [], **changes}


@given(found)
def test_it_fits_a_message_and_comes_over_as_it_was_sent(one: NodeEvidence) -> None:
    frame = evidence.encode(one)
    assert len(frame) <= MAX_BYTES
    assert evidence.read_frame(frame) == one


def test_the_largest_there_can_be_fits_a_message() -> None:
    wide = "\U0001f4a5" * MAX_TEXT  # 12 bytes of JSON each
    card = {**dict.fromkeys(CARD, 1), "throttled": wide, "fault": wide}
    finding = {**report()["finding"], "text": wide, "phase": wide, "signature": wide}
    text = "\n".join([wide] * 1000)
    found = report(
        at=wide, finding=finding, gpu_samples=[{**card, "index": number} for number in range(99)]
    )
    files = dict.fromkeys(("log.txt", "kernel.txt", "stacks.txt"), text)
    one = select_evidence(wide, found, files, failed=True, lacks=wide)
    assert MAX_BYTES / 2 < len(evidence.encode(one)) <= MAX_BYTES


def test_of_a_long_log_the_latest_lines_are_kept_of_stacks_the_first() -> None:
    lines = [f"line {number} {'x' * 80}" for number in range(5000)]
    text = "\n".join(lines) + "\n"
    one = select_evidence(
        "s", report(), dict.fromkeys(("log.txt", "stacks.txt"), text), failed=False
    )
    assert 500 < len(one.log) < 5000
    assert one.log == tuple(lines[-len(one.log) :])
    assert one.stacks == tuple(lines[: len(one.stacks)])
    assert one.kernel == ()


def test_a_line_without_end_is_cut_and_an_empty_file_has_no_line() -> None:
    one = select_evidence("s", report(), {"log.txt": "x" * 9999, "stacks.txt": "\n"}, failed=True)
    assert one.log == ("x" * MAX_LINE,)
    assert one.stacks == ()


def test_a_node_that_ended_because_of_another_has_no_finding_and_each_card_is_there_once() -> None:
    card = {**dict.fromkeys(CARD, 1), "throttled": "", "fault": "", "at": 1.0}
    history = [{**card, "used_mib": used, "index": index} for used in (1, 2) for index in (1, 0)]
    one = select_evidence("s", report(gpu_samples=history), {}, failed=False)
    assert one.finding is None
    assert [(card["index"], card["used_mib"]) for card in one.cards] == [(0, 2), (1, 2)]
    failed = select_evidence("s", report(), {}, failed=True)
    assert failed.finding is not None
    assert failed.finding.failure == "hang"


@given(found, st.data(), documents)
def test_one_with_any_other_part_is_refused_or_kept_as_json(
    one: NodeEvidence, data: st.DataObject, other: Any
) -> None:
    document = json.loads(evidence.encode(one)[len(MARK) :])
    place = data.draw(st.sampled_from([document, *document["cards"][:1]]))
    place[data.draw(st.sampled_from(sorted(place)))] = other
    with contextlib.suppress(BadDocument):
        read = evidence.read_frame(MARK + json.dumps(document).encode())
        json.dumps(evidence.document("n", 1, read), allow_nan=False)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(frame: bytes) -> None:
    for sent in (frame, MARK + frame):
        with pytest.raises(BadDocument):
            evidence.read_frame(sent)


def test_one_that_is_too_large_is_refused() -> None:
    with pytest.raises(BadDocument, match="more than"):
        evidence.read_frame(MARK + b"[" * (MAX_BYTES + 1))
