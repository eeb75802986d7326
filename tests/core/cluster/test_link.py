"""What head and worker tell each other of a link, and what is known of it after several trials."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.cluster.link import (
    Link,
    Outcome,
    Trial,
    outcome_from,
    rounds,
    shown,
    to_document,
    trial_from,
    words,
)
from caovand.core.cluster.plan_document import BadDocument
from tests.core.cluster.test_messages import outcomes, trials
from tests.core.test_any_input import JSON

TRIAL = Trial("token", "10.0.0.1", 7071, True)
WORKS = Link("10.0.0.1", 7071, up_bytes_s=1e9, down_bytes_s=2e9)


@given(st.none() | trials, st.none() | outcomes)
def test_documents_come_over_as_they_were(trial: Trial | None, outcome: Outcome | None) -> None:
    assert trial_from(json.loads(json.dumps(to_document(trial)))) == trial
    assert outcome_from(json.loads(json.dumps(to_document(outcome)))) == outcome


@given(JSON, st.sampled_from(sorted(vars(Outcome("t")))))
def test_any_other_part_is_refused_or_read(other: Any, name: str) -> None:
    for document in (other, {**(to_document(Outcome("t")) or {}), name: other}):
        try:
            found = outcome_from(document)
        except BadDocument:
            continue
        assert found is None or outcome_from(to_document(found)) == found


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"port": 1 << 16}, "port of trial is no int, or out of range"),
        ({"port": True}, "port of trial is no int, or out of range"),
        ({"host": "h" * 257}, "host of trial is no str, or out of range"),
        ({"host": "a\nb"}, "host of trial is no str, or out of range"),
        ({"part": "both"}, "part of trial is none of connect, listen"),
        ({"transfer": 1}, "transfer of trial is no bool, or out of range"),
        ({"more": 1}, "trial has other parts"),
    ],
)
def test_a_refusal_names_the_part(change: dict[str, Any], text: str) -> None:
    with pytest.raises(BadDocument, match=text):
        trial_from({**(to_document(TRIAL) or {}), **change})


@given(st.text(), st.text())
def test_each_word_is_for_one_side_of_one_connection(one: str, other: str) -> None:
    tokens = {one, other}
    found = {word for token in tokens for word in words(token)}
    assert len(found) == 2 * len(tokens)
    assert {len(word) for word in found} == {32}


@pytest.mark.parametrize(
    "change",
    [
        {"to_head": "refused"},
        {"to_worker": "refused"},
        {"to_own": "refused"},
        {"own_deaf": "it has no such address"},
        {"up_bytes_s": 0.0},
        {"down_bytes_s": 0.0},
        {"up_bytes_s": None, "down_bytes_s": None},
    ],
)
def test_a_link_works_once_data_came_both_ways(change: dict[str, Any]) -> None:
    assert WORKS.works
    assert not replace(WORKS, **change).works


def test_figures_stay_until_there_are_others() -> None:
    again = Link("10.0.0.1", 7071, connect_s=0.5)
    assert again.after(None) == again
    assert again.after(WORKS) == replace(WORKS, connect_s=0.5)
    assert replace(WORKS, up_bytes_s=3e9).after(WORKS).up_bytes_s == 3e9
    assert not replace(again, to_head="refused").after(WORKS).works


def test_of_repeated_figures_the_better_ones_count() -> None:
    before = replace(WORKS, up_bytes_s=1e9, down_bytes_s=2e9, connect_s=2e-4)
    after = replace(WORKS, up_bytes_s=5e8, down_bytes_s=3e9, connect_s=1e-4).after(before)
    assert (after.up_bytes_s, after.down_bytes_s, after.connect_s) == (1e9, 3e9, 1e-4)
    lost = replace(WORKS, up_bytes_s=0.0).after(before)
    assert not lost.works, "packets that are lost now are not made up for"
    tried = Link("10.0.0.1", 7071, connect_s=1e-5).after(before)
    assert tried == before, "a trial without a transfer changes no plan"


@given(st.integers(0, 20))
def test_every_two_peers_meet_once_and_nobody_twice_in_a_round(count: int) -> None:
    played = list(rounds(range(count)))
    for pairs in played:
        names = [name for pair in pairs for name in pair]
        assert len(names) == len(set(names))
    met = [pair for pairs in played for pair in pairs]
    assert sorted(met) == list(combinations(range(count), 2))
    assert len(played) <= count


def test_a_link_is_shown_by_its_figures() -> None:
    assert shown(None) is None
    assert shown(WORKS) == {
        "works": True, "connect_s": 0.0, "to_head_bytes_s": 1e9, "from_head_bytes_s": 2e9,
    }  # fmt: skip
