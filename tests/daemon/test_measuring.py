"""The head's and a worker's side of a trial together, as orders and reports would carry it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from caovand.adapters import link_trial
from caovand.core.cluster.link import Link
from caovand.daemon.cluster import measuring
from caovand.daemon.cluster.measuring import Links, Trying
from caovand.daemon.cluster.part import Changed
from tests.daemon_process import free_port
from tests.descriptors import descriptors, run
from tests.patience import soon

HERE = "127.0.0.1"


class Both:
    """A head's links and one worker, between which messages pass at once unless it is `deaf`."""

    def __init__(self, host: str = HERE, joined: str = HERE) -> None:
        self.deaf = False
        self.port = free_port()
        self.woken = Changed()
        self.links = Links(host, self.port, self.woken)
        self.worker = Trying(f"{joined}:{self.port - 1}", self.woken)
        self.address = HERE
        self.transfers: list[bool] = []

    async def pass_messages(self) -> None:
        while True:
            if not self.deaf:
                self.step()
            await self.woken.within(0.02)

    def step(self) -> None:
        trial = self.links.trial("n2")
        if trial is not None and (not self.transfers or self.worker.outcome is None):
            self.transfers.append(trial.transfer)
        self.worker.follow(trial, self.address)
        self.links.heard(self.worker.outcome)

    async def measured(self, boot: str = "1", *, again: bool = False) -> Link:
        self.transfers.clear()
        await self.links.measure("n2", boot, self.address, again=again)
        link = self.links.of("n2", boot)
        assert link is not None
        return link


