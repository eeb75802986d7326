"""The head's and the workers' sides of a check of ports, as orders and reports would carry it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import combinations

import pytest

from caovand.adapters.network.port_check import Connection, connect
from caovand.core.cluster.link import LinkState, PortCheck
from caovand.core.facts.network import Network
from caovand.daemon.cluster import links, prober
from caovand.daemon.cluster.links import Links, Peer
from caovand.daemon.cluster.part import Changed
from caovand.daemon.cluster.prober import Prober
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
        self.woken = Changed()
        self.links = Links("n1", host, self.port, self.woken)
        self.peers = [Peer(name, "1", f"127.0.0.{at}") for at, name in enumerate(names, 2)]
        head = f"{joined}:{self.port - 1}"
        self.workers = {name: Prober(name, head, self.woken) for name in names}
        self.mute: set[str] = set()
        self.own = HERE

    async def pass_messages(self) -> None:
        while True:
            for name, address in ((peer.name, peer.address) for peer in self.peers):
                if name not in self.mute:
                    self.workers[name].follow(self.links.probe(name), address)
                    self.links.hear(name, self.workers[name].reached)
            await self.woken.within(0.02)

    async def check(self) -> LinkState:
        """Check all links; the one to the first worker."""
        await self.links.check(self.own, self.peers)
        link = self.links.of(self.peers[0].name, self.peers[0].boot)
        assert link is not None
        return link

    def between(self, one: str = "n2", other: str = "n3") -> LinkState | None:
        return self.links.between(one, other, {peer.name: peer.boot for peer in self.peers})


@contextlib.asynccontextmanager
async def nodes(*names: str, host: str = HERE, joined: str = HERE) -> AsyncIterator[Nodes]:
    made = Nodes(*(names or ("n2",)), host=host, joined=joined)
    passing = asyncio.ensure_future(made.pass_messages())
    try:
        yield made
    finally:
        passing.cancel()
        for worker in made.workers.values():
            worker.follow(None, "")


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


def test_all_nodes_reach_each_other_and_nothing_stays_open() -> None:
    async def work() -> None:
        async with nodes("n2", "n3", "n4") as three:
            link = await three.check()
            assert link.works
            assert link.connect_s > 0
            assert (link.meets, link.own, link.seen, link.joined) == (HERE, HERE, HERE, HERE)
            for one, other in combinations(three.workers, 2):
                found = three.between(one, other)
                assert found is not None
                assert found.works
            assert not listens(three.port)
            assert three.links.probe("n2") is None
            assert three.links.of("n2", "2") is None, "nothing is known of another run"

    run(work)


def test_a_worker_that_does_not_reach_where_ranks_meet_says_why(
    closed: Callable[[Callable[[str, int], bool]], None],
) -> None:
    async def work() -> None:
        async with nodes() as two:
            closed(lambda host, port: port == two.port)
            link = await two.check()
            assert (link.to_head, link.to_own, link.to_worker) == ("Connection refused", "", "")
            assert (link.joined, link.own, link.seen) == (HERE, HERE, ""), "whom to let in"
            assert two.links.has_failed("n2", ())
            two.links.forget_failures()
            assert two.links.of("n2", "1") is None
            assert two.links.has_failed("n2", ()), "until it is checked again"
            closed(lambda host, port: False)
            assert (await two.check()).works
            assert not two.links.has_failed("n2", ())

    run(work)


@pytest.mark.parametrize("own", [HERE, "127.0.0.9"])
def test_a_head_whose_own_address_is_closed_is_known(
    own: str, closed: Callable[[Callable[[str, int], bool]], None]
) -> None:
    async def work() -> None:
        async with nodes() as two:
            two.own = own
            closed(lambda host, port: host == own and port != two.port)
            link = await two.check()
            assert (link.to_head, link.to_own, link.to_worker) == ("", "Connection refused", "")

    run(work)


def test_workers_that_do_not_reach_each_other_say_so_each_way(
    closed: Callable[[Callable[[str, int], bool]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed(lambda host, port: host == "127.0.0.3")
    monkeypatch.setattr(links, "connect", connect)  # the head gets through

    async def work() -> None:
        async with nodes("n2", "n3") as three:
            assert (await three.check()).works
            link = three.between()
            assert link is not None
            assert (link.host, link.to_head, link.to_worker) == (
                "127.0.0.2", "", "Connection refused",
            )  # fmt: skip
            assert three.links.has_failed("n3", ["n2"])
            assert not three.links.has_failed("n3", [])

    run(work)


def test_a_name_that_leads_elsewhere_on_the_head_is_known() -> None:
    async def work() -> None:
        async with nodes(host="127.0.0.5", joined="127.0.0.6") as two:
            link = await two.check()
            assert (link.works, link.meets, link.joined) == (True, "127.0.0.5", "127.0.0.6")

    run(work)


def test_an_address_that_a_node_does_not_have_is_named() -> None:
    async def work() -> None:
        why = "Cannot assign requested address"
        async with nodes(host=ELSEWHERE) as two:
            assert (await two.check()).head_deaf == why
        async with nodes("n2", "n3") as two:
            two.own = ELSEWHERE
            assert (await two.check()).own_deaf == why
            assert not listens(two.port)
        async with nodes("n2", "n3") as two:
            two.peers[0] = two.peers[0]._replace(address=ELSEWHERE)
            link = await two.check()
            assert (link.worker_deaf, link.to_head, link.to_worker) == (why, "", "")
            assert two.between() is None
        async with nodes() as two:
            with socket.create_server((HERE, two.port)):
                assert (await two.check()).head_deaf == "Address already in use"

    run(work)


def test_on_the_way_to_no_address_a_worker_has_none_of_its_own() -> None:
    async def work() -> None:
        worker = Prober("n2", "a..b:1", Changed())
        worker.follow(PortCheck("token", {"": ("a..b", 1)}), HERE)
        await soon(lambda: worker.reached and worker.reached.failures)
        assert worker.reached is not None
        assert worker.reached.failures[""].startswith("a..b: ")
        assert (worker.reached.own, worker.reached.joined) == ("", "")
        worker.follow(None, "")

    run(work)


def test_mute_workers_cost_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "REPORT_S", 0.05)

    async def work() -> None:
        async with nodes("n2", "n3", "n4", "n5") as several:
            several.mute |= {"n2", "n4"}
            link = await several.check()
            assert link.unreported == "n2 reported nothing for 0 s"
            assert not listens(several.port)
            assert several.between("n3", "n4") is None
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
            await soon(lambda: two.links.probe("n2") is not None)
            two.links.keep({"n2": "1"})
            assert two.links.probe("n2") is not None
            two.links.keep(boots)
            link = await asyncio.wait_for(checking, links.REPORT_S / 2)
            assert link.unreported == "its daemon ended or was cut off in the meantime"

    run(work)


def test_a_check_that_is_cancelled_leaves_nothing_behind() -> None:
    async def work() -> None:
        async with nodes() as two:
            two.mute.add("n2")
            checking = asyncio.ensure_future(two.check())
            await soon(lambda: two.links.probe("n2") is not None)
            checking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await checking
            assert two.links.probe("n2") is None
            assert not listens(two.port)
            two.mute.clear()
            assert (await two.check()).works

    run(work)


def test_a_worker_ends_its_part_with_the_order() -> None:
    async def work() -> None:
        before = descriptors()
        worker = Prober("n2", f"{HERE}:1", Changed())
        worker.follow(PortCheck("token"), HERE)
        await soon(lambda: worker.reached)
        assert worker.reached is not None
        port = worker.reached.port
        assert listens(port)
        worker.follow(None, "")
        await soon(lambda: not listens(port))
        assert worker.reached is None
        await soon(lambda: descriptors() <= before)

    run(work)


def test_reports_of_other_checks_are_ignored() -> None:
    async def work() -> None:
        async with nodes() as two:
            assert (await two.check()).works
            late = two.workers["n2"].reached
            two.links.hear("n2", late)
            two.links.hear("n2", None)
            assert (await two.check()).works
            two.links.hear("n2", late)

    run(work)


def test_links_of_no_end_of_names_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_LINKS", 3)

    async def work() -> None:
        async with nodes(*(f"n{at}" for at in range(5)), host=ELSEWHERE) as many:
            await many.links.check(HERE, many.peers)
            assert len(many.links._known) == 3
            assert many.links.of("n4", "1") is not None

    run(work)


def test_a_plan_counts_with_the_slowest_interface_and_the_longest_way() -> None:
    known = Links("n1", HERE, 7071, Changed())
    boots = {"n2": "b2", "n3": "b3"}
    slow = replace(WORKER, speed_mbit=1000)
    facts = [HEAD, WORKER, slow]
    assert known.network(facts, boots) is None, "nothing is checked yet"
    for name, connect_s in (("n2", 1e-4), ("n3", 3e-4)):
        known._keep({"n1": "", name: boots[name]}, LinkState(HERE, 7071, connect_s=connect_s))
    assert known.network(facts, boots) == Network(117.5e6, 3e-4)
    unknown = replace(WORKER, speed_mbit=0)
    assert known.network([*facts, unknown], boots) is None
