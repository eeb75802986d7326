"""Some fuzzed requests of `make bench-hostile`: none is read as two, none triggers a bug."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.bench import hostile
from tests.gateway.world import HELLO, world
from tests.patience import LIMIT_S, soon

AUTHORIZED = {"Authorization": f"Bearer {hostile.KEY}"}


@pytest.mark.parametrize("count", [80, pytest.param(5000, marks=pytest.mark.long)])
def test_fuzzed_requests_end_without_a_fault_and_leave_nothing(tmp_path: Path, count: int) -> None:
    async def test() -> None:
        async with world(tmp_path, key=hostile.KEY) as one:
            for attack in hostile.attacks(count, 35):
                status = await asyncio.to_thread(hostile.send, one.port, attack)
                assert not status.startswith("5"), (status, attack)
            assert not [path for _, path, _, _ in one.engine.asked if path == "/v1/hidden"]
            assert (await one.post(json=HELLO, headers=AUTHORIZED))[0] == 200
            await soon(lambda: one.daemon.reports[-1]["waiting"] == 0)
            await soon(lambda: one.daemon.reports[-1]["at_engine"] == 0)

    asyncio.run(asyncio.wait_for(test(), LIMIT_S * 5))
