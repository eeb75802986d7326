"""Background tasks: cancelled when they are no longer needed, faults reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from caovand.daemon.tasks import Task, Tasks, cancel
from tests.patience import LIMIT_S, turns


def run(story: Callable[[Tasks, list[BaseException]], Awaitable[None]]) -> None:
    async def whole() -> None:
        faults: list[BaseException] = []
        await story(Tasks(faults.append), faults)

    asyncio.run(whole())


async def forever() -> None:
    await asyncio.Event().wait()


async def cancelled(task: Task) -> bool:
    await asyncio.wait([task], timeout=LIMIT_S)
    return task.cancelled()


def test_a_cancelled_task_is_no_fault() -> None:
    async def story(tasks: Tasks, faults: list[BaseException]) -> None:
        one, other = tasks.begin(forever()), tasks.begin(forever())
        cancel(one)
        assert await cancelled(one)
        assert not other.done()
        tasks.cancel()
        assert await cancelled(other)
        assert faults == []

    run(story)


def test_a_task_that_cancels_itself_goes_on_to_its_end() -> None:
    async def story(tasks: Tasks, faults: list[BaseException]) -> None:
        async def last() -> None:
            cancel(asyncio.current_task())
            cancel(None)
            await turns(1)

        await tasks.begin(last())
        assert faults == []

    run(story)


def test_what_a_task_raises_is_reported() -> None:
    async def story(tasks: Tasks, faults: list[BaseException]) -> None:
        async def broken() -> None:
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            await tasks.begin(broken())
        assert [str(fault) for fault in faults] == ["broken"]

    run(story)