@contextlib.asynccontextmanager
async def both(host: str = HERE, joined: str = HERE) -> AsyncIterator[Both]:
    made = Both(host, joined)
    passing = asyncio.ensure_future(made.pass_messages())
    try:
        yield made
    finally:
        passing.cancel()
        made.worker.follow(None, "")


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is sent."""
    monkeypatch.setattr(link_trial, "MOST_BYTES", 8 << 20)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HERE, port)):
        return True
    return False


def test_both_ways_are_tried_and_measured_once_for_each_run_of_the_worker() -> None:
    async def work() -> None:
        async with both() as two:
            link = await two.measured()
            assert link.works
            assert (link.own, link.seen, link.joined) == (HERE, HERE, HERE)
            assert link.up_bytes_s
            assert link.down_bytes_s
            assert set(two.transfers) == {True}
            assert not listens(two.port)
            assert two.links.trial("n2") is None
            again = await two.measured()
            assert set(two.transfers) == {False}
            assert again == link, "a plan finds the same figures"
            assert two.links.of("n2", "2") is None
            await two.measured("2")
            assert set(two.transfers) == {True}
            assert two.links.of("n2", "1") is None

    run(work)


def test_a_link_is_measured_again_where_that_is_asked_for_or_the_figures_are_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, rates = [0.0], iter([50e6, 30e6, 900e6, 40e6])
    monkeypatch.setattr(measuring, "now", lambda: at[0])
    real = link_trial.transfer

    async def transfer(link: socket.socket, *, sends_first: bool) -> float:
        await real(link, sends_first=sends_first)
        return 1e9 if sends_first else next(rates)

    monkeypatch.setattr(link_trial, "transfer", transfer)

    async def work() -> None:
        async with both() as two:
            assert (await two.measured()).up_bytes_s == 50e6
            at[0] = 3000.0
            assert (await two.measured()).up_bytes_s == 50e6
            assert (await two.measured(again=True)).up_bytes_s == 50e6, "the better one counts"
            assert (await two.measured(again=True)).up_bytes_s == 900e6
            at[0] = 3601.0
            assert (await two.measured()).up_bytes_s == 40e6, "what is old counts no more"

    run(work)


def test_a_worker_that_cannot_reach_the_port_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        # What the head listens on is not where the name leads on the worker.
        real = link_trial.connect

        async def elsewhere(host: str, port: int, *words: bytes) -> object:
            return await real(host, free_port() if port == two.port else port, *words)

        monkeypatch.setattr(link_trial, "connect", elsewhere)
        async with both() as two:
            link = await two.measured()
            assert (link.to_head, link.to_worker) == ("Connection refused", "")
            assert link.joined == HERE
            assert not link.works
            monkeypatch.setattr(link_trial, "connect", real)
            assert (await two.measured()).works

    run(work)


def test_a_worker_that_cannot_be_reached_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        real = link_trial.connect

        async def refused(host: str, port: int, *words: bytes) -> object:
            return await real(host, free_port() if port != two.port else port, *words)

        monkeypatch.setattr(link_trial, "connect", refused)
        async with both() as two:
            link = await two.measured()
            assert (link.to_head, link.to_worker) == ("", "Connection refused")
            assert link.up_bytes_s
            two.links.forget_failures()
            assert two.links.of("n2", "1") is None
            monkeypatch.setattr(link_trial, "connect", real)
            again = await two.measured()
            assert again.works
            assert set(two.transfers) == {False}
            assert again.up_bytes_s == link.up_bytes_s

    run(work)


def test_an_address_that_a_node_does_not_have_is_named() -> None:
    async def work() -> None:
        async with both("192.0.2.1") as two:
            link = await two.measured()
            assert (link.head_deaf, link.to_head) == ("Cannot assign requested address", "")
        async with both() as two:
            two.address = "192.0.2.1"
            link = await two.measured()
            assert link.worker_deaf == "Cannot assign requested address"
            assert (link.to_head, link.to_worker, link.works) == ("", "", False)
        async with both() as two:
            with socket.create_server((HERE, two.port)):
                link = await two.measured()
            assert (link.head_deaf, link.works) == ("Address already in use", False)

    run(work)


def test_a_worker_that_reports_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "REPORT_S", 0.05)

    async def work() -> None:
        async with both() as two:
            two.deaf = True
            link = await two.measured()
            assert (link.unreported, link.to_head) == ("it reported nothing for 0 s", "")
            assert not link.works
            assert not listens(two.port)

    run(work)


@pytest.mark.parametrize("boots", [{}, {"n2": "2"}], ids=["lost", "started anew"])
def test_the_trial_of_a_worker_that_is_lost_is_given_up(boots: dict[str, str]) -> None:
    async def work() -> None:
        async with both() as two:
            two.deaf = True
            trying = asyncio.ensure_future(two.measured())
            await soon(lambda: two.links.trial("n2") is not None)
            two.links.keep({"n2": "1"})
            assert two.links.trial("n2") is not None
            two.links.keep(boots)
            link = await asyncio.wait_for(trying, 20)
            assert link.unreported == "its daemon ended, or was cut off, while it was tried"
            assert not listens(two.port)

    run(work)


def test_a_trial_that_is_given_up_leaves_nothing_behind() -> None:
    async def work() -> None:
        async with both() as two:
            two.deaf = True
            trying = asyncio.ensure_future(two.measured())
            await soon(lambda: two.links.trial("n2") is not None)
            trying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await trying
            assert two.links.trial("n2") is None
            assert not listens(two.port)
            two.deaf = False
            assert (await two.measured()).works

    run(work)


def test_a_worker_ends_the_trial_with_the_order() -> None:
    async def work() -> None:
        async with both() as two:
            two.deaf = True
            trying = asyncio.ensure_future(two.measured())
            await soon(lambda: two.links.trial("n2") is not None)
            before = descriptors()
            two.worker.follow(two.links.trial("n2"), HERE)
            await soon(lambda: two.worker.outcome is not None)
            assert two.worker.outcome is not None
            port = two.worker.outcome.listens
            assert listens(port)
            two.worker.follow(None, "")
            await soon(lambda: not listens(port))
            assert two.worker.outcome is None
            await soon(lambda: descriptors() <= before)
            trying.cancel()

    run(work)


def test_reports_of_other_trials_are_ignored() -> None:
    async def work() -> None:
        async with both() as two:
            assert (await two.measured()).works
            late = two.worker.outcome
            two.links.heard(late)
            two.links.heard(None)
            assert (await two.measured()).works
            two.links.heard(late)

    run(work)


def test_links_of_no_end_of_names_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MOST_LINKS", 3)

    async def work() -> None:
        async with both("192.0.2.1") as two:
            for number in range(5):
                await two.links.measure(f"n{number}", "1", HERE)
            assert len(two.links._known) == 3
            assert two.links.of("n4", "1") is not None

    run(work)
