"""The head's and a worker's side of a trial together, as orders and reports would carry it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from caovand.adapters import link_trial
from caovand.core.cluster.link import Link, Trial
from caovand.daemon.cluster import asking, measuring, trials
from caovand.daemon.cluster.measuring import Links
from caovand.daemon.cluster.part import Changed
from caovand.daemon.cluster.trials import Pace, Peer
from caovand.daemon.cluster.trying import Trying
from caovand.daemon.shared import now
from tests.daemon_process import free_port
from tests.descriptors import descriptors, run
from tests.patience import soon

HERE, THERE = "127.0.0.1", "127.0.0.9"
CONNECT = [False] * 3
"""To where ranks meet, to the head's own address, and to the worker's."""
SEND = [True] * 2


class Both:
    """A head's links and one worker, between which messages pass at once unless it is `deaf`."""

    def __init__(self, host: str = HERE, joined: str = HERE) -> None:
        self.deaf = False
        self.port = free_port()
        self.woken = Changed()
        self.links = Links(host, self.port, self.woken)
        self.worker = Trying(f"{joined}:{self.port - 1}", self.woken)
        self.own = self.address = HERE
        self.token = ""
        self.transfers: list[bool] = []

    async def pass_messages(self) -> None:
        while True:
            if not self.deaf:
                self.step()
            await self.woken.within(0.02)

    def step(self) -> None:
        trial = self.links.asking.trial("n2")
        if trial is not None and trial.token != self.token:
            self.token = trial.token
            self.transfers.append(trial.transfer)
        self.worker.follow(trial, self.address)
        self.links.asking.heard("n2", self.worker.outcome)

    async def measured(self, boot: str = "1", *, again: bool = False) -> Link:
        self.transfers.clear()
        peers = [Peer("n2", boot, self.address)]
        await self.links.measure(self.own, peers, lambda _: again, Pace())
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
    monkeypatch.setattr(link_trial, "MAX_BYTES", 8 << 20)


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
            assert two.transfers == CONNECT + SEND
            assert not listens(two.port)
            assert two.links.asking.trial("n2") is None
            again = await two.measured()
            assert two.transfers == CONNECT
            assert again == link, "a plan finds the same figures"
            assert two.links.of("n2", "2") is None
            await two.measured("2")
            assert two.transfers == CONNECT + SEND
            assert two.links.of("n2", "1") is None

    run(work)


def test_a_link_is_measured_again_where_that_is_asked_for_or_the_figures_are_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, rates = [0.0], iter([50e6, 1e9, 30e6, 1e9, 900e6, 1e9, 40e6, 1e9])
    monkeypatch.setattr(measuring, "now", lambda: at[0])
    real = link_trial.receive

    async def receive(link: socket.socket) -> float:
        await real(link)
        return next(rates)

    monkeypatch.setattr(link_trial, "receive", receive)

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
            assert (link.own, link.seen) == (HERE, ""), "whom a firewall would have to let in"
            assert not link.works
            monkeypatch.setattr(link_trial, "connect", real)
            assert (await two.measured()).works

    run(work)


def test_on_the_way_to_no_address_a_worker_has_none_of_its_own() -> None:
    async def work() -> None:
        worker = Trying(f"{HERE}:1", Changed())
        worker.follow(Trial("token", "a..b", 1, False), HERE)
        await soon(lambda: worker.outcome)
        assert worker.outcome is not None
        assert worker.outcome.failure
        assert worker.outcome.own == ""

    run(work)


def test_a_worker_that_cannot_be_reached_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        real = link_trial.connect

        async def refused(host: str, port: int, *words: bytes) -> object:
            return await real(host, free_port() if host == THERE else port, *words)

        monkeypatch.setattr(link_trial, "connect", refused)
        async with both() as two:
            two.address = THERE
            link = await two.measured()
            assert (link.to_head, link.to_own, link.to_worker) == ("", "", "Connection refused")
            assert (link.own, link.seen) == (HERE, HERE), "not its own address, and no NAT"
            assert two.transfers == CONNECT, "nothing is sent over what fails"
            two.links.forget_failures()
            assert two.links.of("n2", "1") is None
            monkeypatch.setattr(link_trial, "connect", real)
            assert (await two.measured()).works

    run(work)


