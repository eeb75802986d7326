"""A slot's tuner: what it measures, when it suggests, moves and returns, and what it stores."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.core.config.schema import PolicySection
from caovand.core.figures.counters import Counters, Reading
from caovand.core.figures.histogram import Histogram
from caovand.core.figures.track import Track, begin_engine, follow
from caovand.core.healing.ladder import Decision
from caovand.core.health.observation import ProgressCounters
from caovand.core.plan import Plan, Setting, Taken
from caovand.core.tuning.moves import COOL_DOWN_S
from caovand.daemon.tuning import DraftTuner, Serving
from caovand.preparation import memories

DEPTH = "speculative_config"
STEPS = 1000.0
QUIET_S = 60.0


def plan(depth: int, origin: str = "policy", model: str = "m", **more: Any) -> Plan:
    value = {"method": "mtp", "num_speculative_tokens": depth} if depth else None
    return Plan(model, {DEPTH: Setting(value, origin, "")}, {}, **more)  # type: ignore[arg-type]


class Slot:
    """A tuner, and engines whose drafts are accepted by `chance` and whose steps take `step_s`."""

    def __init__(self, path: Path, tune: str) -> None:
        self.texts, self.marks = list[str](), list[str]()
        self.path, self.policy = path, PolicySection(tune=tune, tune_quiet_s=QUIET_S)
        self.chance, self.draft_s = 0.0, 0.002
        self.at, self.generation, self.running = 0.0, 0, 1.0
        self.counted, self.track, self.stable = Counters(), Track(), True
        self.plan = plan(3)
        self.restart_daemon()

    def restart_daemon(self) -> None:
        self.tuner = DraftTuner(
            self.path / memories.TUNING, self.policy, lambda kind, text: self.texts.append(text),
            lambda kind, text: self.marks.append(text), self.texts.append,
        )  # fmt: skip

    def serve(self, served: Plan) -> None:
        """Another engine begins."""
        self.plan, self.counted, self.track = served, Counters(), begin_engine(self.track)
        self.generation += 1
        self.wait(0)

    def look(self) -> bool:
        progress = ProgressCounters(0, 0, 0, 0, 0, self.running, 0, 0, 0, None, self.at)
        self.track = follow(self.track, Reading(progress, self.counted))
        serving = Serving(self.plan, self.generation, False, self.stable, float("-inf"))
        return self.tuner.poll(serving, self.track)

    def ask(self, steps: float = STEPS) -> bool:
        """One request at a time; whether the engine is to be planned anew."""
        found = False
        for part in (100.0, steps):  # the first steps of an engine do not count
            self.at += 5.0
            depth = self.plan.mtp
            seconds = part * 0.02 * (1 + self.draft_s / 0.02 * depth)
            accepted = tuple(part * self.chance ** (n + 1) for n in range(depth))
            more = Counters(
                drafts=part if depth else 0, accepted=accepted, steps=part + 1,
                generation_tokens=part + 1, prompt_tokens=10,
                first_token_s=Histogram((1.0,), (1.0, 0.0), 0.1),
                step_s=Histogram((1.0,), (part, 0.0), seconds),
            )  # fmt: skip
            self.counted = self.counted.plus(more)
            found = self.look()
        return found

    def wait(self, seconds: float = QUIET_S) -> bool:
        """Nobody asks for anything."""
        self.at, running, self.running = self.at + seconds, self.running, 0.0
        found = self.look()
        self.running = running
        return found

    @property
    def shown(self) -> str:
        found = self.tuner.describe()
        return found["text"] if found else ""


@pytest.fixture
def suggests(tmp_path: Path) -> Slot:
    slot = Slot(tmp_path, "suggest")
    slot.serve(plan(3))
    return slot


@pytest.fixture
def applies(tmp_path: Path) -> Slot:
    slot = Slot(tmp_path, "apply")
    slot.serve(plan(3))
    return slot


# -- suggest ----------------------------------------------------------------------------------


def test_what_a_suggestion_waits_for_is_shown_from_the_start(suggests: Slot) -> None:
    waits = "of 1,000 steps measured; only steps with a single request count"
    suggests.wait()
    suggests.wait()
    assert suggests.shown == f"drafting depth 3: 0 {waits}"
    suggests.ask(400)
    assert suggests.shown == f"drafting depth 3: 400 {waits}"
    assert suggests.texts == []
    suggests.serve(plan(0))
    suggests.ask()
    suggests.ask()
    assert (
        suggests.shown
        == "drafting depth 0: no suggestion, because no drafts have been measured yet"
    )


def test_a_suggestion_is_reported_once_and_shown_with_its_basis(suggests: Slot) -> None:
    assert not suggests.ask()
    suggests.ask(100)
    suggests.wait()
    text = "drafting depth 0 instead of 3: +43% expected (1,000 tokens measured at depth 3)"
    assert suggests.texts == [text]
    shown = suggests.tuner.describe()
    assert shown is not None
    assert (shown["depth"], shown["best"], shown["tokens"]) == (3, 0, 1200)
    assert suggests.marks == []


def test_a_context_from_before_the_tuner_was_off_is_not_gone_on_with(suggests: Slot) -> None:
    suggests.ask()
    suggests.ask()
    before = suggests.tuner.describe()
    suggests.tuner.policy = PolicySection(tune="off")
    suggests.look()
    read = Counters(prompt_tokens=100_000, steps=1, first_token_s=Histogram((1.0,), (1.0, 0.0), 9))
    suggests.counted = suggests.counted.plus(read)
    suggests.look()
    suggests.tuner.policy = suggests.policy
    for _ in range(3):
        more = Counters(
            drafts=STEPS, accepted=(0.0,) * 3, steps=STEPS, generation_tokens=STEPS,
            step_s=Histogram((1.0,), (STEPS, 0.0), STEPS * 0.02),
        )  # fmt: skip
        suggests.at += 5
        suggests.counted = suggests.counted.plus(more)
        suggests.look()
    now = suggests.tuner.describe()
    assert before is not None
    assert now is not None
    assert now["tokens"] == before["tokens"]


def test_a_depth_that_was_typed_or_is_the_ladders_is_measured_only(suggests: Slot) -> None:
    verbatim = replace(plan(3), verbatim=frozenset({DEPTH}))
    for served in (plan(3, "user"), plan(3, "ladder"), plan(3, "remembered"), verbatim):
        suggests.serve(served)
        suggests.ask()
        assert (suggests.texts, suggests.shown) == ([], "")
    suggests.serve(plan(3))
    suggests.ask(100)
    assert "4,100 tokens measured at depth 3" in suggests.shown


def test_another_model_begins_anew_and_the_first_is_remembered(suggests: Slot) -> None:
    suggests.ask()
    suggests.serve(plan(3, model="other"))
    suggests.ask(10)
    assert " 10 of 1,000 steps measured" in suggests.shown
    suggests.serve(plan(3))
    suggests.ask(10)
    assert "1,010 tokens" in suggests.shown


def test_nothing_is_shown_while_no_engine_serves_or_once_it_is_off(suggests: Slot) -> None:
    suggests.ask()
    suggests.tuner.poll(None, suggests.track)
    assert suggests.shown == ""
    suggests.ask()
    suggests.tuner.policy = PolicySection()
    suggests.look()
    assert suggests.shown == ""


def test_what_was_counted_before_the_engine_of_now_does_not_count_again(suggests: Slot) -> None:
    suggests.ask(900)
    suggests.serve(plan(3))
    suggests.ask(90)
    assert " 990 of 1,000 steps measured" in suggests.shown
    suggests.ask(0)
    assert "1,090 tokens" in suggests.shown


# -- apply ------------------------------------------------------------------------------------


def test_it_moves_at_a_quiet_moment_and_stays_where_it_is_faster(applies: Slot) -> None:
    assert not applies.ask()
    assert applies.shown.endswith("; waiting for 60 s without a request")
    assert not applies.wait(QUIET_S - 1)
    assert applies.wait(1)
    assert applies.tuner.depth_for(plan(3)) == 0
    assert applies.marks == ["depth 0 on trial"]
    applies.serve(plan(0))
    assert not applies.ask(10)
    assert applies.shown == "drafting depth 0 on trial: 10 of 1,000 steps measured"
    applies.ask()
    assert applies.texts[-1].endswith(": it stays")
    assert applies.marks[-1] == "depth 0"
    assert not applies.wait()
    applies.restart_daemon()
    assert applies.tuner.depth_for(plan(3)) == 0


def test_it_goes_back_from_a_depth_that_is_slower(applies: Slot) -> None:
    applies.chance = 0.8
    applies.ask()
    assert applies.wait()
    tried = applies.tuner.depth_for(plan(3))
    assert tried is not None
    applies.serve(plan(tried))
    applies.draft_s, applies.chance = 0.2, 0.1
    assert not applies.ask()
    assert applies.wait()
    assert applies.tuner.depth_for(plan(3)) is None
    assert applies.texts[-1].endswith(": back to 3")


def test_requests_within_the_quiet_time_begin_it_anew(applies: Slot) -> None:
    applies.ask()
    applies.wait(QUIET_S - 1)
    applies.running = 0.0
    applies.ask(10)  # came and went between two scrapes
    assert not applies.wait(QUIET_S - 1)
    assert applies.wait(1)


def test_its_own_test_completions_do_not(applies: Slot) -> None:
    applies.ask()
    applies.running = 0.0
    applies.wait(QUIET_S / 2)
    applies.counted = applies.counted.plus(Counters(generation_tokens=5.0))
    applies.at += QUIET_S / 2
    progress = ProgressCounters(0, 0, 0, 0, 0, 0, 0, 0, 0, None, applies.at)
    applies.track = follow(applies.track, Reading(progress, applies.counted))
    serving = Serving(applies.plan, applies.generation, False, True, applies.at - 1)
    assert applies.tuner.poll(serving, applies.track)


def test_no_move_follows_a_failure_for_an_hour_even_after_a_restart(
    applies: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    applies.tuner.failed()
    applies.restart_daemon()
    applies.ask()
    applies.ask()
    assert not applies.wait()
    assert applies.shown.endswith("; an engine failed: no change for 60 min")
    monkeypatch.setattr(time, "time", lambda: now + COOL_DOWN_S + 9)
    assert applies.wait()


def test_it_waits_until_the_engine_has_served_stably(applies: Slot) -> None:
    applies.stable = False
    applies.ask()
    assert not applies.wait()
    applies.stable = True
    assert applies.wait()


@pytest.mark.parametrize(
    "served", [plan(3, "user"), plan(3, "ladder"), plan(3, taken=(Taken("eager"),))]
)
def test_a_typed_or_degraded_plan_is_never_moved(applies: Slot, served: Plan) -> None:
    applies.serve(served)
    applies.ask()
    assert not applies.wait()
    assert applies.tuner.depth_for(served) is None
    assert not applies.shown or applies.shown.endswith("; the plan is degraded")


def test_a_depth_that_fails_on_trial_is_left_at_once_for_good(applies: Slot) -> None:
    applies.ask()
    applies.wait()
    decided = applies.tuner.after(plan(0), Decision("degrade", plan(0), rung="eager"))
    assert decided == Decision("degrade", text="drafting depth 0 failed on trial: back to 3")
    assert applies.tuner.depth_for(plan(3)) is None
    assert "and not tried again" in applies.texts[-1]
    again = Decision("again")
    assert applies.tuner.after(plan(3), again) is again


@pytest.mark.parametrize("decision", [Decision("hold"), Decision("again", excused=True)])
def test_what_is_no_fault_of_a_depth_ends_no_trial(applies: Slot, decision: Decision) -> None:
    applies.ask()
    applies.wait()
    assert applies.tuner.after(plan(0), decision) is decision
    assert applies.tuner.depth_for(plan(3)) == 0


def test_a_depth_that_cannot_be_planned_is_left(applies: Slot) -> None:
    applies.ask()
    applies.wait()
    applies.wait(5)  # it still serves depth 3, and no other plan is being made
    assert applies.tuner.depth_for(plan(3)) is None
    assert "cannot be planned" in applies.texts[-1]


def test_another_depth_of_the_policy_begins_anew(applies: Slot) -> None:
    applies.ask()
    applies.wait()
    assert applies.tuner.depth_for(plan(4)) is None
    applies.serve(plan(4))
    applies.ask()
    assert "instead of 4" in applies.shown
    assert "tokens measured at depth 3, 4" in applies.shown


def test_nothing_is_moved_that_cannot_be_written_down(applies: Slot) -> None:
    (applies.path / memories.TUNING).mkdir()
    applies.ask()
    assert not applies.wait()
    assert not applies.wait()
    (text,) = applies.texts  # once
    assert "cannot save what the draft tuner measured" in text
    assert applies.tuner.depth_for(plan(3)) is None


def test_a_depth_that_fails_is_left_even_if_that_cannot_be_written_down(applies: Slot) -> None:
    applies.ask()
    applies.wait()
    (applies.path / memories.TUNING).unlink()
    (applies.path / memories.TUNING).mkdir()
    applies.tuner.after(plan(0), Decision("again"))
    assert applies.tuner.depth_for(plan(3)) is None
    assert "and not tried again" in applies.texts[-1]


def test_only_apply_changes_a_plan(applies: Slot) -> None:
    applies.ask()
    applies.wait()
    for tune in ("suggest", "off"):
        applies.tuner.policy = PolicySection(tune=tune)
        assert applies.tuner.depth_for(plan(3)) is None


def test_a_kept_depth_that_no_longer_fits_is_named(applies: Slot) -> None:
    applies.ask()
    applies.wait()
    applies.serve(plan(0))
    applies.ask()
    applies.serve(plan(3))
    applies.ask()
    assert not applies.wait()
    assert applies.shown.endswith("; depth 0, used so far, cannot be planned at present")
    assert applies.tuner.depth_for(plan(3)) == 0
