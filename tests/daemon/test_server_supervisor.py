"""The page's process under the daemon: started, moved, ended, and restarted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.servers import listening
from caovand.adapters.servers.listening import Listeners
from caovand.adapters.servers.server_process import PAGE, READY
from caovand.adapters.system.notify import Notifier
from caovand.daemon import server_supervisor as module
from caovand.daemon.server_supervisor import ServerSupervisor, url
from tests.patience import soon, turns

ON = "127.0.0.1:9480"
LACKS = "cannot serve the page: the library is not installed"
TAKEN = "cannot serve the page: 127.0.0.1:9480: Address already in use; set another [page] listen"


class FakeProcess:
    """What a page process does, by hand."""

    pid = 7

    def __init__(self, command: Any, listener: Any, on_line: Any, on_end: Any) -> None:
        self.kind, self.words, self.listener = command.kind, command.words, listener
        self.on_line, self.on_end, self.ended = on_line, on_end, False

    def end(self) -> None:
        self.ended = True


class World:
    def __init__(self) -> None:
        self.started: list[FakeProcess] = []
        self.told: list[str] = []
        self.error: OSError | None = None
        self.page = ServerSupervisor(
            PAGE,
            Path("/run"),
            {},
            lambda _, text: self.told.append(text),
            Listeners({}, Notifier({})),
            self.start,
        )

    def start(self, *args: Any) -> Any:
        if self.error is not None:
            raise self.error
        self.started.append(FakeProcess(*args))
        return self.started[-1]

    @property
    def latest(self) -> FakeProcess:
        return self.started[-1]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "delay", lambda attempt, chance: 0.0)
    monkeypatch.setattr(listening, "listen_on", lambda listen, backlog: socket.socket())


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        await test(World())

    asyncio.run(all_of_it())


def test_without_the_key_there_is_none() -> None:
    async def test(world: World) -> None:
        world.page.settle("")
        assert world.started == []
        assert world.page.describe() is None

    run(test)


def test_it_is_served_once_its_process_says_so() -> None:
    async def test(world: World) -> None:
        world.page.settle(ON)
        before = world.page.describe()
        assert before is not None
        assert not before["serving"]
        world.latest.on_line(READY)
        assert world.page.describe() == {
            "url": "http://127.0.0.1:9480/", "serving": True, "problem": "", "pid": 7,
        }  # fmt: skip

    run(test)


def test_a_reload_leaves_what_did_not_change_and_moves_what_did() -> None:
    async def test(world: World) -> None:
        world.page.settle(ON)
        first = world.latest
        first.on_line(READY)
        world.page.settle(ON)
        assert world.started == [first]
        assert not first.ended
        world.page.settle("127.0.0.1:9481")
        assert first.ended
        assert world.latest.words == ("--listen", "127.0.0.1:9481")
        world.page.settle("")
        assert world.latest.ended
        assert world.page.describe() is None

    run(test)


def test_another_token_in_the_same_file_counts_from_a_reload_on() -> None:
    async def test(world: World) -> None:
        world.page.settle("0.0.0.0:9480", ("--token-file", "/t"), "one")
        world.latest.on_line(READY)
        world.page.settle("0.0.0.0:9480", ("--token-file", "/t"), "two")
        assert len(world.started) == 2
        assert world.latest.words[-2:] == ("--token-file", "/t")

    run(test)


def test_one_that_ended_is_started_again() -> None:
    async def test(world: World) -> None:
        world.page.settle(ON)
        world.latest.on_line(READY)
        world.latest.on_end(-9)
        assert "SIGKILL" in world.page.problem
        await soon(lambda: len(world.started) == 2)
        world.latest.on_line(READY)
        assert world.page.problem == ""

    run(test)


def test_clients_wait_for_one_that_served_and_are_refused_by_one_that_cannot() -> None:
    async def test(world: World) -> None:
        world.page.settle(ON)
        listener = world.latest.listener
        world.latest.on_line(READY)
        world.latest.on_end(-9)
        await soon(lambda: len(world.started) == 2)
        assert world.latest.listener is listener
        world.latest.on_line(READY)
        world.page.settle(ON, ("--token-file", "/t"))
        assert world.latest.listener is listener
        world.latest.on_end(1)
        assert listener.fileno() < 0
        await soon(lambda: len(world.started) == 4)
        listener = world.latest.listener
        world.page.settle("127.0.0.1:9481")
        assert listener.fileno() < 0
        world.page.close()
        assert world.latest.listener.fileno() < 0

    run(test)


def test_what_it_cannot_do_is_the_problem_and_is_told_once() -> None:
    async def test(world: World) -> None:
        world.page.settle(ON)
        for number in range(1, 4):
            world.latest.on_line(LACKS)
            world.latest.on_end(1)
            assert world.page.problem == LACKS
            await soon(lambda number=number: len(world.started) == number + 1)
        assert world.told == [LACKS]

    run(test)


def test_an_address_that_is_taken_is_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    def on(listen: str, backlog: int) -> socket.socket:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(98, "Address already in use (while attempting to bind)")
        return socket.socket()

    async def test(world: World) -> None:
        world.page.settle(ON)
        assert world.page.problem == TAKEN
        await soon(lambda: world.started)
        assert world.told == [TAKEN]

    monkeypatch.setattr(listening, "listen_on", on)
    run(test)


def test_the_end_of_one_that_served_is_the_problem_whatever_it_has_printed() -> None:
    async def test(world: World) -> None:
        world.page.settle(ON)
        world.latest.on_line(READY)
        world.latest.on_line("cannot read a request: it is cut short")
        world.latest.on_end(1)
        described = world.page.describe()
        assert described is not None
        assert described["problem"].startswith(
            "the page's process exited with exit status 1: cannot"
        )

    run(test)


def test_a_machine_without_processes_left_is_tried_again() -> None:
    async def test(world: World) -> None:
        world.error = BlockingIOError(11, "Resource temporarily unavailable")
        world.page.settle(ON)
        assert "TasksMax" in world.page.problem
        world.error = None
        await soon(lambda: world.started)

    run(test)


def test_the_waits_grow_until_it_has_served_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    def delay(attempt: int, chance: float) -> float:
        attempts.append(attempt)
        return 0.0

    async def test(world: World) -> None:
        world.page.settle(ON)
        for number in range(1, 4):
            world.latest.on_line(READY)
            world.latest.on_end(1)
            await soon(lambda number=number: len(world.started) == number + 1)
        monkeypatch.setattr(module, "STABLE_S", 0.0)
        world.latest.on_line(READY)
        world.latest.on_end(1)
        assert attempts == [1, 2, 3, 1]

    monkeypatch.setattr(module, "delay", delay)
    run(test)


def test_a_closed_one_stays_closed() -> None:
    async def test(world: World) -> None:
        world.page.settle(ON)
        world.latest.on_end(1)
        world.page.close()
        await turns(10)
        assert len(world.started) == 1

    run(test)


def test_an_address_of_version_6_has_brackets() -> None:
    assert url("[::1]:9480") == "http://[::1]:9480/"
