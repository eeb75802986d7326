"""Deals layers to pipeline stages whose cards differ, by what each stage leaves and how long it
takes. It knows neither models nor cards."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

Measure = Callable[[int, int, int], float]
"""A figure of a stage with the layers from the second number to before the third."""
HALVINGS = 40


def deal(
    own: Sequence[int],
    anchors: Sequence[int],
    room: Measure,
    seconds: Measure,
    enough: float,
) -> tuple[int, ...]:
    """Layers of each stage: the least room that one leaves is as large as it can be, and, where
    several dealings have that, the slowest is as fast as it can be. More room than `enough` is
    worth no more.

    Every stage needs one of the `anchors`, layers in order. `own` is kept where it is as good as
    any. With more layers a stage must never leave more room, nor take less time.
    """
    stages, layers = len(own), sum(own)

    def dealt(fits: Callable[[int, int, int], bool]) -> tuple[int, ...] | None:
        return filled(layers, stages, anchors, fits)

    def capped(stage: int, start: int, end: int) -> float:
        return min(room(stage, start, end), enough)

    def least(found: Sequence[int]) -> float:
        return min(capped(*one) for one in spans(found))

    def pace(found: Sequence[int]) -> float:
        return -max(seconds(*one) for one in spans(found))

    kept = tuple(own) if anchored(own, anchors) else dealt(lambda *one: True)
    if kept is None:
        return tuple(own)
    roomiest = _best(kept, enough, least, lambda limit: dealt(lambda *one: capped(*one) > limit))
    bound = least(roomiest)
    kept = kept if least(kept) == bound else roomiest
    return _best(
        kept,
        0.0,
        pace,
        lambda limit: dealt(lambda *one: capped(*one) >= bound and -seconds(*one) > limit),
    )


def spans(dealt: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Each stage with its first layer and the one after its last."""
    end = 0
    for stage, count in enumerate(dealt):
        yield stage, end, end + count
        end += count


def anchored(dealt: Sequence[int], anchors: Sequence[int]) -> bool:
    """Whether every stage has one of these layers."""
    return all(
        bisect_left(anchors, start) < bisect_left(anchors, end) for _, start, end in spans(dealt)
    )


def filled(
    layers: int, stages: int, anchors: Sequence[int], fits: Callable[[int, int, int], bool]
) -> tuple[int, ...] | None:
    """A dealing whose every stage has an anchor and fits, None if there is none.

    A stage fits the more easily, the later it begins: of the places where those before it can end,
    only the last one before its last anchor counts.
    """
    begins: list[dict[int, int]] = []  # of each stage, by where it can end
    ends = [0]
    for stage in range(stages):
        found: dict[int, int] = {}
        for end in range(1, layers + 1) if stage < stages - 1 else (layers,):
            anchor = anchors[bisect_left(anchors, end) - 1] if anchors[0] < end else -1
            at = bisect_right(ends, anchor) - 1
            if at >= 0 and fits(stage, ends[at], end):
                found[end] = ends[at]
        begins.append(found)
        ends = list(found)
    if layers not in begins[-1]:
        return None
    dealt, end = [], layers
    for found in reversed(begins):
        dealt.append(end - found[end])
        end = found[end]
    return tuple(reversed(dealt))


def _best(
    start: tuple[int, ...],
    ceiling: float,
    worth: Callable[[Sequence[int]], float],
    better: Callable[[float], tuple[int, ...] | None],
) -> tuple[int, ...]:
    """The dealing of the greatest worth, which is at most the ceiling; `better` finds one above a
    limit.

    Halving comes close; then every find has to be better than the one before, until none is.
    """
    best, floor = start, worth(start)
    for _ in range(HALVINGS):
        middle = (floor + ceiling) / 2
        if not floor < middle < ceiling:
            break
        found = better(middle)
        if found is None:
            ceiling = middle
        else:
            best, floor = found, worth(found)
    while (found := better(floor)) is not None:
        best, floor = found, worth(found)
    return best
