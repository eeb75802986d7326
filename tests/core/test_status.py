"""The status shown to people and programs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest

from caovand.core.engine.log import StartStep
from caovand.core.facts.forecast import MemoryEstimate
from caovand.core.healing.failure import Failure, Finding
from caovand.core.healing.ladder import Decision
from caovand.core.lifecycle.state import Snapshot, State
from caovand.core.plan import Plan, Setting, Taken
from caovand.core.reporting.status import (
    DaemonFacts,
    EngineFacts,
    SlotFacts,
    describe,
    entry,
    is_settled,
    one_line,
    one_line_of_all,
    public,
    worst_first,
)
from caovand.engines.registry import MODULES, engine_of
from tests import fake_engine as tabby

PLAN = Plan(
    "/srv/models/Q",
    {
        name: Setting(value, "policy", "a test")
        for name, value in {
            "host": "0.0.0.0",
            "port": 8001,
            "served_model_name": "q",
            "speculative_config": {"num_speculative_tokens": 3},
        }.items()
    },
    {},
    taken=(Taken("mtp-3"),),
)
FACTS = SlotFacts(
    daemon=DaemonFacts(version="1", pid=7, config="f"), engine=EngineFacts(pid=42),
    mode="auto", mode_origin="f", figures={}, revision=1,
)  # fmt: skip
SERVING = Snapshot(state=State.SERVING, since=100.0, plan=PLAN, spawns=3, deadline=700.0)


def test_serving_says_what_and_where() -> None:
    document = describe(SERVING, FACTS, 112.5)
    assert (document["state"], document["since_s"], document["settled"]) == ("SERVING", 12.5, True)
    assert document["served"]["name"] == "q"
    assert document["served"]["port"] == 8001
    assert (document["mtp"], document["rungs"], document["restarts"]) == (3, ["mtp-3"], 2)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("plan", [None, PLAN])
def test_every_state_has_a_document_that_is_json_and_one_line(
    state: State, plan: Plan | None
) -> None:
    if state is State.SERVING and plan is None:
        return  # nothing serves without a plan
    finding = Finding("hang", "no progress", captures={"seconds": "60"})
    s = Snapshot(state=state, plan=plan, deadline=5.0, finding=finding, refusal=finding)
    document = describe(s, FACTS, 1.0)
    assert json.loads(json.dumps(document))["state"] == state.value
    assert (document["served"] is not None) == (state is State.SERVING)
    assert (document["retry_in_s"] is not None) == (state in (State.BACKOFF, State.HOLD))
    assert one_line(s).startswith(state.value)
    assert "\n" not in one_line(s)


@pytest.mark.parametrize("state", State)
def test_what_an_engine_did_is_shown_only_while_there_is_one(state: State) -> None:
    facts = replace(
        FACTS,
        engine=EngineFacts(
            reported={"kv_gib": 2.0},
            forecast=MemoryEstimate(True, 0.9, 1.0, 2048.0, 1.0, 1, 1, 1.0, 1.0, (("kv", 2048.0),)),
        ),
    )
    document = describe(Snapshot(state=state, plan=PLAN), facts, 1.0)
    gone = state in (State.STOPPED, State.BACKOFF, State.HOLD, State.FAILED)
    assert bool(document["forecast"]) is not gone


def test_the_wait_for_the_next_attempt_is_never_negative() -> None:
    s = Snapshot(state=State.BACKOFF, deadline=5.0)
    assert [describe(s, FACTS, now)["retry_in_s"] for now in (1.0, 9.0)] == [4.0, 0.0]


def test_while_held_looks_again_no_attempt_is_announced() -> None:
    s = Snapshot(state=State.HOLD, deadline=300.0, inspecting=True)
    document = describe(s, FACTS, 1.0)
    assert (document["retry_in_s"], document["looking"]) == (None, True)


def test_the_last_failure_has_its_age() -> None:
    s = replace(SERVING, finding=Finding("hang", "no progress"), found_at=90.0)
    document = describe(s, FACTS, 112.5)
    assert (document["last_failure"]["failure"], document["last_failure_s"]) == ("hang", 22.5)
    assert describe(SERVING, FACTS, 112.5)["last_failure_s"] is None


def test_settled_means_that_nothing_is_under_way() -> None:
    settled = {state for state in State if is_settled(Snapshot(state=state))}
    assert settled == {State.SERVING, State.FAILED, State.HOLD, State.STOPPED}
    assert not is_settled(replace(SERVING, spawned=True, inspecting=True))


def test_one_line_says_the_most_of_a_start() -> None:
    s = Snapshot(state=State.STARTING, phase="load", progress=0.5, detail="shard 3 of 6")
    assert one_line(s) == "STARTING, load 50%: shard 3 of 6"
    assert one_line(Snapshot(state=State.FAILED, reason="no room")) == "FAILED: no room"


def test_whoever_is_not_of_the_group_reads_no_line_of_the_log() -> None:
    line = "ValueError: the prompt was: my secret"
    finding = Finding("unknown", line, "serving", {"x": "secret"}, "exception", 17)
    snapshot = Snapshot(State.FAILED, finding=finding, reason=f"{line} (exit status 1)")
    document = describe(snapshot, FACTS, 1.0)
    assert "secret" not in str(public(document))
    assert "secret" not in one_line(snapshot)
    assert public(document)["last_failure"]["failure"] == "unknown"


@pytest.mark.parametrize(
    ("failure", "phase"),
    [
        ("hang", "serving"),
        ("engine-died", "proof"),
        ("start-stall", "load"),
        ("start-stall", "launch"),
    ],
)
def test_nor_what_the_engine_answered_or_printed_elsewhere(failure: Failure, phase: str) -> None:
    finding = Finding(failure, "/v1/completions: HTTP 500: secret", phase)
    decision = Decision("degrade", text="without secret", obstacles=("secret is pinned",))
    snapshot = Snapshot(
        State.BACKOFF, finding=finding, reason=finding.text, remedy=decision,
        detail='"secret-model.safetensors" 12 %',
    )  # fmt: skip
    document = public(describe(snapshot, FACTS, 1.0))
    assert "secret" not in str(document)
    assert document["reason"] == f"{failure} in phase {phase}"
    assert "secret" not in one_line(replace(snapshot, state=State.STARTING))


@pytest.mark.parametrize(
    ("phase", "step", "title"),
    [
        ("", "launch", "launch"), ("plan", "plan", "plan"), ("load", "load", "milk"),
        ("listen", "prove", "ears"), ("proof", "prove", "test completion"), ("nap", None, None),
    ],
)  # fmt: skip
def test_a_start_shows_the_steps_of_whatever_engine_it_is(
    phase: str, step: str | None, title: str | None
) -> None:
    facts = replace(FACTS, engine=EngineFacts(phases=tabby.LOG.phases))
    document = describe(Snapshot(State.STARTING, phase=phase), facts, 1.0)
    assert (document["step"], document["phase_title"]) == (step, title)
    later = describe(replace(SERVING, phase=phase), facts, 1.0)
    assert (later["step"], later["phase_title"]) == (None, None)


@pytest.mark.parametrize("kind", MODULES)
def test_the_phases_of_an_engine_are_steps_in_order(kind: str) -> None:
    """The page shows a start as steps, of which each is done once the next begins."""
    steps = [phase.step for phase in engine_of(kind).log.phases]
    assert steps == sorted(steps, key=get_args(StartStep).index)


def test_a_phase_in_our_own_words_is_for_everybody() -> None:
    snapshot = Snapshot(State.STARTING, phase="load", detail="shard 3 of 6")
    assert public(describe(snapshot, FACTS, 1.0))["detail"] == "shard 3 of 6"


def test_our_own_words_are_for_everybody() -> None:
    finding = Finding("port-busy", "cannot use port 8000: nginx listens there", "plan")
    snapshot = Snapshot(State.HOLD, finding=finding, reason=finding.text)
    assert public(describe(snapshot, FACTS, 1.0))["reason"] == finding.text
    assert "nginx" in one_line(snapshot)


@pytest.mark.parametrize(
    ("host", "names", "url", "name"),
    [
        ("::", "q", "http://[::]:8001/v1", "q"),
        ("127.0.0.1", ["q", "alias"], "http://127.0.0.1:8001/v1", "q"),
    ],
)
def test_the_address_and_the_name_are_what_clients_can_use(
    host: str, names: object, url: str, name: str
) -> None:
    typed = {"host": Setting(host, "user", ""), "served_model_name": Setting(names, "user", "")}
    plan = replace(PLAN, settings={**PLAN.settings, **typed})
    served = describe(replace(SERVING, plan=plan), FACTS, 1.0)["served"]
    assert (served["url"], served["name"]) == (url, name)


def test_degraded_says_why_since_when_and_how_back() -> None:
    why = "context 2048 -> 1024, because of kv-cache-short"
    lowered = replace(
        PLAN, settings={**PLAN.settings, "max_model_len": Setting(1024, "ladder", why)}
    )
    facts = replace(FACTS, degraded_since=1_700_000_000.0)
    told = describe(replace(SERVING, plan=lowered), facts, 112.5)["degraded"]
    assert (told["why"], told["since"], told["rungs"]) == ([why], 1_700_000_000.0, ["mtp-3"])
    assert "retry --full" in told["back"]
    full = replace(PLAN, taken=())
    assert describe(replace(SERVING, plan=full), FACTS, 112.5)["degraded"] is None


def test_a_new_compile_cache_is_a_step_and_no_degradation() -> None:
    fresh = replace(SERVING, plan=replace(PLAN, taken=(Taken("fresh-cache", degrades=False),)))
    document = describe(fresh, FACTS, 112.5)
    assert (document["degraded"], document["rungs"]) == (None, ["fresh-cache"])
    assert "degraded" not in one_line(fresh)


def test_output_that_the_log_lacks_is_counted() -> None:
    assert describe(SERVING, FACTS, 1.0)["log_bytes_lost"] == 0
    assert (
        describe(SERVING, replace(FACTS, engine=EngineFacts(log_bytes_lost=9)), 1.0)[
            "log_bytes_lost"
        ]
        == 9
    )


# -- several slots ---


def test_the_slot_that_needs_somebody_comes_first() -> None:
    full = replace(PLAN, taken=())
    snapshots = {
        "stopped": Snapshot(),
        "full": replace(SERVING, plan=full),
        "degraded": SERVING,
        "failed": Snapshot(state=State.FAILED, reason="no model"),
        "waits": Snapshot(state=State.HOLD),
    }
    assert worst_first(snapshots) == ["failed", "waits", "stopped", "degraded", "full"]
    line = one_line_of_all(snapshots)
    assert line.startswith("failed: FAILED: no model; waits: HOLD; stopped: STOPPED; degraded: ")
    assert worst_first({str(n): Snapshot(state=s) for n, s in enumerate(State)})


def test_the_only_slot_is_not_named() -> None:
    assert one_line_of_all({"main": SERVING}) == one_line(SERVING)


def test_an_entry_has_what_is_the_slots_and_nothing_of_the_daemon() -> None:
    document = describe(SERVING, FACTS, 112.5)
    own = entry("main", document)
    assert own["name"] == "main"
    assert set(document) - set(own) == {"gpus", "daemon"}
    assert all(own[key] == document[key] for key in document if key in own)


def test_the_document_for_everybody_shows_no_slots_secrets() -> None:
    finding = Finding("unknown", "it says: secret words")
    document = describe(Snapshot(state=State.FAILED, finding=finding), FACTS, 1.0)
    assert "secret" in str(document)
    shown = public({**document, "slots": [entry("a", document), entry("b", document)]})
    assert "secret" not in str(shown)
    assert [slot["name"] for slot in shown["slots"]] == ["a", "b"]


def test_kernels_that_are_not_used_are_a_warning() -> None:
    refused = replace(FACTS, engine=EngineFacts(reported={"kernels_refusal": "use --dtype half"}))
    warning = "caovan's kernels are not used: use --dtype half"
    assert describe(SERVING, refused, 1.0)["warnings"] == [warning]
    assert describe(SERVING, FACTS, 1.0)["warnings"] == []
    path = "cannot load /home/alice/secret/libcaovan_sm75.so"
    document = describe(
        SERVING, replace(FACTS, engine=EngineFacts(reported={"kernels_refusal": path})), 1.0
    )
    assert "secret" not in str(public(document))
    assert public(document)["warnings"] == ["caovan's kernels are not used"]
    assert (
        public({**document, "slots": [document]})["slots"][0]["warnings"]
        == public(document)["warnings"]
    )
