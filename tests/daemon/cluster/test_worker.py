"""A worker's reactions to its head's orders, and its reports."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from caovand.adapters.system import processes
from caovand.core.cluster.messages import Report
from caovand.core.healing.failure import Finding
from caovand.core.health.observation import GpuSample
from caovand.core.lifecycle import events
from caovand.core.lifecycle.state import State
from caovand.core.plan import Plan
from caovand.daemon.start.inspection import StartObstacle
from tests.core.machines import inventory, plan
from tests.daemon.cluster.made_up import AtWorker, World
from tests.patience import soon

DIED = Finding("engine-died", "the rank died", "serving")


def ordered() -> Plan:
    return plan(inventory())


def order(start: str = "s1", **changes: Any) -> dict[str, Any]:
    """What is said in an order of a start."""
    return {"start": start, "plan": ordered(), "rank": 1, **changes}


async def running(world: World, start: str = "s1") -> AtWorker:
    """A worker whose rank of a start is there."""
    worker = await world.worker()
    worker.slot.start()
    worker.hear(**order(start))
    await worker.slot.until(State.STARTING, spawned=True)
    await worker.reports(lambda report: report.running == start)
    return worker


async def serving(world: World) -> AtWorker:
    worker = await running(world)
    worker.hear(**order(proven=True))
    await worker.slot.until(State.SERVING)
    return worker


def test_it_reports_memory_and_nccl_by_its_log_while_its_rank_is_there(world: World) -> None:
    async def story() -> None:
        worker = await world.worker()
        worker.slot.run.reported = {"stage_1_weights_gib": 4.32, "kv_gib": 70, "nccl_1_0": "IB/0"}
        worker.slot.start()
        worker.hear(**order())
        report = await worker.reports(lambda report: report.running)
        assert report.sizes == {"stage_1_weights_gib": 4.32, "kv_gib": 70.0}
        assert report.network == "1 -> 0 IB/0"
        worker.hear(start="")
        await worker.reports(lambda report: not (report.running or report.sizes or report.network))

    world.play(story)


def test_it_reports_which_rank_is_on_which_card(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A title says nothing of the card: where there are more than ranks, the freest are taken."""
    titles = {7: "VLLM::Worker_PP1_TP0", 8: "VLLM::Worker_PP1_TP1", 9: "python"}
    monkeypatch.setattr(processes, "command_of", titles.__getitem__)

    async def story() -> None:
        worker = await world.worker()
        worker.slot.run.child = SimpleNamespace(
            members=[SimpleNamespace(pid=pid) for pid in titles]
        )
        sample = GpuSample(3, 9000, 15360, None, None, None, at=0.0, users=((7, 8000), (8, 300)))
        worker.slot.samples = [sample]
        worker.slot.start()
        worker.hear(**order())
        report = await worker.reports(lambda report: report.ranks)
        assert report.ranks == (("PP1_TP0", 7, 3), ("PP1_TP1", 8, 3))
        worker.slot.samples += [replace(sample, index=4, users=((8, 8000),))]
        world.clock.ahead_s += 3
        await worker.reports(lambda report: report.ranks[1] == ("PP1_TP1", 8, 4))
        assert worker.part.describe()["nodes"][0]["gpus"] == [3, 4]
        worker.slot.samples = []
        world.clock.ahead_s += 3
        await worker.reports(lambda report: report.ranks[1] == ("PP1_TP1", 8, None))
        assert worker.part.describe()["nodes"][0]["gpus"] == []

    world.play(story)


# -- orders ---


def test_a_worker_waits_for_its_head_and_says_whether_that_answers(world: World) -> None:
    async def story() -> None:
        worker = await world.worker()
        worker.slot.start()
        held = await worker.slot.until(State.HOLD)
        assert held.reason == "waiting for the head at 10.0.0.1:7070: it does not answer"
        assert worker.part.summary()["lost"] == ["10.0.0.1:7070"]
        worker.hear()
        assert worker.slot.notices == ["joined the head at 10.0.0.1:7070"]
        assert worker.part.summary()["lost"] == []
        report = await worker.reports(lambda report: report.facts)
        assert (report.name, report.running, report.stopped) == ("n2", "", False)
        assert report.facts["name"] == "n2"

    world.play(story)


