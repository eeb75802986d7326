"""The head's and the workers' sides of a check of ports, as orders and reports would carry it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from caovand.adapters.network.port_check import Connection, connect
from caovand.core.cluster.link import LinkState, Probe
from caovand.core.cluster.messages import Report
from caovand.core.facts.network import Network
from caovand.daemon.cluster import links, prober
from caovand.daemon.cluster.links import Links
from caovand.daemon.cluster.part import Signal
from caovand.daemon.cluster.prober import Prober
from caovand.daemon.cluster.team import network_of
from caovand.daemon.cluster.workers import Worker, Workers
from tests.core.nodes import HEAD, WORKER
from tests.descriptors import descriptors, run
from tests.patience import soon
from tests.ports import free_port

HERE, ELSEWHERE = "127.0.0.1", "192.0.2.1"


class Nodes:
    """The head n1 and workers that listen on addresses of this machine, 127.0.0.2 and so on.

    Messages pass at once, but for workers that are `mute`.
    """

    def __init__(self, *names: str, host: str = HERE, joined: str = HERE) -> None:
        self.port = free_port()
        self.woken = Signal()
        self.roster = Workers("n1")
        self.links = Links(self.roster, host, self.port, self.woken)
        head = f"{joined}:{self.port - 1}"
        self.probers = {name: Prober(head, self.woken) for name in names}
        self.mute: set[str] = set()
        self.own = HERE
        for at, name in enumerate(names, 2):
            self.join(name, f"127.0.0.{at}")

    def join(self, name: str, address: str) -> None:
        facts = replace(WORKER, name=name, address=address)
        self.roster.hear(name.encode(), Report(name, "1"), facts, ())

    @property
    def workers(self) -> list[Worker]:
        return list(self.roster.by_name.values())

    async def pass_messages(self) -> None:
        while True:
            for worker in self.workers:
                if worker.name not in self.mute:
                    prober = self.probers[worker.name]
                    prober.follow(self.links.probe_for(worker.name), worker.address)
                    self.links.hear(worker.name, prober.report)
            await self.woken.wait(0.02)

    async def check(self) -> LinkState:
        """Probe all links; the one to the first worker."""
        await self.links.probe_workers(self.own, self.workers)
        link = self.workers[0].link
        assert link is not None
        return link


@contextlib.asynccontextmanager
async def nodes(*names: str, host: str = HERE, joined: str = HERE) -> AsyncIterator[Nodes]:
    made = Nodes(*(names or ("n2",)), host=host, joined=joined)
    passing = asyncio.ensure_future(made.pass_messages())
    try:
        yield made
    finally:
        passing.cancel()
        for prober in made.probers.values():
            prober.follow(None, "")


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HERE, port)):
        return True
    return False


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, int], bool]], None]:
    """Refuse connections to such hosts and ports, whoever connects."""

    def close(met: Callable[[str, int], bool]) -> None:
        async def refuse(host: str, port: int, *words: bytes) -> Connection:
            return await connect(host, free_port() if met(host, port) else port, *words)

        monkeypatch.setattr(links, "connect", refuse)
        monkeypatch.setattr(prober, "connect", refuse)

    return close


def test_the_head_and_its_workers_reach_each_other_and_nothing_stays_open() -> None:
    async def work() -> None:
        async with nodes("n2", "n3", "n4") as three:
            link = await three.check()
            assert link.works
            assert link.connect_s > 0
            report = link.report
            assert (link.bound, report.own, report.seen, report.joined) == (HERE, HERE, HERE, HERE)
            assert all(worker.link and worker.link.works for worker in three.workers)
            assert not listens(three.port)
            assert three.links.probe_for("n2") is None

    run(work)


def test_a_worker_that_does_not_reach_where_ranks_meet_says_why(
    closed: Callable[[Callable[[str, int], bool]], None],
) -> None:
    async def work() -> None:
        async with nodes() as two:
            closed(lambda host, port: port == two.port)
            link = await two.check()
            assert link.failures == {"reach-rendezvous": "Connection refused"}
            report = link.report
            assert (report.joined, report.own, report.seen) == (HERE, HERE, ""), "whom to let in"
            assert two.workers[0].link_failed
            two.roster.forget_failed_links()
            assert two.workers[0].link is None
            assert two.workers[0].link_failed, "until it is probed again"
            closed(lambda host, port: False)
            assert (await two.check()).works
            assert not two.workers[0].link_failed

    run(work)


def test_a_link_is_of_one_run_of_the_workers_daemon_but_its_failure_outlives_that() -> None:
    roster = Workers("n1")
    roster.hear(b"", Report("n2", "1"), WORKER, ())
    probed = roster.by_name["n2"]
    roster.keep_link(probed, LinkState(HERE, 7071, failures={"report": "none came"}))
    roster.hear(b"", Report("n2", "1"), WORKER, ())
    assert roster.by_name["n2"].link is not None
    roster.hear(b"", Report("n2", "2"), WORKER, ())
    roster.keep_link(probed, LinkState(HERE, 7071))
    again = roster.by_name["n2"]
    assert (again.link, again.link_failed) == (None, True)


@pytest.mark.parametrize("own", [HERE, "127.0.0.9"])
def test_a_head_whose_own_address_is_closed_is_known(
    own: str, closed: Callable[[Callable[[str, int], bool]], None]
) -> None:
    async def work() -> None:
        async with nodes() as two:
            two.own = own
            closed(lambda host, port: host == own and port != two.port)
            link = await two.check()
            assert link.failures == {"reach-head": "Connection refused"}

    run(work)


def test_a_worker_whose_port_is_closed_is_known(
    closed: Callable[[Callable[[str, int], bool]], None],
) -> None:
    async def work() -> None:
        async with nodes() as two:
            closed(lambda host, port: host == "127.0.0.2")
            link = await two.check()
            assert link.failures == {"reach-worker": "Connection refused"}

    run(work)


def test_a_name_that_leads_elsewhere_on_the_head_is_known() -> None:
    async def work() -> None:
        async with nodes(host="127.0.0.5", joined="127.0.0.6") as two:
            link = await two.check()
            assert (link.works, link.bound, link.report.joined) == (True, "127.0.0.5", "127.0.0.6")

    run(work)


def test_an_address_that_a_node_does_not_have_is_named() -> None:
    async def work() -> None:
        reason = "Cannot assign requested address"
        async with nodes("n2", "n3", host=ELSEWHERE) as three:
            assert (await three.check()).failures == {"listen-rendezvous": reason}
            assert three.workers[1].link == three.workers[0].link
        async with nodes("n2", "n3") as two:
            two.own = ELSEWHERE
            assert (await two.check()).failures == {"listen-head": reason}
            assert not listens(two.port)
        async with nodes("n2", "n3") as two:
            two.join("n2", ELSEWHERE)
            assert (await two.check()).failures == {"listen-worker": reason}
        async with nodes() as two:
            with socket.create_server((HERE, two.port)):
                failures = (await two.check()).failures
                assert failures == {"listen-rendezvous": "Address already in use"}

    run(work)


def test_on_the_way_to_no_address_a_worker_has_none_of_its_own() -> None:
    async def work() -> None:
        prober = Prober("a..b:1", Signal())
        prober.follow(Probe("token", ("a..b", 1), ("a..b", 1)), HERE)
        await soon(lambda: prober.report)
        assert prober.report is not None
        assert prober.report.failures["reach-rendezvous"].startswith("a..b: ")
        assert (prober.report.own, prober.report.joined) == ("", "")
        prober.follow(None, "")

    run(work)


def test_mute_workers_cost_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "REPORT_S", 0.05)

    async def work() -> None:
        async with nodes("n2", "n3", "n4", "n5") as several:
            several.mute |= {"n2", "n4"}
            link = await several.check()
            assert link.failures == {"report": "n2 reported nothing for 0 s"}
            assert not listens(several.port)
            monkeypatch.setattr(links, "REPORT_S", 30.0)
            several.mute.clear()
            assert (await several.check()).works

    run(work)


@pytest.mark.parametrize("boots", [{}, {"n2": "2"}], ids=["lost", "started anew"])
def test_nobody_waits_for_a_worker_that_is_lost(boots: dict[str, str]) -> None:
    async def work() -> None:
        async with nodes() as two:
            two.mute.add("n2")
            checking = asyncio.ensure_future(two.check())
            await soon(lambda: two.links.probe_for("n2") is not None)
            two.links.abandon_absent({"n2": "1"})
            assert two.links.probe_for("n2") is not None
            two.links.abandon_absent(boots)
            link = await asyncio.wait_for(checking, links.REPORT_S / 2)
            reason = "its daemon exited or lost its link in the meantime"
            assert link.failures == {"report": reason}

    run(work)


def test_a_check_that_is_cancelled_leaves_nothing_behind() -> None:
    async def work() -> None:
        async with nodes() as two:
            two.mute.add("n2")
            checking = asyncio.ensure_future(two.check())
            await soon(lambda: two.links.probe_for("n2") is not None)
            checking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await checking
            assert two.links.probe_for("n2") is None
            assert not listens(two.port)
            two.mute.clear()
            assert (await two.check()).works

    run(work)


def test_a_worker_ends_its_part_with_the_order() -> None:
    async def work() -> None:
        before = descriptors()
        prober = Prober(f"{HERE}:1", Signal())
        prober.follow(Probe("token", (HERE, free_port()), (HERE, free_port())), HERE)
        await soon(lambda: prober.report)
        assert prober.report is not None
        port = prober.report.port
        assert listens(port)
        prober.follow(None, "")
        await soon(lambda: not listens(port))
        assert prober.report is None
        await soon(lambda: descriptors() <= before)

    run(work)


def test_reports_of_other_probes_are_ignored() -> None:
    async def work() -> None:
        async with nodes() as two:
            assert (await two.check()).works
            late = two.probers["n2"].report
            two.links.hear("n2", late)
            two.links.hear("n2", None)
            assert (await two.check()).works
            two.links.hear("n2", late)

    run(work)


def test_a_plan_counts_with_the_slowest_interface_and_the_longest_way() -> None:
    quick = Worker(b"", Report("n2", "b2"), 0.0, 0.0, WORKER)
    slow = replace(quick, facts=replace(WORKER, speed_mbit=1000))
    assert network_of(HEAD, [quick, slow]) is None, "nothing is probed yet"
    quick.link = LinkState(HERE, 7071, connect_s=1e-4)
    assert network_of(HEAD, [quick, slow]) is None
    slow.link = LinkState(HERE, 7071, connect_s=3e-4)
    assert network_of(HEAD, [quick, slow]) == Network(117.5e6, 3e-4)
    assert network_of(None, [quick, slow]) is None
    assert network_of(HEAD, [quick, None]) is None
    assert network_of(HEAD, []) is None
    unknown = replace(quick, facts=replace(WORKER, speed_mbit=0))
    assert network_of(HEAD, [quick, slow, unknown]) is None