@pytest.mark.parametrize("own", [HERE, THERE])
def test_a_head_whose_own_address_cannot_be_reached_is_known(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a worker that reaches the port where ranks meet."""

    async def work() -> None:
        real = link_trial.connect
        async with both() as two:
            two.own, two.address = own, "127.0.0.2"

            async def refused(host: str, port: int, *words: bytes) -> object:
                closed = host == own and port != two.port
                return await real(host, free_port() if closed else port, *words)

            monkeypatch.setattr(link_trial, "connect", refused)
            link = await two.measured()
            assert (link.to_head, link.to_own, link.to_worker) == ("", "Connection refused", "")
            assert not link.works
            assert (link.meets, link.own) == (HERE, HERE)
            assert two.transfers == CONNECT
            monkeypatch.setattr(link_trial, "connect", real)
            assert (await two.measured()).works

    run(work)


def test_data_goes_to_the_own_address_of_who_receives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real, ends = link_trial.receive, []

    async def receive(link: socket.socket) -> float:
        ends.append(link.getsockname()[0])
        return await real(link)

    monkeypatch.setattr(link_trial, "receive", receive)

    async def work() -> None:
        async with both() as two:
            two.own, two.address = THERE, "127.0.0.2"
            assert (await two.measured()).works
        assert ends == [THERE, "127.0.0.2"]
        await Workers("n2", "n3").measured()
        assert ends[2:] == ["127.0.0.2", "127.0.0.3"]

    run(work)


def test_an_address_that_a_node_does_not_have_is_named() -> None:
    async def work() -> None:
        async with both("192.0.2.1") as two:
            link = await two.measured()
            assert (link.head_deaf, link.to_head) == ("Cannot assign requested address", "")
        async with both() as two:
            two.own = "192.0.2.1"
            link = await two.measured()
            assert (link.own_deaf, link.works) == ("Cannot assign requested address", False)
            assert not listens(two.port)
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
    monkeypatch.setattr(asking, "REPORT_S", 0.05)

    async def work() -> None:
        async with both() as two:
            two.deaf = True
            link = await two.measured()
            assert (link.unreported, link.to_head) == ("n2 reported nothing for 0 s", "")
            assert not link.works
            assert not listens(two.port)

    run(work)


@pytest.mark.parametrize("boots", [{}, {"n2": "2"}], ids=["lost", "started anew"])
def test_the_trial_of_a_worker_that_is_lost_is_given_up(boots: dict[str, str]) -> None:
    async def work() -> None:
        async with both() as two:
            two.deaf = True
            trying = asyncio.ensure_future(two.measured())
            await soon(lambda: two.links.asking.trial("n2") is not None)
            two.links.asking.keep({"n2": "1"})
            assert two.links.asking.trial("n2") is not None
            two.links.asking.keep(boots)
            link = await asyncio.wait_for(trying, 20)
            text = "the daemon of n2 ended, or was cut off, while it was tried"
            assert link.unreported == text
            assert not listens(two.port)

    run(work)


def test_a_trial_that_is_given_up_leaves_nothing_behind() -> None:
    async def work() -> None:
        async with both() as two:
            two.deaf = True
            trying = asyncio.ensure_future(two.measured())
            await soon(lambda: two.links.asking.trial("n2") is not None)
            trying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await trying
            assert two.links.asking.trial("n2") is None
            assert not listens(two.port)
            two.deaf = False
            assert (await two.measured()).works

    run(work)


def test_a_worker_ends_the_trial_with_the_order() -> None:
    async def work() -> None:
        async with both() as two:
            two.deaf = True
            trying = asyncio.ensure_future(two.measured())
            await soon(lambda: two.links.asking.trial("n2") is not None)
            before = descriptors()
            two.worker.follow(Trial("token", HERE, 0, False, "listen"), HERE)
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
            two.links.asking.heard("n2", late)
            two.links.asking.heard("n2", None)
            assert (await two.measured()).works
            two.links.asking.heard("n2", late)

    run(work)


def test_without_a_worker_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    links, opened = Links(HERE, free_port(), Changed()), []
    monkeypatch.setattr(measuring, "Door", lambda *at: opened.append(at))
    asyncio.run(links.measure(HERE, [], lambda _: False, Pace()))
    assert opened == []


def test_links_of_no_end_of_names_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MAX_LINKS", 3)

    async def work() -> None:
        async with both("192.0.2.1") as two:
            for number in range(5):
                peers = [Peer(f"n{number}", "1", HERE)]
                await two.links.measure(HERE, peers, lambda _: False, Pace())
            assert len(two.links._known._known) == 3
            assert two.links.of("n4", "1") is not None

    run(work)


# -- several workers ---


class Workers:
    """Workers that listen on addresses of this machine, each of which hears its orders."""

    def __init__(self, *names: str) -> None:
        self.links = Links(HERE, free_port(), Changed())
        self.peers = [Peer(name, "1", f"127.0.0.{at}") for at, name in enumerate(names, 2)]
        self.trying = {peer: Trying(f"{HERE}:1", Changed()) for peer in self.peers}
        self.deaf: set[str] = set()
        self.pace = Pace()

    def pass_messages(self) -> None:
        for peer, worker in self.trying.items():
            if peer.name not in self.deaf:
                worker.follow(self.links.asking.trial(peer.name), peer.address)
                self.links.asking.heard(peer.name, worker.outcome)

    @contextlib.asynccontextmanager
    async def hearing(self) -> AsyncIterator[None]:
        passing = asyncio.ensure_future(soon(self.pass_messages, math.inf))
        try:
            yield
        finally:
            passing.cancel()
            for worker in self.trying.values():
                worker.follow(None, "")

    async def reached(self) -> None:
        """The head tries its links to them."""
        async with self.hearing():
            await self.links.measure(HERE, self.peers, lambda _: False, self.pace)

    async def measured(self, again: bool = False) -> list[Link]:
        async with self.hearing():
            await self.links.measure_between(self.peers, lambda one, other: again, self.pace)
        boots = {peer.name: peer.boot for peer in self.peers}
        names = sorted(boots)
        found = [self.links.between(a, b, boots) for a in names for b in names if a < b]
        assert all(found)
        return [one for one in found if one]


def test_all_workers_connect_at_once_and_send_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, sending, told = link_trial.receive, [0, 0], list[str]()

    async def receive(link: socket.socket) -> float:
        sending[0] += 1
        sending[1] = max(sending)
        found = await real(link)
        sending[0] -= 1
        return found

    monkeypatch.setattr(link_trial, "receive", receive)

    async def work() -> None:
        workers = Workers("n2", "n3", "n4")
        workers.pace = Pace(told.append)
        workers.deaf.add("n4")
        measuring_all = asyncio.ensure_future(workers.reached())
        await soon(lambda: all(workers.trying[peer].outcome for peer in workers.peers[:2]))
        assert workers.links.of("n2", "1") is None, "the mute one is still waited for"
        workers.deaf.clear()
        await measuring_all
        assert all(workers.links.works(name, "1") for name in ("n2", "n3", "n4"))
        assert sending == [0, 1]
        assert told[0] == "connects to 3 workers"
        assert told[-1] == "measures the link to n4, 3 of 3"

    run(work)


def test_several_mute_workers_cost_the_time_of_one_and_are_not_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "REPORT_S", 0.5)
    asked: list[str] = []

    async def work() -> None:
        workers = Workers("n2", "n3", "n4", "n5", "n6", "n7")
        workers.deaf |= {"n3", "n4", "n5", "n6"}
        begun = asyncio.get_running_loop().time()
        await workers.reached()
        assert asyncio.get_running_loop().time() - begun < 4 * 0.5
        assert workers.pace.mute == workers.deaf
        real = workers.links.asking.ask

        def ask(name: str, *rest: Any) -> Any:
            asked.append(name)
            return real(name, *rest)

        monkeypatch.setattr(workers.links.asking, "ask", ask)
        links = await workers.measured()
        assert set(asked) == {"n2", "n7"}
        assert sum(one.works for one in links) == 1
        assert links[0].unreported == "n3 reported nothing of an earlier trial"

    run(work)


def test_trials_end_with_the_time_that_they_have_together(monkeypatch: pytest.MonkeyPatch) -> None:
    at = [now()]
    monkeypatch.setattr(trials, "now", lambda: at[0])

    async def work() -> None:
        workers = Workers("n2", "n3")

        def late(text: str) -> None:
            if text.startswith("measures"):
                at[0] += trials.ALL_S

        workers.pace = Pace(late)
        await workers.reached()
        link = workers.links.of("n2", "1")
        assert link is not None
        assert not link.fails, "they connect, and nothing else is known"
        assert link.up_bytes_s is None
        workers.peers.append(Peer("n4", "1", "127.0.0.4"))
        await workers.reached()
        assert workers.links.of("n2", "1") == link, "what was found before still counts"
        link = workers.links.of("n4", "1")
        assert link is not None
        assert link.unreported == "no time was left for its trial"
        workers.peers.pop()
        workers.pace = Pace()
        await workers.reached()
        assert workers.links.works("n2", "1"), "the next start measures it"

    run(work)


def test_workers_are_measured_with_each_other_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    real, sent = link_trial.receive, []

    async def receive(link: socket.socket) -> float:
        sent.append(link)
        return await real(link)

    monkeypatch.setattr(link_trial, "receive", receive)

    async def work() -> None:
        workers = Workers("n2", "n3", "n4")
        before = descriptors()
        links = await workers.measured()
        assert len(links) == 3
        for link in links:
            assert link.works
            assert link.connect_s
        assert len(sent) == 6
        assert await workers.measured() == links, "nothing is sent again"
        assert len(sent) == 6
        await workers.measured(again=True)
        assert len(sent) == 12
        await soon(lambda: descriptors() <= before)

    run(work)


def test_workers_that_do_not_reach_each_other_say_so_each_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        real = link_trial.connect

        async def refused(host: str, port: int, *words: bytes) -> object:
            return await real(host, free_port() if host == "127.0.0.2" else port, *words)

        monkeypatch.setattr(link_trial, "connect", refused)
        (link,) = await Workers("n2", "n3").measured()
        assert (link.to_head, link.to_worker) == ("Connection refused", "")
        assert not link.works
        (link,) = await Workers("n3", "n2").measured()
        assert (link.to_head, link.to_worker) == ("", "Connection refused")

    run(work)


def test_a_worker_that_cannot_listen_or_is_lost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        workers = Workers("n2", "n3")
        workers.peers[1] = workers.peers[1]._replace(address="192.0.2.1")
        workers.trying = {peer: Trying(f"{HERE}:1", Changed()) for peer in workers.peers}
        (link,) = await workers.measured()
        why = "n3 cannot listen at its own address 192.0.2.1: Cannot assign requested address"
        assert link.unreported == why
        workers = Workers("n2", "n3")
        workers.deaf.add("n3")
        measuring_both = asyncio.ensure_future(workers.measured())
        await soon(lambda: workers.links.asking.trial("n3") is not None)
        workers.links.asking.keep({"n2": "1"})
        (link,) = await measuring_both
        assert link.unreported == "the daemon of n3 ended, or was cut off, while it was tried"

    run(work)