def test_a_worker_says_that_its_head_has_another_key_as_soon_as_that_is_known(
    world: World,
) -> None:
    async def story() -> None:
        worker = await world.worker()
        worker.slot.start()
        held = await worker.slot.until(State.HOLD)
        assert held.reason.endswith("it does not answer")
        worker.link.rejected = True
        await soon(lambda: "cluster.key differs" in worker.slot.snapshot.reason)
        held = await worker.slot.until(State.HOLD)
        assert held.reason == (
            "waiting for the head at 10.0.0.1:7070: every connection closes before both sides"
            " prove that they hold the same key: cluster.key differs, another program uses that"
            " port, or the head admits no more connections (at most 8 from one address); copy the"
            " head's cluster.key again, then: sudo systemctl restart caovan; or give each worker"
            " its own address"
        )
        assert worker.part.summary()["lost"] == ["10.0.0.1:7070"]
        looked = len(worker.slot.applied)
        await worker.reports(lambda report: True)
        assert len(worker.slot.applied) == looked, "it is said once"
        worker.link.rejected = False
        await soon(lambda: worker.slot.snapshot.reason.endswith("it does not answer"))
        worker.hear(**order())
        await worker.slot.until(State.STARTING, spawned=True)

    world.play(story)


def test_a_worker_says_that_orders_cannot_be_read_and_goes_by_none_of_them(world: World) -> None:
    async def story() -> None:
        worker = await world.worker()
        worker.slot.start()
        await worker.slot.until(State.HOLD)
        worker.link.on_frame(b"", b'{"v":1}')
        await soon(lambda: "cannot be parsed" in worker.slot.snapshot.reason)
        held = await worker.slot.until(State.HOLD)
        assert held.reason == (
            "waiting for the head at 10.0.0.1:7070: its orders cannot be parsed: it does not "
            "have version 2: nodes must run the same caovan; install the same caovan on all "
            "nodes, then: sudo systemctl restart caovan"
        )
        assert worker.part.summary()["lost"] == ["10.0.0.1:7070"], "it is not heard"
        world.clock.ahead_s += 30
        await soon(lambda: worker.slot.snapshot.reason.endswith("it does not answer"))
        worker.link.on_frame(b"", b'{"v":1}')
        worker.hear(**order())
        await worker.slot.until(State.STARTING, spawned=True)

    world.play(story)


def test_a_rank_is_started_as_ordered_and_serves_once_the_head_does(world: World) -> None:
    async def story() -> None:
        worker = await running(world)
        rank = worker.slot.plans[-1]
        assert (rank.value("node_rank"), rank.value("headless")) == (1, True)
        assert rank.model == "/srv/m"
        assert worker.slot.served == 0
        worker.hear(**order(proven=True))
        await worker.slot.until(State.SERVING)
        assert worker.slot.served == 1

    world.play(story)


def test_a_worker_shows_how_far_the_start_of_the_head_is(world: World) -> None:
    async def story() -> None:
        worker = await running(world)
        one = order(phase="load", detail="shards")
        for progress in (0.25, 0.5, None):
            worker.hear(**one, progress=progress)
            await soon(
                lambda wanted=progress: (
                    worker.slot.snapshot.detail and worker.slot.snapshot.progress == wanted
                )
            )
        found = worker.slot.snapshot
        assert (found.phase, found.detail) == ("load", "the head: shards")
        # Another start that has got as far is shown, too.
        worker.hear()
        await worker.reports(lambda report: report.running == "")
        worker.hear(**{**one, "start": "s2"})
        await soon(lambda: worker.slot.snapshot.detail == "the head: shards")

    world.play(story)


@pytest.mark.parametrize(
    ("next_order", "reason"),
    [(None, "the head has been silent for 20 s"), ({}, "the head cancelled this start")],
)
def test_a_rank_ends_with_its_order_or_its_head(
    world: World, next_order: dict[str, Any] | None, reason: str
) -> None:
    async def story() -> None:
        worker = await serving(world)
        worker.slot.ends.clear()
        if next_order is None:
            world.clock.ahead_s += 30
        else:
            worker.hear(**next_order)
        ending = await worker.slot.until(State.RECYCLING)
        assert ending.reason == reason
        (restart,) = (one for one in worker.slot.applied if isinstance(one, events.Restart))
        assert restart.by == "head", "it is no operator's"
        assert (await worker.reports(lambda report: report.state == "RECYCLING")).running == "s1"
        worker.slot.ends.set()
        report = await worker.reports(lambda report: not report.running)
        assert report.failed == "", "the head knows of it"
        await worker.slot.until(State.HOLD)
        worker.hear(**order("s2"))
        await worker.reports(lambda report: report.running == "s2")

    world.play(story)


