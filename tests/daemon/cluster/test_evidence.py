"""The head collects its nodes' evidence for a few seconds; each node gathers it once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.incidents import Incidents
from caovand.core.cluster import evidence
from caovand.core.cluster.evidence import MARK, NodeEvidence
from caovand.core.cluster.messages import Order
from caovand.core.document import BadDocument
from caovand.core.healing.failure import Finding
from caovand.core.lifecycle.state import State
from caovand.daemon.cluster import evidence as daemons
from caovand.daemon.cluster.evidence import NOT_RUN, Collector, Witness
from caovand.daemon.records.chronicle import GatheredEvidence, Then
from tests.daemon.cluster.made_up import World
from tests.daemon.cluster.test_worker import running
from tests.patience import soon

HANG, DIED = Finding("hang", "nothing moves"), Finding("engine-died", "it ended")
RANKS = {"n2": 1, "n3": 2}
ORDER = Order(head="h")
REPORT = {
    "at": "2026-01-01T00:00:00", "failure": "hang", "decision": None, "gpu_samples": [],
    "finding": {"failure": "hang", "text": "t", "phase": "p", "captures": {}, "signature": "",
                "line": 0},
}  # fmt: skip


@dataclass
class OfSlot:
    """What is used of a slot; `asked` are the questions for evidence, answered by the test."""

    store: Incidents
    told: list[str] = field(default_factory=list)
    asked: list[tuple[Finding | None, bool, Then]] = field(default_factory=list)

    def notice(self, kind: str, text: str) -> None:
        self.told.append(text)

    def gather(self, finding: Finding | None, stacks: bool, then: Then) -> None:
        self.asked.append((finding, stacks, then))


def frame(start: str, *log: str) -> bytes:
    return evidence.encode(NodeEvidence(start, "now", log=log))


def collecting(
    folder: Path, test: Callable[[OfSlot, Collector], Coroutine[Any, Any, None]]
) -> OfSlot:
    slot = OfSlot(Incidents(folder))

    async def scenario() -> None:
        await test(slot, Collector(slot.store, slot.notice, lambda name: f"{name} is silent"))

    asyncio.run(scenario())
    return slot


def stored(slot: OfSlot) -> GatheredEvidence:
    """The incident, as the recorder stores it."""
    return GatheredEvidence(REPORT, {}, name=slot.store.write("hang", REPORT, {}))


def document(slot: OfSlot, rank: int) -> dict[str, Any]:
    return dict(json.loads(slot.store.read(1, f"node-{rank}.json", 0, 1 << 20)))


def test_what_comes_before_and_after_the_incident_is_stored_is_added_and_asked_for_until_then(
    tmp_path: Path,
) -> None:
    async def test(slot: OfSlot, one: Collector) -> None:
        assert one.ask("n2", ORDER) == ORDER
        then = one.begin("s", RANKS, HANG)
        asked = one.ask("n2", ORDER)
        assert (asked.evidence, asked.stacks) == ("s", True)
        one.take("n2", frame("another start"))
        assert one.ask("n2", ORDER) == asked
        one.take("n2", frame("s", "first"))
        one.take("n2", frame("s", "again"))
        assert one.ask("n2", ORDER) == ORDER
        assert one.ask("stranger", ORDER) == ORDER
        then(stored(slot))
        await soon(lambda: "node-1.json" in slot.store.files(1))
        one.take("n3", frame("s"))
        await soon(lambda: slot.told)
        assert document(slot, 1)["log"] == ["first"]
        assert document(slot, 2)["name"] == "n3"

    slot = collecting(tmp_path, test)
    assert slot.told == ["incident 0001-hang: received evidence from n2, n3"]


def test_a_node_that_sends_nothing_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(daemons, "WAIT_S", 0.1)
    monkeypatch.setattr(daemons, "now", lambda: clock[0])

    async def test(slot: OfSlot, one: Collector) -> None:
        one.begin("s", RANKS, DIED)(stored(slot))
        assert not one.ask("n2", ORDER).stacks
        one.take("n2", frame("s"))
        clock[0] = 1.0
        await soon(lambda: slot.told)
        assert one.ask("n3", ORDER) == ORDER
        one.take("n3", frame("s"))
        assert document(slot, 2) == {"name": "n3", "rank": 2, "missing": "n3 is silent"}

    slot = collecting(tmp_path, test)
    came = "incident 0001-hang: received evidence from n2; no evidence from n3: n3 is silent"
    assert slot.told == [came]


def test_the_next_failure_ends_the_wait_and_an_incident_that_is_none_gets_nothing(
    tmp_path: Path,
) -> None:
    async def test(slot: OfSlot, one: Collector) -> None:
        first = one.begin("s", RANKS, HANG)
        second = one.begin("t", RANKS, HANG)
        assert one.ask("n2", ORDER).evidence == "t"
        first(stored(slot))
        await soon(lambda: slot.told)
        assert {document(slot, rank)["missing"] for rank in (1, 2)} == {
            "n2 is silent", "n3 is silent",
        }  # fmt: skip
        second(GatheredEvidence(problem="no space left"))
        await soon(lambda: one.ask("n2", ORDER) == ORDER)
        assert len(slot.told) == 1

    collecting(tmp_path, test)


def test_an_incident_that_was_removed_meanwhile_and_a_full_disk_are_told(tmp_path: Path) -> None:
    async def test(slot: OfSlot, one: Collector) -> None:
        then = one.begin("s", RANKS, HANG)
        then(GatheredEvidence(REPORT, {}, name="0007-hang"))
        for name in RANKS:
            one.take(name, frame("s"))
        await soon(lambda: slot.told)

    slot = collecting(tmp_path, test)
    assert slot.told[0].count("cannot store the evidence from n") == 2
    assert "it has expired" in slot.told[0]


def test_what_is_no_evidence_is_refused_and_still_awaited(tmp_path: Path) -> None:
    async def test(slot: OfSlot, one: Collector) -> None:
        then = one.begin("s", RANKS, HANG)
        with pytest.raises(BadDocument):
            one.take("n2", MARK + b"{}")
        one.take("stranger", MARK + b"{}")
        assert one.ask("n2", ORDER).evidence == "s"
        then(GatheredEvidence())

    collecting(tmp_path, test)


# -- a worker's ---


def witness() -> tuple[OfSlot, Witness]:
    slot = OfSlot(Incidents(Path("/nowhere")))
    return slot, Witness(slot)  # type: ignore[arg-type]


ASKS = Order(head="h", evidence="s", stacks=True)
FOUND = GatheredEvidence(REPORT, {"log.txt": "a line\n", "stacks.txt": "main\n"})


def test_a_worker_gathers_once_what_the_head_asks_for_and_sends_it_until_it_is_there() -> None:
    slot, one = witness()
    one.started("s")
    one.follow(ORDER, ("", None))
    assert slot.asked == []
    one.follow(ASKS, ("", None))
    one.follow(ASKS, ("", None))
    ((finding, stacks, then),) = slot.asked
    assert (finding, stacks) == (None, True)
    assert one.frame(ASKS) == b""
    then(FOUND)
    found = evidence.read_frame(one.frame(ASKS))
    assert (found.finding, found.log, found.stacks, found.lacks) == (
        None,
        ("a line",),
        ("main",),
        "",
    )
    one.follow(ASKS, ("", None))
    assert len(slot.asked) == 1
    assert one.frame(ASKS) == one.frame(ASKS) != b""
    assert one.frame(ORDER) == b""


def test_what_could_not_be_gathered_is_tried_again() -> None:
    slot, one = witness()
    one.follow(ASKS, ("s", DIED))
    slot.asked[0][2](GatheredEvidence(problem="no more threads"))
    assert one.frame(ASKS) == b""
    one.follow(ASKS, ("s", DIED))
    assert [finding for finding, _, _ in slot.asked] == [DIED, DIED]


def test_the_evidence_of_its_own_incident_is_what_it_sends() -> None:
    slot, one = witness()
    one.started("s")
    one.recorded("s")(FOUND)
    one.follow(ASKS, ("s", DIED))
    assert slot.asked == []
    found = evidence.read_frame(one.frame(ASKS))
    assert found.finding is not None
    assert found.finding.text == "t"


def test_the_log_of_another_start_is_not_sent_for_one_that_never_ran_here() -> None:
    slot, one = witness()
    one.started("another")
    one.follow(ASKS, ("", None))
    slot.asked[0][2](FOUND)
    found = evidence.read_frame(one.frame(ASKS))
    assert found.log == ()
    assert found.lacks == NOT_RUN


# -- in the parts of a head and a worker ---


def test_a_head_asks_the_workers_of_a_start_that_failed_until_they_have_answered(
    world: World,
) -> None:
    async def story() -> None:
        head = await world.head()
        start = await head.started("n2")
        head.hear("n3")
        nodes, then = head.part.recorded(HANG)
        assert nodes == {"n2": 1}
        await soon(lambda: head.order().evidence == start)
        assert head.order().stacks
        head.link.on_frame(b"stranger", frame(start))
        head.link.on_frame(b"n3", frame(start))
        head.link.on_frame(b"n2", MARK + b"{}")
        assert (await head.ordered()).evidence == start
        assert (await head.ordered("n3")).evidence == ""
        assert [text for text in head.slot.notices if "evidence" in text] == [
            "cannot read the evidence of node n2: it does not have version 2: nodes must "
            "run the same caovan"
        ]
        head.link.on_frame(b"n2", frame(start))
        assert (await head.ordered()).evidence == ""
        head.part.recorded(DIED)
        await soon(lambda: head.order().evidence == start)
        assert not head.order().stacks
        assert "no reply" in head.part._silence("n2")
        world.clock.ahead_s += 21
        assert head.part._silence("n2").startswith("the node is silent")
        then(GatheredEvidence())

    world.play(story)


def test_a_worker_gathers_before_it_ends_its_rank_and_sends_that_until_the_head_has_it(
    world: World,
) -> None:
    async def story() -> None:
        worker = await running(world)
        worker.hear(evidence="s1", stacks=True)
        await worker.slot.until(State.HOLD)
        ((finding, stacks, then, state),) = worker.slot.gathers
        assert (finding, stacks, state) == (None, True, State.STARTING)
        assert worker.link.evidence == b""
        then(FOUND)
        await soon(lambda: worker.link.evidence)
        assert evidence.read_frame(worker.link.evidence).log == ("a line",)
        worker.hear(sent=4711.0)
        await worker.reports(lambda report: report.echo == 4711.0)
        worker.link.evidence = b""
        worker.link.sent.clear()
        await soon(lambda: worker.link.sent)
        assert worker.link.evidence == b""

    world.play(story)


def test_the_failure_of_a_rank_is_sent_with_the_evidence_of_its_own_incident(world: World) -> None:
    async def story() -> None:
        worker = await running(world)
        worker.slot.fails(DIED)
        nodes, then = worker.part.recorded(DIED)
        assert nodes == {}
        then(FOUND)
        worker.hear(evidence="s1")
        await soon(lambda: worker.link.evidence)
        found = evidence.read_frame(worker.link.evidence)
        assert found.start == "s1"
        assert found.finding is not None

    world.play(story)
