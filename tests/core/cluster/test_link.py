"""Messages of head and workers about a port check, and the resulting state of the link."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.cluster.link import (
    MAX_TARGETS,
    MAX_TEXT,
    LinkState,
    PortCheck,
    PortCheckReport,
    handshake_words,
    link_document,
    probe_to,
    reached_to,
    read_probe,
    read_reached,
)
from caovand.core.document import BadDocument
from tests.core.cluster.test_messages import probes, results
from tests.core.test_any_input import JSON

PROBE = PortCheck("token", {"n1": ("10.0.0.1", 7071)})
REACHED = PortCheckReport("token", 40000, failures={"n1": ""})
WORKS = LinkState("10.0.0.1", 7071, connect_s=1e-4)


@given(st.none() | probes, st.none() | results)
def test_documents_come_over_as_they_were(
    probe: PortCheck | None, reached: PortCheckReport | None
) -> None:
    assert read_probe(json.loads(json.dumps(probe_to(probe))), "probe") == probe
    assert read_reached(json.loads(json.dumps(reached_to(reached))), "reached") == reached


@given(JSON, st.sampled_from(sorted(vars(REACHED))))
def test_any_other_part_is_refused_or_read(other: Any, name: str) -> None:
    for document in (other, {**(reached_to(REACHED) or {}), name: other}):
        try:
            found = read_reached(document, "reached")
        except BadDocument:
            continue
        assert found is None or read_reached(reached_to(found), "reached") == found


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"targets": {"n1": ["h", 1 << 16]}},
            r"n1\[1\] is not a whole number from 0 to 65535",
        ),
        (
            {"targets": {"n1": ["h", True]}},
            r"n1\[1\] is not a whole number from 0 to 65535",
        ),
        ({"targets": {"n1": ["h" * 257, 1]}}, r"n1\[0\] is not a string of at most 256 characters"),
        ({"targets": {"n1": ["a\nb", 1]}}, r"n1\[0\] has characters that are not printable"),
        ({"targets": {"n1": ["h"]}}, "probe.targets.n1 is not a list of 2 values"),
        (
            {"targets": {"n" * 257: ["h", 1]}},
            "a name in probe.targets is not a string",
        ),
        ({"targets": []}, f"probe.targets is not a table of at most {MAX_TARGETS} entries"),
        ({"token": 1}, "probe.token is not a string of at most 128 characters"),
        ({"more": 1}, "probe.more is unknown"),
    ],
)
def test_a_refusal_names_the_part(change: dict[str, Any], text: str) -> None:
    with pytest.raises(BadDocument, match=text):
        read_probe({**(probe_to(PROBE) or {}), **change}, "probe")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"failures": {"n1": "x" * (MAX_TEXT + 1)}},
            f"reached.failures.n1 is not a string of at most {MAX_TEXT}",
        ),
        ({"failures": None}, "reached.failures is not a table"),
        ({"port": -1}, "reached.port is not a whole number"),
        ({"seen": "a\x1b"}, "reached.seen has characters that are not printable"),
    ],
)
def test_a_report_of_anything_else_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(BadDocument, match=text):
        read_reached({**(reached_to(REACHED) or {}), **change}, "reached")


@given(st.text(), st.text())
def test_each_word_is_for_one_side_of_one_check(one: str, other: str) -> None:
    tokens = {one, other}
    found = {word for token in tokens for word in handshake_words(token)}
    assert len(found) == 2 * len(tokens)
    assert all(word.isalnum() and len(word) == 64 for word in found)


@pytest.mark.parametrize(
    "part",
    ["to_head", "to_worker", "to_own", "head_deaf", "own_deaf", "worker_deaf", "unreported"],
)
def test_a_link_works_if_both_nodes_reach_each_other(part: str) -> None:
    assert WORKS.works
    assert not replace(WORKS, **{part: "refused"}).works


def test_what_is_shown_of_a_link() -> None:
    assert link_document(None) is None
    assert link_document(replace(WORKS, connect_s=0.00012345678)) == {
        "works": True,
        "connect_s": 0.000123,
    }
