"""When all-reduce is checked before a start, and the consequences."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.gpu import all_reduce
from caovand.core.facts.all_reduce import AllReduce, AllReduceResult
from caovand.core.facts.inventory import Inventory
from caovand.core.healing.failure import Finding
from caovand.core.plan import Plan, Setting
from caovand.daemon.start.all_reduce import check_all_reduce
from caovand.engines.registry import engine_of
from tests.core.machines import inventory
from tests.patience import LIMIT_S, soon

MACHINE = inventory()
PLAN = Plan("m", {"tensor_parallel_size": Setting(2, "policy", "")}, {})
RIGHT = AllReduceResult("right", 1.0)
WRONG = AllReduceResult("wrong", 1.0, "NCCL", "3 of 9 sums")


@dataclass
class Check:
    """A process of a check."""

    found: AllReduceResult

    def kill(self) -> None:
        """It has ended."""


class Cards:
    """Checks that find one thing after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        self.found: list[AllReduceResult | Exception] = []
        self.tasks, self.notices, self.cache = list[AllReduce](), list[str](), cache
        monkeypatch.setattr(all_reduce, "start", self.begin)
        monkeypatch.setattr(all_reduce, "finish", lambda process: process.found)

    def begin(self, python: str, task: AllReduce, env: Any) -> Check:
        self.tasks.append(task)
        found = self.found.pop(0)
        if isinstance(found, Exception):
            raise found
        return Check(found)

    def start(self, plan: Plan = PLAN, machine: Inventory = MACHINE) -> Finding | None:
        return asyncio.run(self.checked(plan, machine, asyncio.Lock()))

    async def checked(self, plan: Plan, machine: Inventory, turn: asyncio.Lock) -> Finding | None:
        notice = lambda _, text: self.notices.append(text)  # noqa: E731
        return await check_all_reduce(engine_of(), plan, machine, {}, self.cache, notice, turn)


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cards:
    return Cards(monkeypatch, tmp_path / "cache")


@pytest.mark.parametrize("sums", [RIGHT, AllReduceResult("unclear", 1.0, text="no torch")])
def test_what_is_settled_is_checked_once_for_the_same_settings(
    cards: Cards, sums: AllReduceResult
) -> None:
    cards.found = [sums, sums, sums]
    assert [cards.start(), cards.start()] == [None, None]
    assert len(cards.tasks) == 1
    without = replace(PLAN, env={"NCCL_P2P_DISABLE": Setting("1", "ladder", "")})
    assert cards.start(without) is None
    newer = tuple(replace(gpu, driver="999.1") for gpu in MACHINE.gpus)
    assert cards.start(machine=replace(MACHINE, gpus=newer)) is None
    assert len(cards.tasks) == 3


def test_wrong_sums_keep_the_engine_from_starting_and_are_checked_again(
    cards: Cards,
) -> None:
    cards.found = [WRONG, replace(WRONG, verdict="hung"), RIGHT]
    found = [cards.start() for _ in range(3)]
    assert found[0] == Finding(
        "allreduce-wrong", "NCCL over 2 cards is wrong: 3 of 9 sums", "launch", {"by": "NCCL"}
    )
    assert found[1] is not None
    assert found[1].failure == "allreduce-hung"
    assert found[2] is None


def test_cards_in_use_by_others_are_not_checked(cards: Cards) -> None:
    gpus = tuple(replace(gpu, users=((7, "train", 9000),)) for gpu in MACHINE.gpus)
    assert cards.start(machine=replace(MACHINE, gpus=gpus)) is None
    assert cards.tasks == []
    assert "skipped the all-reduce check" in cards.notices[0]


@pytest.mark.parametrize(
    ("settings", "custom"), [({}, True), ({"disable_custom_all_reduce": True}, False)]
)
def test_the_engine_s_own_all_reduce_is_checked_if_the_plan_has_it(
    cards: Cards, settings: dict[str, bool], custom: bool
) -> None:
    more = {name: Setting(value, "policy", "") for name, value in settings.items()}
    cards.found = [RIGHT]
    cards.start(replace(PLAN, settings={**PLAN.settings, **more}))
    assert ("CustomAllreduce" in cards.tasks[0].custom) is custom


def test_one_card_is_not_checked(cards: Cards) -> None:
    assert cards.start(Plan("m", {}, {})) is None
    assert cards.tasks == []


def test_a_check_that_cannot_be_made_keeps_nothing_from_starting(cards: Cards) -> None:
    cards.found = [OSError(2, "No such file or directory")]
    assert cards.start() is None
    assert cards.notices[-1].startswith("cannot check all-reduce")


@pytest.mark.parametrize("while_starting", [False, True])
def test_a_check_ends_with_a_daemon_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, while_starting: bool
) -> None:
    begun: list[subprocess.Popen[str]] = []
    starting, cancelled = threading.Event(), threading.Event()

    def start(*_: object) -> subprocess.Popen[str]:
        starting.set()
        assert not while_starting or cancelled.wait(LIMIT_S)
        pipe = subprocess.PIPE
        begun.append(subprocess.Popen(["sleep", "600"], text=True, stdout=pipe, stderr=pipe))
        return begun[0]

    async def ended_meanwhile() -> None:
        turn = asyncio.Lock()
        check = check_all_reduce(engine_of(), PLAN, MACHINE, {}, tmp_path, lambda *_: None, turn)
        task = asyncio.ensure_future(check)
        await soon(starting.is_set if while_starting else lambda: begun)
        task.cancel()
        asyncio.get_running_loop().call_later(0.05, cancelled.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert begun[0].returncode == -9, "it has ended, and with it what it had of the cards"
        assert not turn.locked()

    monkeypatch.setattr(all_reduce, "start", start)
    asyncio.run(ended_meanwhile())


def test_a_second_start_waits_for_a_check_and_uses_what_it_found(
    cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots of one daemon may start at the same time, and a start may replace another."""
    under_way, most = list[object](), list[int]()
    others = threading.Event()

    def finish(check: Check) -> AllReduceResult:
        under_way.append(check)
        most.append(len(under_way))
        others.wait(0.2)  # for as long as another could begin meanwhile
        under_way.remove(check)
        return check.found

    async def at_once() -> list[Finding | None]:
        turn = asyncio.Lock()
        without = replace(PLAN, env={"NCCL_P2P_DISABLE": Setting("1", "ladder", "")})
        plans = [PLAN, PLAN, without]
        return await asyncio.gather(*(cards.checked(plan, MACHINE, turn) for plan in plans))

    cards.found = [RIGHT, RIGHT]
    monkeypatch.setattr(all_reduce, "finish", finish)
    assert asyncio.run(at_once()) == [None, None, None]
    assert (len(cards.tasks), most) == (2, [1, 1])
