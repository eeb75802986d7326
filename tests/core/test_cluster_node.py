"""A node's facts reach the head intact; anything else is refused in words."""

from __future__ import annotations

import bisect
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.cluster.messages import MAX_BYTES, MAX_TEXT, Report, encode_report
from caovand.core.cluster.node import NodeCard, NodeFacts, assume_nodes, fits_report, node_of
from caovand.core.cluster.node_document import (
    from_document,
    public_facts,
    read_shown_cards,
    to_document,
)
from caovand.core.config.services import ClusterSection
from caovand.core.document import BadDocument
from caovand.core.facts.inventory import Gpu
from caovand.core.facts.occupancy import in_use
from caovand.core.healing.failure import Finding
from tests.core.nodes import HEAD, T4
from tests.core.test_any_input import JSON
from tests.examples import examples

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=256)
NAMED = WORDS.filter(bool)
SIZES = st.integers(0, 1 << 40)
CARDS = st.builds(
    lambda card, free: replace(card, free_mib=min(free, card.memory_mib)),
    st.builds(
        NodeCard, NAMED, SIZES, st.tuples(st.integers(1, 99), st.integers(0, 99)), st.just(0)
    ),
    SIZES,
)
NODES = st.builds(
    NodeFacts,
    name=NAMED,
    caovan=NAMED,
    engine=NAMED,
    version=NAMED,
    torch=WORDS,
    cuda=WORDS,
    nccl=WORDS,
    ray=WORDS,
    flashinfer=WORDS,
    plugin=WORDS,
    nvcc=st.booleans(),
    jit_cache=WORDS,
    kernels=st.lists(WORDS, max_size=3).map(tuple),
    python=WORDS,
    driver=WORDS,
    cards=st.lists(CARDS, max_size=64).map(tuple),
    address=st.ip_addresses().map(str),
    interface=NAMED,
    mtu=SIZES,
    speed_mbit=SIZES,
    listens_at=st.ip_addresses().map(str),
    firewall=WORDS,
    rdma=st.dictionaries(WORDS, WORDS, max_size=3),
    memlock_mib=st.none() | SIZES,
    p2p=st.none() | st.booleans(),
    ram_mib=SIZES,
    shm_free_mib=SIZES,
    model_folder=WORDS,
    model=st.dictionaries(WORDS, WORDS, max_size=5),
    clock=st.floats(0, 1 << 40),
)


def document(**changes: Any) -> dict[str, Any]:
    return {**to_document(HEAD), **changes}


@examples(200)
@given(NODES)
def test_what_a_node_reports_is_what_the_head_reads(node: NodeFacts) -> None:
    assert from_document(json.loads(json.dumps(to_document(node)))) == node


@pytest.mark.parametrize(
    ("used", "counts"), [(0, 0), (1023, 0), (1024, 1024), (1025, 2048), (15350, 15360)]
)
def test_what_others_use_of_a_card_counts_in_whole_steps(used: int, counts: int) -> None:
    """A little more or less of it is no other plan, and what a desktop uses is none of its
    business."""
    (gpu,) = node_of("n2", (replace(T4, free_mib=T4.memory_mib - used),)).gpus
    assert gpu.total_mib - gpu.free_mib == counts


def test_what_others_use_of_equal_cards_is_one_entry_with_them() -> None:
    (entry,) = public_facts(replace(HEAD, cards=(replace(T4, free_mib=5000), T4)))["cards"]
    assert (entry["count"], entry["occupied_mib"]) == (2, [11264, 0])
    for wrong in ([0], {}, [0, 15361], [0, "1"]):
        with pytest.raises(BadDocument, match=r"cards\[0\].occupied_mib.* is"):
            read_shown_cards([{**entry, "occupied_mib": wrong}])


@examples(50)
@given(NODES)
def test_the_cards_that_are_shown_are_read_back_in_their_order(node: NodeFacts) -> None:
    cards = read_shown_cards(json.loads(json.dumps(public_facts(node)["cards"])))
    assert [card.kind for card in cards] == [card.kind for card in node.cards]
    assert node_of("n2", cards) == node_of("n2", node.cards)


