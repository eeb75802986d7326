"""What all parts of a cluster share."""

from __future__ import annotations

import asyncio

from caovand.daemon.cluster.part import Changed


def test_who_waits_again_and_again_is_cancelled_also_as_a_change_comes() -> None:
    """It would go on for ever otherwise, and the daemon with it."""

    async def story() -> None:
        changed = Changed()

        async def work() -> None:
            while True:
                await changed.within(3600.0)

        working = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        changed.wake()
        await asyncio.sleep(0)
        working.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert working.cancelled()

    asyncio.run(story())


def test_a_wait_ends_by_a_change_or_by_its_time_and_then_begins_anew() -> None:
    async def story() -> None:
        changed = Changed()
        changed.wake()
        await changed.within(3600.0)
        await changed.within(0.001)

    asyncio.run(story())
