"""Valid requests, and the replies to invalid ones."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand import __version__
from caovand.adapters.engine.pump import Ring
from caovand.adapters.incidents import Incidents
from caovand.adapters.network.http import Endpoint
from caovand.core.config.schema import Config, Mode
from caovand.core.lifecycle.events import LifecycleEvent
from caovand.core.lifecycle.state import Snapshot, State
from caovand.core.plan import Plan, Setting, Taken
from caovand.core.problem import ProblemError
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Notice, Reply, Request
from caovand.core.slot import MAIN_SLOT
from caovand.daemon.cluster.part import Part
from caovand.daemon.engine.figures import SlotFigures
from caovand.daemon.keys import Keys
from caovand.daemon.requests import evidence_verbs, verbs
from caovand.daemon.supervisor import Supervisor
from caovand.engines.registry import engine_of
from tests.patience import turns


class FakeSupervisor:
    """What verbs touch of a supervisor; it notes what it was told."""

    def __init__(self, folder: Path = Path("/nowhere")) -> None:
        self.slots: dict[str, FakeSupervisor] = {MAIN_SLOT: self}
        self.run = self.worst = self.clients = self
        self.one_line = "STOPPED"
        self.ring = Ring(1000)
        self.incidents = Incidents(folder / "incidents")
        self.name, self.history, self.off = MAIN_SLOT, self, False
        self.figures = SlotFigures()
        self.notices: deque[Notice] = deque()
        self.snapshot = Snapshot()
        self.changed = asyncio.Event()
        self.incidents = Incidents(folder / "incidents")
        self.config_path = folder / "caovan.toml"
        self.argv = ("python", "-m", "vllm")
        self.endpoint: Endpoint | None = None
        self.notifier = self
        self.told: list[Any] = []
        self.mode: tuple[Mode, str] = ("auto", "/etc/caovan.toml")
        self.config = Config()
        self.engine = engine_of()
        self.part = Part()
        self.environ: dict[str, str] = {}
        self.requests: deque[dict[str, Any]] = deque()
        self.keys = Keys(folder, lambda _kind, _text: None, lambda: None)

    async def read(
        self, slot: str, seconds: float, points: int, until: float | None
    ) -> dict[str, Any]:
        """As the history does."""
        self.told.append((slot, seconds, points, until))
        if self.off:
            raise ProblemError("show a history", "[history] days is 0", "set it")
        return {"at": []}

    async def next(self, since: int, wait_s: float) -> dict[str, Any]:
        return {"seq": since, "wait_s": wait_s}

    def report(self, *news: Any) -> None:
        self.told.append(news)

    def recent(self) -> dict[str, Any]:
        return {**self.figures.recent(), "card_age_s": [], "cards": {}}

    def describe(self, name: str = "") -> dict[str, Any]:
        return {"state": self.snapshot.state.value}

    def apply_operator_event(self, event: LifecycleEvent) -> None:
        self.told.append(type(event).__name__)

    def choose_mode(self, mode: Mode | None, *, defer: bool) -> None:
        self.told.append((mode, defer))

    def reconfigure(self, config: Config) -> None:
        self.told.append(config)

    def notice(self, kind: str, text: str) -> None:
        self.told.append((kind, text))

    def reloading(self) -> None:
        self.told.append("reloading")

    def ready(self, status: str) -> None:
        self.told.append("ready")

    def forget(self) -> None:
        self.told.append("forget")

    def retry_full(self) -> None:
        self.told.append("retry full")


def ask(fake: FakeSupervisor, op: str, **args: Any) -> Reply:
    request = Request(op, args, "id")
    reply = asyncio.run(verbs.answer(cast(Supervisor, fake), request))
    assert reply.id == "id"
    return reply


ON_THE_HEAD: dict[str, tuple[dict[str, Any], str]] = {
    "mode": ({"mode": "fast"}, "run `caovanctl mode fast` on the head"),
    "reset": ({}, "run `caovanctl reset` on the head"),
    "retry": ({"full": True}, "run `caovanctl retry --full` on the head"),
    "endpoint": ({}, "use the page on the head"),
}


@pytest.mark.parametrize("op", ON_THE_HEAD)
def test_what_the_head_decides_is_refused_on_a_worker(op: str) -> None:
    fake = FakeSupervisor()
    fake.part.planned_by = "10.0.0.1:7070"
    args, remedy = ON_THE_HEAD[op]
    reply = ask(fake, op, **args)
    assert (reply.code, reply.hint) == ("on-the-head", remedy)
    assert "this machine is a worker, and the head at 10.0.0.1:7070 plans" in reply.message
    assert fake.told == []


@pytest.mark.parametrize("op", ["start", "stop", "restart", "retry"])
def test_what_concerns_this_machine_is_done_on_a_worker(op: str) -> None:
    fake = FakeSupervisor()
    fake.part.planned_by = "10.0.0.1:7070"
    assert ask(fake, op).ok
    assert len(fake.told) == 1


def test_the_mode_of_a_worker_decides_nothing() -> None:
    fake = FakeSupervisor()
    fake.part.planned_by = "10.0.0.1:7070"
    assert result(fake, "mode")["overruled"] == "the head at 10.0.0.1:7070"


def result(fake: FakeSupervisor, op: str, **args: Any) -> dict[str, Any]:
    reply = ask(fake, op, **args)
    assert reply.result is not None, reply.message
    return dict(reply.result)


@pytest.fixture
def fake(tmp_path: Path) -> FakeSupervisor:
    return FakeSupervisor(tmp_path)


# -- what a request may say ---


def test_an_unknown_op_is_told_with_our_version(fake: FakeSupervisor) -> None:
    reply = ask(fake, "x" * 1000)
    assert reply.code == "unknown-op"
    assert __version__ in reply.message
    assert len(reply.message) < 200


@pytest.mark.parametrize("op", sorted(verbs.VERBS))
def test_an_unknown_argument_is_refused_and_nothing_is_done(fake: FakeSupervisor, op: str) -> None:
    reply = ask(fake, op, warp=9)
    assert (reply.code, reply.message) == (
        "bad-argument", f'cannot do "{op}": unknown argument "warp"',
    )  # fmt: skip
    assert fake.told == []


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("wait", {"until": "dawn"}),
        ("wait", {"until": 1}),
        ("wait", {"timeout_s": "1"}),
        ("wait", {"timeout_s": True}),
        ("wait", {"timeout_s": -1}),
        ("wait", {"timeout_s": float("nan")}),
        ("wait", {"timeout_s": float("inf")}),
        ("wait", {"timeout_s": 10**400}),
        ("wait", {"timeout_s": None}),
        ("logs", {"lines": "9"}),
        ("logs", {"lines": True}),
        ("logs", {"lines": 1.5}),
        ("logs", {"since": None}),
        ("events", {"since": []}),
        ("mode", {"mode": "warp"}),
        ("mode", {"mode": None}),
        ("mode", {"mode": ["fast"]}),
        ("mode", {"mode": {"fast": 1}}),
        ("mode", {"mode": "fast", "defer": 1}),
        ("retry", {"full": "yes"}),
    ],
)
def test_a_bad_argument_is_refused_and_nothing_is_done(
    fake: FakeSupervisor, op: str, args: dict[str, Any]
) -> None:
    assert ask(fake, op, **args).code == "bad-argument"
    assert fake.told == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
ARGUMENTS = sorted({name for verb in verbs.VERBS.values() for name in verb.arguments})


@given(
    st.sampled_from([op for op in sorted(verbs.VERBS) if op != "wait"]),
    st.dictionaries(st.sampled_from(ARGUMENTS), JSON, max_size=2),
)
def test_any_arguments_are_answered_in_a_frame(op: str, args: dict[str, Any]) -> None:
    fake = FakeSupervisor()
    fake.ring.extend(["a", "b"])
    assert len(wire.encode_reply(ask(fake, op, **args))) <= wire.MAX_BYTES


def test_the_gateway_hears_what_is_new_and_reports() -> None:
    fake = FakeSupervisor()
    assert ask(fake, "gateway", since=3, wait_s=5).result == {"seq": 3, "wait_s": 5.0}
    assert ask(fake, "gateway", wait_s=3600.0).code == "bad-argument"
    totals = {"ended": {"200": 1}, "waited_s": 0.5, "resent": 0}
    news: dict[str, Any] = {"seq": 3, "waiting": 1, "at_engine": 2, "totals": totals}
    assert ask(fake, "gateway_report", **news, endings=["POST /v1/x\x1b, 3 bytes"]).ok
    counts = {"waiting": 1, "at_engine": 2}
    assert fake.told == [(3, counts, totals, ["POST /v1/x\\x1b, 3 bytes"])]


# -- which model it is about ---


def ask_of(fake: FakeSupervisor, model: str, op: str) -> Reply:
    request = Request(op, model=model)
    return asyncio.run(verbs.answer(cast(Supervisor, fake), request))


@pytest.fixture
def two(tmp_path: Path) -> FakeSupervisor:
    """A daemon of two models, the other one at `two.slots["b"]`."""
    fake = FakeSupervisor(tmp_path)
    fake.slots["b"] = FakeSupervisor(tmp_path)
    return fake


SLOT_VERBS = sorted(op for op, verb in verbs.VERBS.items() if isinstance(verb, verbs.SlotVerb))
DAEMON_VERBS = sorted({*verbs.VERBS} - {*SLOT_VERBS})


@pytest.mark.parametrize("op", SLOT_VERBS)
def test_with_several_models_a_request_that_names_none_is_refused_with_the_list(
    two: FakeSupervisor, op: str
) -> None:
    reply = ask(two, op)
    assert (reply.code, reply.hint) == ("which-model", "name one of: main, b")
    assert two.told == []


@pytest.mark.parametrize("op", [*SLOT_VERBS, "status"])
def test_an_unknown_model_is_refused_with_the_list(fake: FakeSupervisor, op: str) -> None:
    reply = ask_of(fake, "x" * 1000, op)
    assert (reply.code, reply.hint) == ("unknown-model", "name one of: main")
    assert len(reply.message) < 200
    assert fake.told == []


@pytest.mark.parametrize("op", sorted({*DAEMON_VERBS} - {"status"}))
def test_what_concerns_the_whole_daemon_takes_no_model(fake: FakeSupervisor, op: str) -> None:
    assert ask_of(fake, MAIN_SLOT, op).code == "bad-argument"
    assert fake.told == []


def test_a_request_is_for_the_model_it_names(two: FakeSupervisor) -> None:
    assert ask_of(two, "b", "stop").ok
    assert (two.told, two.slots["b"].told) == ([], ["Stop"])
    assert ask(two, "status").ok


def test_the_only_model_may_be_named(fake: FakeSupervisor) -> None:
    assert ask_of(fake, MAIN_SLOT, "stop").ok
    assert fake.told == ["Stop"]


# -- what is done ---


@pytest.mark.parametrize(
    ("op", "args", "told"),
    [
        ("start", {}, "Start"),
        ("stop", {}, "Stop"),
        ("restart", {}, "Restart"),
        ("retry", {}, "Start"),
        ("retry", {"full": True}, "retry full"),
        ("reset", {}, "forget"),
        ("mode", {"mode": "fast"}, ("fast", False)),
        ("mode", {"mode": "stable", "defer": True}, ("stable", True)),
        ("mode", {"mode": "default"}, (None, False)),
    ],
)
def test_the_supervisor_is_told(
    fake: FakeSupervisor, op: str, args: dict[str, Any], told: object
) -> None:
    answer = result(fake, op, **args)
    assert (answer["state"], answer["settled"]) == ("STOPPED", True)
    assert fake.told == [told]


@pytest.mark.parametrize("degraded", [False, True])
def test_a_full_plan_that_serves_is_not_restarted_to_be_tried(
    fake: FakeSupervisor, degraded: bool
) -> None:
    rungs = (Taken("fresh-cache", degrades=degraded),)
    plan = Plan("m", {}, {}, taken=rungs)
    fake.snapshot = replace(Snapshot(), state=State.SERVING, plan=plan)
    answer = result(fake, "retry", full=True)
    assert fake.told == (["retry full"] if degraded else [])
    assert ("note" in answer) == (not degraded)
    assert answer["state"] == "SERVING"


def test_a_mode_is_shown_without_being_chosen(fake: FakeSupervisor) -> None:
    answer = result(fake, "mode")
    assert (answer["mode"], answer["origin"], fake.told) == ("auto", "/etc/caovan.toml", [])


def test_a_full_disk_is_told(fake: FakeSupervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(mode: Mode | None, *, defer: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fake, "choose_mode", full)
    reply = ask(fake, "mode", mode="fast")
    assert (reply.code, "No space left" in reply.message) == ("failed", True)


def test_a_reload_uses_the_file(fake: FakeSupervisor) -> None:
    fake.config_path.write_text("[server]\nport = 9\n")
    result(fake, "reload")
    config = fake.told[1]
    assert isinstance(config, Config)
    assert config.server.port == 9
    assert [fake.told[0], fake.told[2]] == ["reloading", "ready"]


def test_a_broken_file_changes_nothing_and_says_why(fake: FakeSupervisor) -> None:
    fake.config_path.write_text("[server]\nport = 0\n")
    reply = ask(fake, "reload")
    assert reply.code == "bad-config"
    assert "port must be from 1 to 65535" in reply.message
    assert not any(isinstance(item, Config) for item in fake.told)
    assert "ready" in fake.told, "systemd would wait for the end of the reload"


def test_a_reload_names_the_file_that_names_a_bad_key_file(fake: FakeSupervisor) -> None:
    fake.config_path.write_text('[server]\napi_key_file = "/nowhere/key"\n')
    said = ask(fake, "reload").message
    assert said.startswith(f"{fake.config_path}: cannot read [server] api_key_file /nowhere/key: ")


def test_a_plan_is_shown_once_there_is_one(fake: FakeSupervisor) -> None:
    assert ask(fake, "plan").code == "no-plan"
    plan = Plan("m", {"dtype": Setting("half", "policy", "SM75")}, {}, ("--seed", "1"))
    fake.snapshot = replace(fake.snapshot, plan=plan)
    answer = result(fake, "plan")
    assert answer["settings"]["dtype"] == {"value": "half", "origin": "policy", "reason": "SM75"}
    assert answer["extra_args"] == ["--seed", "1"]
    assert (answer["engine"], answer["fingerprint"]) == ("vllm", plan.identity)
    assert answer["context"] is None


# -- waiting ---


@pytest.mark.parametrize(
    ("state", "until", "reached"),
    [
        (State.SERVING, "serving", True),
        (State.SERVING, "settled", True),
        (State.SERVING, "stopped", False),
        (State.FAILED, "settled", True),
        (State.HOLD, "settled", True),
        (State.BACKOFF, "settled", False),
        (State.STARTING, "serving", False),
        (State.STOPPED, "stopped", True),
    ],
)
def test_wait_knows_what_is_reached(
    fake: FakeSupervisor, state: State, until: str, reached: bool
) -> None:
    fake.snapshot = replace(fake.snapshot, state=state)
    assert result(fake, "wait", until=until, timeout_s=0)["reached"] is reached


def test_an_engine_whose_plan_may_still_change_is_not_settled(fake: FakeSupervisor) -> None:
    fake.snapshot = replace(fake.snapshot, state=State.SERVING, spawned=True, inspecting=True)
    assert result(fake, "wait", until="settled", timeout_s=0)["reached"] is False


def test_a_stranger_may_not_wait_for_a_day(fake: FakeSupervisor) -> None:
    async def reply(timeout_s: float, trusted: bool) -> Reply:
        args = {"until": "stopped", "timeout_s": timeout_s}
        request = Request("wait", args, trusted=trusted)
        return await verbs.answer(cast(Supervisor, fake), request)

    async def test() -> None:
        assert (await reply(86_400.0, False)).code == "bad-argument"
        assert "from 0 to 60" in (await reply(60.5, False)).message
        assert (await reply(60.0, False)).ok
        assert (await reply(86_400.0, True)).ok

    asyncio.run(test())


def test_wait_answers_when_it_comes_true(fake: FakeSupervisor) -> None:
    async def test() -> None:
        request = Request("wait", {"until": "serving", "timeout_s": 60})
        waiting = asyncio.ensure_future(verbs.answer(cast(Supervisor, fake), request))
        for state in (State.STARTING, State.SERVING):
            await turns()
            fake.snapshot = replace(fake.snapshot, state=state)
            old, fake.changed = fake.changed, asyncio.Event()
            old.set()
        assert (await waiting).result == {"reached": True, "state": "SERVING"}

    asyncio.run(test())


# -- logs and events ---


def test_the_latest_lines_are_given(fake: FakeSupervisor) -> None:
    fake.ring.extend([str(n) for n in range(1, 11)])
    assert result(fake, "logs", lines=2) == {
        "lines": ["9", "10"], "last": 10, "more": False, "end": 10,
    }  # fmt: skip
    assert result(fake, "logs", since=8)["lines"] == ["9", "10"]
    assert result(fake, "logs", lines=0)["lines"] == []
    assert result(fake, "logs", lines=-5)["lines"] == []
    assert len(result(fake, "logs", lines=10**30)["lines"]) == 10


def test_a_follower_goes_on_after_the_daemon_was_restarted(fake: FakeSupervisor) -> None:
    """Its numbers are those of the daemon before."""
    fake.ring.extend(["fresh"])
    fake.notices.append(Notice(1, 0.0, "daemon", "fresh"))
    assert result(fake, "logs", since=5000)["lines"] == ["fresh"]
    assert [e["text"] for e in result(fake, "events", since=5000)["events"]] == ["fresh"]


@pytest.mark.parametrize("line", ["x" * 16384, "\x01" * 16384, '"' * 16384, "\U0001f600" * 16384])
def test_lines_of_any_kind_fit_into_frames(fake: FakeSupervisor, line: str) -> None:
    fake.ring.extend([line] * 20)
    seen, since, more = 0, 0, True
    while more:
        reply = ask(fake, "logs", since=since)
        assert len(wire.encode_reply(reply)) <= wire.MAX_BYTES
        assert reply.result is not None
        seen += len(reply.result["lines"])
        since, more = reply.result["last"], reply.result["more"]
    assert seen == 20


def test_events_of_any_size_come_in_order_and_fit_into_frames(fake: FakeSupervisor) -> None:
    sizes = [10, 30_000, 20_000, 90_000, 10]
    for number, size in enumerate(sizes, 1):
        fake.notices.append(Notice(number, 0.0, "state", "x" * size, {"a": 1}))
    seen: list[int] = []
    while entries := result(fake, "events", since=seen[-1] if seen else 0)["events"]:
        seen += [entry["seq"] for entry in entries]
    assert seen == [1, 2, 3, 4, 5]


def test_the_history_is_that_of_the_slot_over_the_time_that_is_asked_for() -> None:
    fake = FakeSupervisor()
    assert result(fake, "history", seconds=3600, points=12) == {"at": []}
    assert result(fake, "history") == {"at": []}
    assert result(fake, "history", until=1_800_000_000) == {"at": []}
    assert fake.told == [
        (MAIN_SLOT, 3600.0, 12, None),
        (MAIN_SLOT, 86_400.0, evidence_verbs.MAX_POINTS, None),
        (MAIN_SLOT, 86_400.0, evidence_verbs.MAX_POINTS, 1_800_000_000.0),
    ]


@pytest.mark.parametrize(
    "args",
    [
        {"seconds": 59},
        {"seconds": 1e9},
        {"points": 0},
        {"points": 1001},
        {"points": "x"},
        {"until": -1},
        {"until": 1e300},
    ],
)
def test_a_history_of_no_time_or_no_points_is_refused(args: dict[str, Any]) -> None:
    reply = ask(FakeSupervisor(), "history", **args)
    assert reply.code == "bad-argument"


def test_a_history_that_is_turned_off_is_a_refusal_with_its_remedy() -> None:
    fake = FakeSupervisor()
    fake.off = True
    reply = ask(fake, "history")
    assert (reply.code, reply.hint) == ("no-history", "set it")
    assert reply.message == "cannot show a history: [history] days is 0"


def test_the_recent_readings_are_lists() -> None:
    assert set(result(FakeSupervisor(), "recent")) >= {"age_s", "generation_tokens_per_s", "cards"}


def test_the_page_learns_where_to_send_a_chat_once_the_engine_serves() -> None:
    one = FakeSupervisor()
    one.endpoint = Endpoint("0.0.0.0", 8000, key="sk-1")
    assert ask(one, "endpoint").code == "not-serving"
    plan = Plan("/m", {"served_model_name": Setting("small", "policy", "")}, {})
    one.snapshot = Snapshot(state=State.SERVING, plan=plan)
    found = ask(one, "endpoint").result
    assert found == {
        "host": "127.0.0.1", "port": 8000, "tls": False, "key": "sk-1",
        "path": "/v1/chat/completions", "model": "small",
    }  # fmt: skip
