"""Other programs on our cards, distinguished from ours."""

from __future__ import annotations

from dataclasses import replace

from caovand.core.facts.occupancy import (
    by_others,
    card_of,
    describe_withheld,
    find_growth,
    in_use,
    taken_since,
    used_by_others,
    with_memory_back,
)
from caovand.core.health.observation import GpuSample
from tests.core.machines import turing


def sample(*users: tuple[int, int]) -> GpuSample:
    return GpuSample(0, 0, 22_527, None, None, None, 0.0, users=users)


def test_what_a_stranger_takes_is_told_and_ours_is_not() -> None:
    before = by_others([sample((1, 9_000), (2, 100))], {1})
    now = by_others([sample((1, 18_000), (2, 3_000), (3, 50))], {1})
    assert before is not None
    assert now is not None
    assert find_growth(before, now) == {(0, 2): 3_000}


def test_where_ours_is_not_found_nobody_is_blamed() -> None:
    assert by_others([sample((4711, 9_000))], {1}) is None


def test_memory_is_back_when_as_much_is_free_as_before() -> None:
    (card,) = turing(1)
    assert describe_withheld([card], [replace(card, free_mib=card.free_mib - 100)], {1}) == ""
    told = describe_withheld([card], [replace(card, free_mib=card.free_mib - 9_000)], {1})
    assert told == "GPU 0: 9000 MiB have not been freed"


def test_memory_of_a_dead_process_that_is_still_listed_is_not_back() -> None:
    (card,) = turing(1)
    now = replace(card, users=((1, "VLLM::Worker", 0),))
    assert "still used by pid 1" in describe_withheld([card], [now], {1})


def test_unified_memory_leaves_the_host_its_reserve_and_is_never_missed() -> None:
    card = replace(turing(1)[0], total_mib=124_546, free_mib=100_000, unified=True)
    assert in_use(card) == 124_546 - 124_546 // 8 - 100_000
    ours = replace(card, users=((1, "VLLM::Worker", 90_000),))
    assert in_use(with_memory_back([ours], {1})[0]) == 0
    assert describe_withheld([card], [replace(card, free_mib=50_000)], {1}) == ""
    assert "pid 1" in describe_withheld([card], [replace(ours, free_mib=50_000)], {1})


def test_what_others_took_meanwhile_is_theirs() -> None:
    (card,) = turing(1)
    now = replace(card, free_mib=card.free_mib - 5_000, users=((2, "python", 5_000),))
    assert describe_withheld([card], [now], {1}) == ""


def test_the_card_of_a_process_is_where_it_has_most() -> None:
    first, second = sample((1, 300), (2, 9_000)), replace(sample((1, 8_000)), index=3)
    assert [card_of(pid, [first, second]) for pid in (1, 2, 3)] == [3, first.index, None]


def test_where_the_driver_does_not_tell_how_much_the_card_of_two_is_unknown() -> None:
    first, second = sample((1, 0), (2, 0)), replace(sample((1, 0)), index=3)
    assert [card_of(pid, [first, second]) for pid in (1, 2)] == [None, first.index]


def test_who_took_memory_since_the_plan_was_made_is_named_with_its_card() -> None:
    before = [replace(gpu, users=((5, "desktop", 900),)) for gpu in turing(2)]
    engine, steady, new = (1, "VLLM::Worker", 9_000), (5, "desktop", 1_000), (7, "python", 4_000)
    now = [replace(gpu, users=(engine, steady, new)) for gpu in turing(3)]
    found = taken_since(before[1:], now, {1})
    assert list(map(str, found)) == ["python (pid 7) has allocated 4000 MiB of GPU 1"]
    assert taken_since(before, before, {1}) == []


def test_what_is_not_ours_includes_what_the_driver_keeps() -> None:
    held = replace(sample((1, 9_000), (2, 4_000)), used_mib=13_615)
    assert used_by_others([held], {1}) == {0: 4_615}
