"""No text, whoever wrote it, keeps one of our patterns busy: `re` blocks the whole process."""

from __future__ import annotations

import functools
import math
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from tests.patterns.collect import Found, everything
from tests.patterns.hostile import pumps, text

SIZES = (16, 22, 24, 32, 64, 256, 1 << 10, 4 << 10, 16 << 10)  # what explodes shows on the small
LIMIT_S = 0.05
QUICK_S = 0.001  # what takes no longer is not looked at twice
GROWTH = 8.0  # times as long for 4 times the text; 4 is linear, 16 quadratic
ROUNDS = 5
ATTEMPTS = 4  # a busy machine may slow one size alone; what is quadratic is so each time
PARTS = 8


def took(found: Found, text: Any, rounds: int = 1) -> float:
    """CPU seconds, the best of several times."""
    methods: dict[str, Callable[[Any], object]] = {
        "match": found.pattern.match,
        "fullmatch": found.pattern.fullmatch,
        "search": lambda text: deque(found.pattern.finditer(text), maxlen=0),
    }
    call, best = methods[found.method], math.inf
    for _ in range(rounds):
        began = time.thread_time()
        call(text)
        best = min(best, time.thread_time() - began)
    return best


def problem(found: Found, head: str, pump: str) -> str:
    """Why the pattern is not linear on texts of this pump; empty where it is."""

    def timed(size: int, rounds: int = 1) -> float:
        made: Any = text(head, pump, size)
        if isinstance(found.pattern.pattern, bytes):
            made = made.encode()
        return took(found, made, rounds)

    what = f"{head!r:.120} + {pump!r:.120} * n"
    for size in SIZES:
        seconds = timed(size)
        # Once more: the first time may have met a collection of garbage.
        near = size == SIZES[-1] and seconds < 2 * LIMIT_S
        if seconds > LIMIT_S and timed(size, ROUNDS if near else 1) > LIMIT_S:
            return f"{what}: {seconds * 1000:.0f} ms for {size} characters"
    growth = 0.0
    for _ in range(ATTEMPTS if seconds > QUICK_S else 0):
        seconds = timed(SIZES[-1], ROUNDS)
        growth = seconds / timed(SIZES[-2], ROUNDS)
        if seconds <= QUICK_S or growth <= GROWTH:
            return ""
    if growth > GROWTH:
        return f"{what}: {seconds * 1000:.1f} ms, {growth:.1f} times that of a quarter"
    return ""


# They are collected by who runs the tests: to read every module takes a second.
@functools.cache
def collected() -> list[Found]:
    return everything()


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_a_pattern_takes_no_longer_for_a_hostile_text_than_for_any_other(part: int) -> None:
    slow = [
        f"{found}\n{told}"
        for found in collected()[part::PARTS]
        if (told := next(filter(None, (problem(found, *one) for one in pumps(found.pattern))), ""))
    ]
    assert not slow, "\n".join(slow)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:a+)+b",
        r"torch_\S*.*\b(?:x|y)",
        r"\\*[\"']x",
        r"\w+://",
        r"(?:\\.|.){1,4000}'",
        r" *x",
        r"\s*[+-]?0*[1-9]",
    ],
)
def test_the_test_knows_a_slow_one(pattern: str) -> None:
    slow = Found("here", re.compile(pattern), "search")
    assert any(problem(slow, *one) for one in pumps(slow.pattern))


def test_it_looks_at_all_of_them() -> None:
    where = " ".join(found.where for found in collected())
    assert len(collected()) > 150
    for name in ("signatures", "phases", "json_lines", "incident", "probe", "lock", "plugin"):
        assert name in where
