"""How many pieces of bodies are read in a turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator

import pytest

from caovand.core.gateway.body import STEPS, Fields, fields
from caovand.gateway import bodies
from caovand.gateway.bodies import PIECES_AT_ONCE, BodyReader
from tests.patience import LIMIT_S

PIECES, BODIES = 40, 20
LONG = b'{"model": "m", "messages": [' + b'"",' * (PIECES * STEPS) + b'""]}'


def test_many_long_bodies_are_read_a_few_pieces_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, further, faults = 0, Counter[int](), list[object]()

    def counted(body: bytes) -> Generator[Fields | None, None, None]:
        for found in fields(body):
            yield found
            further[turn] += found is None

    monkeypatch.setattr(bodies, "fields", counted)

    async def all_of_it() -> list[Fields]:
        nonlocal turn
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        reader = BodyReader()
        reading = asyncio.gather(*(reader.read(LONG) for _ in range(BODIES)))
        left = asyncio.ensure_future(reader.read(LONG))
        while not reading.done():
            turn += 1
            await asyncio.sleep(0)
            left.cancel()
        return await reading

    found = asyncio.run(asyncio.wait_for(all_of_it(), LIMIT_S))
    assert [one.model for one in found] == ["m"] * BODIES
    assert sum(further.values()) >= PIECES * BODIES
    assert max(further.values()) <= 2 * PIECES_AT_ONCE
    assert faults == []