def test_equal_cards_are_one_entry_and_bad_counts_are_refused() -> None:
    (entry,) = public_facts(HEAD)["cards"]
    assert entry["count"] == 2
    for count in (0, 65, True, "2"):
        with pytest.raises(BadDocument, match=r"cards\[0\].count is"):
            read_shown_cards([{**entry, "count": count}])
    with pytest.raises(BadDocument, match=r"cards\[1\].count makes more than 64 cards"):
        read_shown_cards([{**entry, "count": 32}, {**entry, "count": 33}])


def test_the_document_is_plain_and_readable() -> None:
    made = document()
    assert made["cards"] == [CARD, CARD]
    assert (made["name"], made["mtu"], made["clock"]) == ("head1", 9000, 1764000000.25)


def test_the_largest_document_is_taken() -> None:
    model = {f"{number:0256}": "d" * 256 for number in range(2000)}
    largest = replace(HEAD, cards=(T4,) * 64, model=model, model_folder="/" * 4096)
    assert from_document(to_document(largest)) == largest


def shards(count: int, longer: int = 0) -> list[str]:
    return [f"model-{'0' * longer}{n:05}-of-{count:05}.safetensors" for n in range(count)]


def test_the_largest_report_that_is_sent_is_also_taken() -> None:
    """libzmq ends the connection of whoever sends more, and nobody would know why."""
    assert fits_report(shards(1800))
    for longer in (0, 220):
        beyond = bisect.bisect(range(2500), 0, key=lambda n: not fits_report(shards(n, longer)))
        count = beyond - 1
        card = replace(T4, name="NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition")
        devices = {f"mlx5_{number}": "InfiniBand" for number in range(64)}
        model = dict.fromkeys(shards(count, longer), "d" * 64)
        facts = replace(
            HEAD, cards=(card,) * 64, rdma=devices, model=model, model_folder="/" * 4096
        )
        report = Report(
            "n" * 64, "b" * 16, to_document(facts), state="s" * MAX_TEXT, failed="f" * 40,
            finding=Finding("hang", "t" * MAX_TEXT, "serving", captures={"text": "c" * MAX_TEXT}),
            ranks=tuple((f"PP1_TP{n}", 4194000 + n, n) for n in range(64)),
        )  # fmt: skip
        assert len(encode_report(report)) <= MAX_BYTES


@st.composite
def hostile(draw: st.DrawFn) -> Any:
    """A node's document with some values, of it or of its first card, replaced."""
    made = document()
    places = [made, made["cards"][0], made["model"], made["rdma"]]
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places))
        place[draw(st.sampled_from([*sorted(place), "new"]))] = draw(JSON)
    return made


@examples(500)
@given(st.one_of(hostile(), JSON))
def test_any_document_is_facts_or_refused(whatever: Any) -> None:
    try:
        facts = from_document(whatever)
    except BadDocument:
        return
    assert from_document(json.loads(json.dumps(to_document(facts), allow_nan=False))) == facts


