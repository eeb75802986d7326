"""Layers are dealt so that no exchange would leave more room, nor make the slowest stage faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.engines.vllm.memory.shards import own_partition, partition, ranges
from caovand.engines.vllm.sizing.partition import deal, has_anchors, spans
from tests.examples import examples


@dataclass(frozen=True)
class Case:
    """Layers of these sizes, and stages with so much memory, fixed needs and speed."""

    sizes: tuple[int, ...]
    memory: tuple[int, ...]
    fixed: tuple[int, ...]
    speed: tuple[int, ...]
    anchors: tuple[int, ...]
    enough: float

    def room(self, stage: int, start: int, end: int) -> float:
        return self.memory[stage] - self.fixed[stage] - sum(self.sizes[start:end])

    def seconds(self, stage: int, start: int, end: int) -> float:
        return sum(self.sizes[start:end]) / self.speed[stage]

    def worth(self, dealt: Sequence[int]) -> tuple[float, float]:
        """The least room, and the pace of the slowest stage; the larger, the better."""
        room = min(min(self.room(*one), self.enough) for one in spans(dealt))
        return room, -max(self.seconds(*one) for one in spans(dealt))

    @property
    def own(self) -> tuple[int, ...]:
        return own_partition(len(self.sizes), len(self.memory))

    def dealt(self) -> tuple[int, ...]:
        return deal(self.own, self.anchors, self.room, self.seconds, self.enough)

    def every(self) -> Iterator[tuple[int, ...]]:
        """All ways to deal them."""
        for cuts in combinations(range(1, len(self.sizes)), len(self.memory) - 1):
            yield tuple(end - start for start, end in pairwise((0, *cuts, len(self.sizes))))


@st.composite
def cases(draw: st.DrawFn, most_layers: int = 9) -> Case:
    stages = draw(st.integers(2, 4))
    layers = draw(st.integers(stages, most_layers))
    sizes = draw(st.lists(st.integers(0, 30), min_size=layers, max_size=layers))
    each = {"min_size": stages, "max_size": stages}
    alone = draw(st.booleans())
    anchors = range(layers) if alone else range(draw(st.integers(0, 2)), layers, 2)
    return Case(
        sizes=tuple(sizes),
        memory=tuple(draw(st.lists(st.integers(0, 200), **each))),
        fixed=tuple(draw(st.lists(st.integers(0, 40), **each))),
        speed=tuple(draw(st.lists(st.integers(1, 9), **each))),
        anchors=tuple(anchors),
        enough=draw(st.sampled_from([1000.0, 60.0, 5.0])),
    )


@examples(300)
@given(case=cases())
def test_no_dealing_is_better(case: Case) -> None:
    found = case.dealt()
    assert sum(found) == len(case.sizes)
    assert min(found) >= 1
    sound = [way for way in case.every() if has_anchors(way, case.anchors)]
    if sound:
        assert has_anchors(found, case.anchors)
        assert case.worth(found) == max(map(case.worth, sound))
    if case.own in sound and case.worth(case.own) == case.worth(found):
        assert found == case.own


@examples(100)
@given(case=cases(most_layers=96))
def test_no_exchange_of_one_layer_is_better(case: Case) -> None:
    found = case.dealt()
    assert sum(found) == len(case.sizes)
    for at in range(len(found) - 1):
        for one in (1, -1):
            other = list(found)
            other[at], other[at + 1] = other[at] + one, other[at + 1] - one
            if min(other) > 0 and has_anchors(other, case.anchors):
                assert case.worth(other) <= case.worth(found)


def test_twice_the_memory_gets_twice_the_layers() -> None:
    """By hand: 30 layers of 10; 210 and 110 hold 20 and 10, and leave 10 each."""
    case = Case((10,) * 30, (210, 110), (0, 0), (1, 1), tuple(range(30)), 1000.0)
    assert case.own == (15, 15)
    assert case.dealt() == (20, 10)
    assert case.worth((20, 10))[0] == 10
    assert case.worth((19, 11))[0] == 0


def test_where_memory_is_enough_speed_decides() -> None:
    """By hand: 9 layers, one card twice as fast: 6 and 3 take it as long."""
    case = Case((10,) * 9, (500, 500), (0, 0), (2, 1), tuple(range(9)), 50.0)
    assert case.dealt() == (6, 3)
    assert case.worth((6, 3)) == (50.0, -30.0)


@pytest.mark.parametrize(
    ("layers", "stages", "dealt"),
    [
        (64, 2, (32, 32)), (65, 2, (33, 32)), (62, 4, (15, 16, 16, 15)), (10, 4, (2, 3, 3, 2)),
        (11, 4, (3, 3, 3, 2)), (80, 3, (27, 27, 26)), (61, 8, (7, 7, 8, 8, 8, 8, 8, 7)),
    ],
)  # fmt: skip
def test_vllms_own_rule(layers: int, stages: int, dealt: tuple[int, ...]) -> None:
    """As get_pp_indices of vLLM 0.32 deals them."""
    assert own_partition(layers, stages) == partition(None, layers, stages) == dealt


@given(layers=st.integers(1, 200), stages=st.integers(1, 32))
def test_vllms_own_rule_deals_evenly(layers: int, stages: int) -> None:
    found = own_partition(layers, stages)
    assert sum(found) == layers
    assert max(found) - min(found) <= 1
    assert found[-1] == min(found)
    assert partition(None, layers, stages) == (found if layers >= stages else ())
    assert [start for start, _ in ranges(found)] == [sum(found[:at]) for at in range(stages)]


@pytest.mark.parametrize("text", ["40,25", "40", "64,0", "65,-1", "a,b", "", "40,20,4", "32;32"])
def test_a_text_that_vllm_refuses_deals_nothing(text: str) -> None:
    assert partition(text, 64, 2) == ()
    assert partition(" 40, 24", 64, 2) == (40, 24)
