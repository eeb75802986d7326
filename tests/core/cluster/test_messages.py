"""Messages between nodes arrive as sent; anything else is refused, never a crash."""

from __future__ import annotations

import contextlib
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.cluster import messages
from caovand.core.cluster.link import Probe, ProbeReport, Trial
from caovand.core.cluster.messages import Order, Report
from caovand.core.document import BadDocument
from caovand.core.healing.failure import FAILURES, Finding
from caovand.core.plan import Plan, Setting, Taken
from caovand.core.problem import Problem

texts = st.text(max_size=20)
values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), texts, st.lists(texts, max_size=2),
    st.dictionaries(texts, st.integers(0, 9), max_size=2),
)  # fmt: skip
origins = st.sampled_from(["user", "policy", "ladder", "remembered"])
settings = st.dictionaries(texts, st.builds(Setting, values, origins, texts), max_size=4)
plans = st.builds(
    Plan,
    model=texts,
    settings=settings,
    env=settings,
    extra_args=st.tuples(texts, texts),
    taken=st.lists(st.builds(Taken, texts, texts, st.booleans(), st.booleans())).map(tuple),
    caveats=st.tuples(st.builds(Problem.stated, texts.filter(lambda text: ";" not in text))),
    verbatim=st.frozensets(texts, max_size=3),
    device=texts,
    engine=texts,
    advice=st.just(()),
    tried=st.tuples(texts),
)
finite = st.floats(0, 1e9)
shown = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=20)
ports = st.integers(0, 65535)
places = st.tuples(shown, ports)
probes = st.builds(Probe, shown, places, places)
failures = st.dictionaries(st.sampled_from(get_args(Trial)), shown)
results = st.builds(ProbeReport, shown, ports, failures, shown, shown, shown)
orders = st.builds(
    Order, texts, texts, st.none() | plans, st.integers(0, 64), st.booleans(), texts, texts, finite,
    texts, texts, texts, st.booleans(), progress=st.none() | st.floats(0, 1),
    probe=st.none() | probes,
)  # fmt: skip
findings = st.builds(
    Finding, st.sampled_from(FAILURES), texts, texts, st.dictionaries(texts, texts, max_size=2),
    texts, st.integers(0, 9),
)  # fmt: skip
reports = st.builds(
    Report,
    name=texts,
    boot=texts,
    facts=st.dictionaries(texts, texts, max_size=3),
    state=texts,
    running=texts,
    failed=texts,
    finding=st.none() | findings,
    stopped=st.booleans(),
    ranks=st.lists(
        st.tuples(texts, st.integers(1, 99), st.none() | st.integers(0, 9)), max_size=3
    ).map(tuple),
    sizes=st.dictionaries(texts, finite, max_size=3),
    network=texts,
    clock=finite,
    echo=finite,
    held_s=finite,
    probe=st.none() | results,
)


def test_a_plan_s_caveats_are_sent_as_sentences() -> None:
    plan = Plan("m", {}, {}, caveats=(Problem("", "it is slow", "use another"),))
    frame = messages.encode_order(Order("h", plan=plan))
    assert json.loads(frame)["plan"]["warnings"] == ["it is slow; use another"]
    assert messages.decode_order(frame).plan == plan


@given(orders)
def test_an_order_comes_over_as_it_was_sent(order: Order) -> None:
    assert messages.decode_order(messages.encode_order(order)) == order


@given(reports)
def test_a_report_comes_over_as_it_was_sent(report: Report) -> None:
    assert messages.decode_report(messages.encode_report(report)) == report


documents = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(reports, st.data(), documents)
def test_a_report_with_any_other_part_is_refused_or_read(
    report: Report, data: st.DataObject, other: Any
) -> None:
    document = json.loads(messages.encode_report(report))
    part = data.draw(st.sampled_from(sorted(document)))
    if part == "probe" and document[part] and data.draw(st.booleans()):
        document[part][data.draw(st.sampled_from(sorted(document[part])))] = other
    else:
        document[part] = other
    with contextlib.suppress(BadDocument):
        messages.decode_report(json.dumps(document).encode())


@given(orders, st.data(), documents)
def test_an_order_with_any_other_part_is_refused_or_read(
    order: Order, data: st.DataObject, other: Any
) -> None:
    document = json.loads(messages.encode_order(order))
    part = data.draw(st.sampled_from(sorted(document)))
    if isinstance(document[part], dict) and data.draw(st.booleans()):
        inner = document[part]
        inner[data.draw(st.sampled_from(sorted(inner)))] = other
    else:
        document[part] = other
    with contextlib.suppress(BadDocument):
        messages.decode_order(json.dumps(document).encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(frame: bytes) -> None:
    with pytest.raises(BadDocument):
        messages.decode_report(frame)


def test_a_frame_without_end_is_refused() -> None:
    with pytest.raises(BadDocument, match="more than"):
        messages.decode_order(b"[" * (messages.MAX_BYTES + 1))


def test_another_version_is_named() -> None:
    with pytest.raises(BadDocument, match="nodes must run the same caovan"):
        messages.decode_order(b'{"v":%d}' % (messages.VERSION + 1))