def test_a_start_ends_the_rank_of_the_one_before(world: World) -> None:
    async def story() -> None:
        worker = await serving(world)
        worker.hear(**order("s2"))
        await worker.reports(lambda report: report.running == "s2")
        assert len(worker.slot.plans) == 2

    world.play(story)


def test_an_order_that_cannot_be_read_is_told_once_and_changes_nothing(world: World) -> None:
    async def story() -> None:
        worker = await serving(world)
        for _ in range(3):
            worker.link.on_frame(b"", b'{"v":1}')
        told = [text for text in worker.slot.notices if "cannot parse the head's order" in text]
        assert len(told) == 1
        assert worker.slot.snapshot.state is State.SERVING

    world.play(story)


# -- reports ---


def test_a_rank_that_fails_is_reported_and_not_started_again_for_that_order(world: World) -> None:
    async def story() -> None:
        worker = await serving(world)
        worker.slot.fails(DIED)
        report = await worker.reports(lambda report: report.failed)
        assert (report.failed, report.finding) == ("s1", DIED)
        held = await worker.slot.until(State.HOLD)
        assert held.remedy is not None
        assert held.remedy.text == "the head decides what happens next"
        await worker.reports(lambda report: not report.running)
        worker.hear(**order(proven=True))
        worker.slot.looks_again()
        await soon(lambda: "it has not ordered a start" in worker.slot.snapshot.reason)
        assert len(worker.slot.plans) == 1
        worker.hear(**order("s2"))
        await worker.reports(lambda report: report.running == "s2")

    world.play(story)


def test_what_keeps_a_rank_from_starting_is_reported_of_its_order(world: World) -> None:
    async def story() -> None:
        worker = await world.worker()
        worker.slot.obstacles.append(StartObstacle("gpu-absent", "no card answers", hold=True))
        worker.slot.start()
        await worker.slot.until(State.HOLD)
        assert (await worker.reports(lambda report: report.state)).failed == ""
        worker.hear(**order())
        report = await worker.reports(lambda report: report.failed)
        assert report.failed == "s1"
        assert report.finding is not None
        assert (report.finding.failure, report.finding.text) == ("gpu-absent", "no card answers")
        assert worker.slot.plans == []

    world.play(story)


def test_only_the_cards_that_a_worker_may_use_are_reported(world: World) -> None:
    async def story() -> None:
        worker = await world.worker(engine={"gpus": [1]})
        worker.slot.start()
        report = await worker.reports(lambda report: report.facts)
        assert len(report.facts["cards"]) == 1

    world.play(story)


def test_a_worker_that_cannot_be_inspected_any_more_offers_nothing(world: World) -> None:
    async def story() -> None:
        worker = await world.worker()
        worker.slot.start()
        await worker.reports(lambda report: report.facts)
        gone = StartObstacle("gpu-absent", "no card answers", hold=True)
        worker.slot.obstacles.append(gone)
        worker.slot.looks_again()
        report = await worker.reports(lambda report: not report.facts)
        assert report.state == "no card answers"

    world.play(story)


def test_a_worker_without_its_model_looks_again_and_joins_once_that_is_copied(
    world: World,
) -> None:
    async def story() -> None:
        worker = await world.worker()
        missing = StartObstacle("model-missing", "cannot read /srv/m: it is not there", hold=False)
        worker.slot.obstacles.append(missing)
        worker.slot.start()
        held = await worker.slot.until(State.HOLD)
        assert (held.reason, held.deadline is not None) == (str(missing), True)
        worker.slot.obstacles.clear()
        worker.slot.looks_again()
        await worker.reports(lambda report: report.facts)

    world.play(story)


