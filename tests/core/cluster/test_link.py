"""Messages of head and workers about a port check, and the resulting state of the link."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.cluster.link import (
    MAX_TEXT,
    LinkState,
    Probe,
    ProbeReport,
    Trial,
    handshake_words,
    link_document,
    read_probe,
    read_probe_report,
)
from caovand.core.document import BadDocument
from tests.core.cluster.test_messages import probes, results
from tests.core.test_any_input import JSON

PROBE = Probe("token", ("10.0.0.1", 7071), ("10.0.0.1", 40000))
REPORT = ProbeReport("token", 40000, failures={"reach-head": "refused"})
WORKS = LinkState("10.0.0.1", 7071, connect_s=1e-4)


@given(probes, results)
def test_documents_come_over_as_they_were(probe: Probe, report: ProbeReport) -> None:
    assert read_probe(json.loads(json.dumps(asdict(probe))), "probe") == probe
    assert read_probe_report(json.loads(json.dumps(asdict(report))), "report") == report


@given(JSON, st.sampled_from(sorted(vars(REPORT))))
def test_any_other_part_is_refused_or_read(other: Any, name: str) -> None:
    for document in (other, {**asdict(REPORT), name: other}):
        try:
            found = read_probe_report(document, "report")
        except BadDocument:
            continue
        assert found is None or read_probe_report(asdict(found), "report") == found


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"head": ["h", 1 << 16]}, r"head\[1\] is not a whole number from 0 to 65535"),
        ({"head": ["h", True]}, r"head\[1\] is not a whole number from 0 to 65535"),
        ({"head": ["h" * 257, 1]}, r"head\[0\] is not a string of at most 256 characters"),
        ({"head": ["a\nb", 1]}, r"head\[0\] has characters that are not printable"),
        ({"head": ["h"]}, "probe.head is not a list of 2 values"),
        ({"rendezvous": {}}, "probe.rendezvous is not a list of 2 values"),
        ({"token": 1}, "probe.token is not a string of at most 128 characters"),
        ({"more": 1}, "probe.more is unknown"),
    ],
)
def test_a_refusal_names_the_part(change: dict[str, Any], text: str) -> None:
    document = json.loads(json.dumps(asdict(PROBE)))
    with pytest.raises(BadDocument, match=text):
        read_probe({**document, **change}, "probe")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"failures": {"report": "x" * (MAX_TEXT + 1)}},
            f"report.failures.report is not a string of at most {MAX_TEXT}",
        ),
        ({"failures": {"n1": ""}}, "a name in report.failures is not one of listen-rendezvous, "),
        ({"failures": None}, "report.failures is not a table"),
        ({"port": -1}, "report.port is not a whole number"),
        ({"seen": "a\x1b"}, "report.seen has characters that are not printable"),
    ],
)
def test_a_report_of_anything_else_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(BadDocument, match=text):
        read_probe_report({**asdict(REPORT), **change}, "report")


@given(st.text(), st.text())
def test_each_word_is_for_one_side_of_one_check(one: str, other: str) -> None:
    tokens = {one, other}
    found = {word for token in tokens for word in handshake_words(token)}
    assert len(found) == 2 * len(tokens)
    assert all(word.isalnum() and len(word) == 64 for word in found)


@pytest.mark.parametrize("trial", get_args(Trial))
def test_a_link_works_if_both_nodes_reach_each_other(trial: Trial) -> None:
    assert WORKS.works
    assert not replace(WORKS, failures={trial: "refused"}).works


def test_what_is_shown_of_a_link() -> None:
    assert link_document(None) is None
    assert link_document(replace(WORKS, connect_s=0.00012345678)) == {
        "works": True,
        "connect_s": 0.000123,
    }
