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
    Link,
    Probe,
    ProbeReport,
    handshake_words,
    link_document,
    probe_from,
    probe_to,
    reached_from,
    reached_to,
)
from caovand.core.cluster.plan_document import BadDocument
from tests.core.cluster.test_messages import probes, results
from tests.core.test_any_input import JSON

PROBE = Probe("token", {"n1": ("10.0.0.1", 7071)})
REACHED = ProbeReport("token", 40000, failures={"n1": ""})
WORKS = Link("10.0.0.1", 7071, connect_s=1e-4)


@given(st.none() | probes, st.none() | results)
def test_documents_come_over_as_they_were(probe: Probe | None, reached: ProbeReport | None) -> None:
    assert probe_from(json.loads(json.dumps(probe_to(probe)))) == probe
    assert reached_from(json.loads(json.dumps(reached_to(reached)))) == reached


@given(JSON, st.sampled_from(sorted(vars(REACHED))))
def test_any_other_part_is_refused_or_read(other: Any, name: str) -> None:
    for document in (other, {**(reached_to(REACHED) or {}), name: other}):
        try:
            found = reached_from(document)
        except BadDocument:
            continue
        assert found is None or reached_from(reached_to(found)) == found


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"targets": {"n1": ["h", 1 << 16]}}, "port of probe is not a port"),
        ({"targets": {"n1": ["h", True]}}, "port of probe is not a port"),
        ({"targets": {"n1": ["h" * 257, 1]}}, "host of probe is not a printable text"),
        ({"targets": {"n1": ["a\nb", 1]}}, "host of probe is not a printable text"),
        ({"targets": {"n1": ["h"]}}, "a target of probe is not a host and a port"),
        ({"targets": {"n" * 257: ["h", 1]}}, "a name in targets of probe is not a printable text"),
        ({"targets": []}, f"targets of probe is not a table of at most {MAX_TARGETS}"),
        ({"token": 1}, "token of probe is not a printable text"),
        ({"more": 1}, "probe has other parts"),
    ],
)
def test_a_refusal_names_the_part(change: dict[str, Any], text: str) -> None:
    with pytest.raises(BadDocument, match=text):
        probe_from({**(probe_to(PROBE) or {}), **change})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"failures": {"n1": "x" * (MAX_TEXT + 1)}},
            "a failure of reached is not a printable",
        ),
        ({"failures": None}, "failures of reached is not a table"),
        ({"port": -1}, "port of reached is not a port"),
        ({"seen": "a\x1b"}, "seen of reached is not a printable text"),
    ],
)
def test_a_report_of_anything_else_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(BadDocument, match=text):
        reached_from({**(reached_to(REACHED) or {}), **change})


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