CARD = {"name": "Tesla T4", "memory_mib": 15360, "compute_capability": "7.5", "free_mib": 15360}
NUMBER = "is not a whole number from 0 to 1099511627776"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mtu": "1500"}, f"mtu {NUMBER}"),
        ({"mtu": True}, f"mtu {NUMBER}"),
        ({"mtu": 1500.0}, f"mtu {NUMBER}"),
        ({"mtu": -1}, f"mtu {NUMBER}"),
        ({"shm_free_mib": 10**400}, f"shm_free_mib {NUMBER}"),
        ({"ram_mib": None}, f"ram_mib {NUMBER}"),
        ({"clock": float("nan")}, "clock is not a number from 0 to 1099511627776"),
        ({"clock": float("inf")}, "clock is not a number from 0 to 1099511627776"),
        ({"clock": 10**400}, "clock is not a number from 0 to 1099511627776"),
        ({"clock": True}, "clock is not a number from 0 to 1099511627776"),
        ({"torch": None}, "torch is not a string of at most 256 characters"),
        ({"torch": "2" * 257}, "torch is not a string of at most 256 characters"),
        ({"model_folder": "/" * 4097}, "model_folder is not a string of at most 4096 characters"),
        ({"name": ""}, "name is empty"),
        ({"name": "a\x1b[2J"}, "name has control characters"),
        ({"name": "\ud800"}, "name has control characters"),
        ({"address": "head1"}, "address is not an IP address"),
        ({"address": ""}, "address is not an IP address"),
        ({"listens_at": "head1"}, "listens_at is not an IP address"),
        ({"speed_mbit": -1}, f"speed_mbit {NUMBER}"),
        ({"memlock_mib": "unlimited"}, f"memlock_mib {NUMBER}"),
        ({"p2p": 1}, "p2p is neither true nor false"),
        ({"nvcc": 1}, "nvcc is neither true nor false"),
        ({"kernels": "sm75 sampling"}, "kernels is not a list of 0 to 64 entries"),
        ({"kernels": [""] * 65}, "kernels is not a list of 0 to 64 entries"),
        ({"kernels": [5]}, "kernels[0] is not a string of at most 256 characters"),
        ({"rdma": ["mlx5_0"]}, "rdma is not a table of at most 64 entries"),
        ({"rdma": dict.fromkeys(map(str, range(65)), "Ethernet")},
         "rdma is not a table of at most 64 entries"),
        ({"rdma": {"mlx5_0": 1}},
         "rdma.mlx5_0 is not a string of at most 256 characters"),
        ({"cards": {}}, "cards is not a list of 0 to 64 entries"),
        ({"cards": [CARD] * 65}, "cards is not a list of 0 to 64 entries"),
        ({"cards": ["T4"]}, "cards[0] is not a table"),
        ({"cards": [CARD, {**CARD, "uuid": ""}]}, "cards[1].uuid is unknown"),
        ({"cards": [{"name": "T4"}]}, "cards[0].memory_mib is missing"),
        ({"cards": [{**CARD, "name": ""}]}, "cards[0].name is empty"),
        (
            {"cards": [{**CARD, "compute_capability": "sm75"}]},
            'cards[0].compute_capability is not of the form "7.5"',
        ),
        ({"cards": [{**CARD, "free_mib": 15361}]}, "cards[0].free_mib is more than 15360"),
        ({"model": []}, "model is not a table of at most 2000 entries"),
        ({"model": dict.fromkeys(map(str, range(2001)), "d")},
         "model is not a table of at most 2000 entries"),
        ({"model": {"a" * 257: "d"}},
         "a name in model is not a string of at most 256 characters"),
        ({"model": {"a": 5}}, "model.a is not a string of at most 256 characters"),
        ({"uuid": "x"}, "uuid is unknown"),
        ({"\x1b]0;": "x"}, "\\x1b]0; is unknown"),
        ({5: "x"}, "a key is unknown"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(BadDocument) as refused:
        from_document({**document(), **changes})
    assert str(refused.value) == text


@pytest.mark.parametrize("name", sorted(to_document(HEAD)))
def test_nothing_may_be_missing(name: str) -> None:
    made = document()
    del made[name]
    with pytest.raises(BadDocument, match=f"^{name} is missing$"):
        from_document(made)


def test_a_node_in_unified_memory_keeps_its_hosts_part() -> None:
    gb10 = Gpu(0, "NVIDIA GB10", (12, 1), 124_546, 90_000, unified=True)
    section = replace(ClusterSection(), role="head", nodes=2)
    ((other,),) = (node.gpus for node in assume_nodes(section, (gb10,)))
    assert other.unified
    assert 0 <= in_use(other) < 1024  # occupancy is reported in steps
    own = replace(gb10, compute_capability=(9, 0), unified=False)
    ((other,),) = (node.gpus for node in assume_nodes(section, (own,)))
    assert (other.unified, other.free_mib) == (False, 124_546)
