"""The order of waiting requests: fair by tokens between keys and bands, without starvation."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from caovand.core.gateway.fair import WEIGHTS, FairQueue, Lane
from tests.examples import examples

LANES = [Lane(), Lane("a"), Lane("b"), Lane("c", "background"), Lane("d", "background")]


class Busy:
    """Lanes that always have requests; each costs what `tokens` draws, by a wrong estimate."""

    def __init__(self, lanes: list[Lane], seed: int) -> None:
        self.queue, self.random = FairQueue(), random.Random(seed)
        self.owner: dict[int, Lane] = {}
        self.used = dict.fromkeys(lanes, 0)
        self.last = 0
        for lane in lanes:
            for _ in range(3):
                self.add(lane)

    def add(self, lane: Lane) -> None:
        self.last += 1
        self.owner[self.last] = lane
        self.queue.push(self.last, lane, 500.0)

    def serve(self, largest: int) -> int:
        """Answer whoever is next; its lane sends another. The number that was served."""
        number = self.queue.first()
        assert number is not None
        lane = self.owner.pop(number)
        self.queue.take(number)
        tokens = self.random.randint(1, largest)
        self.queue.charge(lane, tokens - 500.0)
        self.used[lane] += tokens
        self.add(lane)
        return number


@examples(20)
@given(st.integers(2, 5), st.integers(0, 999))
def test_keys_that_are_always_busy_get_the_same_tokens(keys: int, seed: int) -> None:
    lanes = [Lane(str(n)) for n in range(keys)]
    busy = Busy(lanes, seed)
    # However much the sizes of requests differ.
    for n in range(150 * keys):
        busy.serve(20 if n % 2 else 1000)
    used = busy.used.values()
    assert max(used) < 1.1 * min(used) + 1000


def test_bands_share_by_their_weights_and_background_never_starves() -> None:
    busy = Busy([Lane("a"), Lane("b"), Lane("c", "background")], 1)
    for _ in range(2000):
        busy.serve(1000)
    share = busy.used[Lane("c", "background")] / sum(busy.used.values())
    fair = WEIGHTS["background"] / sum(WEIGHTS.values())
    assert abs(share - fair) < 0.1 * fair


def test_a_key_that_floods_lets_a_newcomer_pass_at_once() -> None:
    queue = FairQueue()
    for number in range(1, 101):
        queue.push(number, Lane("flood"), 100.0)
    for _ in range(20):
        first = queue.first()
        assert first
        queue.take(first)
    queue.push(101, Lane("new"), 100.0)
    served = []
    for _ in range(4):
        first = queue.first()
        assert first
        served.append(first)
        queue.take(first)
    assert 101 in served[:2]


def test_pauses_earn_nothing_and_debts_are_not_forgotten() -> None:
    queue = FairQueue()
    for number in (1, 2, 3):
        queue.push(number, Lane("a"), 1000.0)
        queue.take(number)
    queue.push(4, Lane("a"), 1000.0)
    queue.push(5, Lane("b"), 10.0)  # it did nothing until now
    queue.push(6, Lane("b"), 10.0)
    queue.take(5)
    queue.charge(Lane("b"), 5000.0)  # its answer was far longer than expected
    assert queue.first() == 4


steps = st.lists(
    st.tuples(st.sampled_from(["push", "take", "remove"]), st.integers(0, 999)), max_size=60
)


@given(steps)
def test_each_request_is_there_until_it_is_taken_or_removed(todo: list[tuple[str, int]]) -> None:
    queue, there, last = FairQueue(), set[int](), 0
    for what, which in todo:
        if what == "push":
            last += 1
            there.add(last)
            queue.push(last, LANES[which % len(LANES)], which)
        elif there:
            first = queue.first()
            assert first in there
            number = first if what == "take" else sorted(there)[which % len(there)]
            (queue.take if what == "take" else queue.remove)(number)
            there.remove(number)
        assert (list(queue), len(queue)) == (sorted(there), len(there))
    for _ in range(len(there)):
        first = queue.first()
        assert first is not None
        queue.take(first)
    assert queue.first() is None


@given(steps)
def test_the_oldest_request_waits_for_a_bounded_amount_of_work(todo: list[tuple[str, int]]) -> None:
    busy = Busy(LANES, len(todo))
    for _, which in todo:
        busy.add(LANES[which % len(LANES)])
    oldest, served = min(busy.owner), 0
    while busy.serve(1000) != oldest:
        served += 1
        assert served < 100 * len(LANES)
