"""Check all-reduce once before starting on several cards.

Cards whose peer-to-peer writes are lost answer NVML normally, load the model and serve nonsense. A
correct result is not checked again for the same cards, driver, engine and settings; a wrong one is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from caovand.adapters.gpu import all_reduce
from caovand.core import limits
from caovand.core.engine.record import Engine
from caovand.core.facts.all_reduce import AllReduce, AllReduceResult, key_of
from caovand.core.facts.inventory import Gpu, Inventory
from caovand.core.facts.occupancy import NOTABLE_MIB
from caovand.core.healing.failure import Failure, Finding
from caovand.core.plan import Plan


async def check_all_reduce(
    engine: Engine,
    plan: Plan,
    inventory: Inventory,
    env: Mapping[str, str],
    cache: Path,
    notice: Callable[[str, str], None],
    turn: asyncio.Lock,
) -> Finding | None:
    """The failure of this plan's all-reduce; None if none is known.

    `env` is the engine's environment. `turn` is the daemon's lock, for one check at a time: two
    would compete for memory and time, and a second check of the same cards may use the first one's
    result.
    """
    task = engine.planning.all_reduce(plan, inventory)
    if task is None:
        return None
    gpus = engine.planning.cards(plan, inventory)
    key = key_of(task, gpus, inventory.engine)

    async def settled() -> bool:
        result = await asyncio.to_thread(all_reduce.read_result, cache, key)
        return result is not None and result.settled

    try:
        if await settled():
            return None
        others = ", ".join(f"GPU {gpu.index}" for gpu in gpus if _in_use(gpu))
        if others:
            notice("noticed", f"skipped the all-reduce check: other programs use {others}")
            return None
        async with turn:
            if await settled():
                return None
            text = f"checking all-reduce over {task.ranks} cards, once for these settings"
            notice("noticed", text)
            result = await _check(inventory.engine.python, task, env)
            await asyncio.to_thread(all_reduce.save_result, cache, key, result)
    except Exception as problem:
        if not isinstance(problem, OSError) and not limits.limit_reached(problem):
            raise
        notice("noticed", f"cannot check all-reduce: {problem}")
        return None
    if result.verdict == "right":
        more = f"; {result.text}" if result.text else ""
        notice("noticed", f"all-reduce over {task.ranks} cards is correct{more}")
    elif result.verdict == "unclear":
        notice("noticed", f"cannot check all-reduce over {task.ranks} cards: {result.text}")
    else:
        wrong = result.verdict == "wrong"
        how = "is wrong" if wrong else "hangs"
        text = f"{result.by} over {task.ranks} cards {how}: {result.text}"
        failure: Failure = "allreduce-wrong" if wrong else "allreduce-hung"
        return Finding(failure, text, "launch", {"by": result.by})
    return None


async def _check(python: str, task: AllReduce, env: Mapping[str, str]) -> AllReduceResult:
    """Run the check; on cancellation, for example because the daemon stops, kill it at once."""
    check = all_reduce.AllReduceCheck()
    running = asyncio.ensure_future(asyncio.to_thread(check.run, python, task, env))
    try:
        return await asyncio.shield(running)
    finally:
        check.end()
        # It occupies the cards until it has exited.
        await asyncio.gather(running, return_exceptions=True)


def _in_use(gpu: Gpu) -> bool:
    """Whether other programs compute on a card, which the check would slow down."""
    return any(mib > NOTABLE_MIB for _, _, mib in gpu.users)