def test_a_rank_goes_on_where_a_reload_is_refused_and_its_node_keeps_its_facts(
    world: World,
) -> None:
    async def story() -> None:
        worker = await serving(world)
        worker.slot.obstacles.append(StartObstacle("model-missing", "no model", hold=False))
        worker.slot.reload()
        await soon(lambda: worker.slot.snapshot.refusal)
        assert worker.slot.snapshot.state is State.SERVING
        worker.hear(**order(proven=True, sent=7.0))
        report = await worker.reports(lambda report: report.echo == 7.0)
        assert (bool(report.facts), report.failed, report.running) == (True, "", "s1")

    world.play(story)


def test_cards_that_no_rank_can_use_are_the_reason_that_a_worker_reports(world: World) -> None:
    async def story() -> None:
        worker = await world.worker(engine={"gpus": [7]})
        worker.slot.start()
        held = await worker.slot.until(State.HOLD)
        assert held.reason.startswith("cannot use GPU 7: the visible ones are [0, 1]")
        report = await worker.reports(lambda report: report.state == held.reason)
        assert not report.facts

    world.play(story)


def test_an_operator_that_stops_a_worker_is_reported(world: World) -> None:
    async def story() -> None:
        worker = await serving(world)
        worker.slot.stop()
        await worker.reports(lambda report: report.stopped)
        await worker.slot.until(State.STOPPED)
        worker.hear(**order("s2", sent=5.0))
        await worker.reports(lambda report: report.echo == 5.0)
        assert worker.slot.snapshot.state is State.STOPPED
        worker.slot.start()
        await worker.reports(lambda report: report.running == "s2" and not report.stopped)

    world.play(story)


def test_an_operator_that_restarts_a_worker_makes_the_head_start_all_anew(world: World) -> None:
    async def story() -> None:
        worker = await serving(world)
        worker.slot.restart()
        report = await worker.reports(lambda report: report.failed)
        assert report.failed == "s1"
        assert report.finding == Finding("node-lost", "its rank was stopped by an operator there")
        await worker.slot.until(State.HOLD)

    world.play(story)


def test_a_reload_that_changes_what_a_rank_runs_with_is_reported_as_that(world: World) -> None:
    async def story() -> None:
        worker = await serving(world)
        worker.slot.reload()
        await soon(lambda: not worker.slot.snapshot.inspecting)
        assert worker.slot.snapshot.state is State.SERVING, "nothing of it has changed"
        worker.slot.reload(engine={"env": {"NCCL_DEBUG": "INFO"}})
        report = await worker.reports(lambda report: report.failed)
        assert report.failed == "s1"
        why = "its rank was stopped because its configuration changed there"
        assert report.finding == Finding("node-lost", why)
        await worker.slot.until(State.HOLD)
        worker.hear(**order("s2"))
        await worker.reports(lambda report: report.running == "s2")
        assert worker.slot.plans[-1].env["NCCL_DEBUG"].value == "INFO"

    world.play(story)


def test_a_report_echoes_the_order_it_follows(world: World) -> None:
    async def story() -> None:
        worker = await world.worker()
        assert (await worker.reports(lambda report: True)).echo == 0.0
        worker.hear(sent=1234.5)
        report = await worker.reports(lambda report: report.echo)
        assert report.echo == 1234.5
        world.clock.ahead_s += 3
        assert (await worker.reports(lambda report: report.held_s >= 3)).echo == 1234.5

    world.play(story)


def test_what_outlives_its_end_is_still_reported_until_it_is_gone(world: World) -> None:
    async def story() -> None:
        worker = await running(world)
        worker.slot.left = "VLLM::Worker (pid 7)"
        worker.hear()
        held = await worker.slot.until(State.HOLD)
        assert "outlived KILL" in held.reason

        def still_there(report: Report) -> bool:
            assert report.running == "s1"
            return "VLLM::Worker (pid 7)" in report.state

        await worker.reports(still_there)
        # The head orders no other start meanwhile, and none would be begun.
        worker.hear(**order("s2"))
        worker.slot.looks_again()
        await worker.reports(lambda report: "cannot be killed" in report.state)
        assert worker.report().running == "s1"
        worker.hear()
        worker.slot.left = ""
        worker.slot.looks_again()
        await worker.reports(lambda report: report.running == "")
        worker.hear(**order("s3"))
        await worker.reports(lambda report: report.running == "s3")

    world.play(story)
