"""Answers to the fixed prompt: requested, stored across restarts, and compared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.network import completions, http
from caovand.adapters.network.http import Endpoint, HttpResponse, Unanswered
from caovand.core.healing.failure import Finding
from caovand.core.health.canary import NOT_JSON, PROMPT, TOKENS
from caovand.core.plan import Plan, Setting
from caovand.daemon.engine.canary import Canary, FirstAnswers
from caovand.engines.registry import engine_of
from caovand.preparation import memories
from tests.core.machines import SMALL_HYBRID, inventory

HERE = Endpoint("127.0.0.1", 1)
PLAIN = Plan("m", {}, {})
MACHINE = inventory(replace(SMALL_HYBRID, quantization=None))


def greedy(words: str, logprob: float | None = -0.1, lead: float = 8.0) -> str:
    """A completion of these tokens, each of which leads by so much."""
    tops = [{word: logprob, "other": -0.1 - lead} for word in words]
    found = {"tokens": list(words), "token_logprobs": [logprob] * len(words), "top_logprobs": tops}
    return json.dumps({"choices": [{"logprobs": found}]})


class Fake:
    """An engine that gives these answers, and runs requests of others while it gives `busy`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, busy: Sequence[int] = ()) -> None:
        self.answers: list[str | Exception] = []
        self.busy, self.asked, self.tokens = list(busy), 0, 0
        monkeypatch.setattr(completions, "complete_as_json", self.continued)
        monkeypatch.setattr(http, "call", self.call)

    def continued(self, _: Endpoint, path: str, body: Mapping[str, Any], timeout_s: float) -> str:
        assert (body["prompt"], body["max_tokens"]) == (PROMPT, TOKENS)
        assert body["logprobs"] == 2
        answer = self.answers[self.asked]
        self.asked += 1
        self.tokens += TOKENS
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, endpoint: Endpoint, path: str, timeout_s: float) -> HttpResponse:
        rows = {
            "num_requests_running": float(self.asked in self.busy),
            "generation_tokens_total": self.tokens,
        }
        lines = [f'vllm:{name}{{model_name="m"}} {value}' for name, value in rows.items()]
        return HttpResponse(200, "\n".join(lines) + "\n")


class World:
    """A state folder, and starts of an engine with what it keeps there."""

    def __init__(self, folder: Path, fake: Fake) -> None:
        self.path, self.fake, self.notices = folder / memories.ANSWERS, fake, list[str]()

    def start(self, plan: Plan = PLAIN) -> Callable[[str], Finding | None]:
        """Another daemon with another engine; what it finds in answers."""
        notice = lambda _, text: self.notices.append(text)  # noqa: E731
        answers = FirstAnswers(self.path, notice)
        canary = Canary(engine_of(), plan, MACHINE, answers, notice)
        return lambda phase="proof": asyncio.run(canary.check(HERE, 1.0, phase))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("caovand.adapters.model_folder.file_identities", lambda card: [])
    return World(tmp_path, Fake(monkeypatch))


def test_an_answer_that_changed_over_a_restart_is_a_failure_if_it_does_so_twice(
    world: World,
) -> None:
    world.fake.answers = [greedy(word) for word in ("abc", "abc", "abx", "abx")]
    assert world.start()("proof") is None
    again = world.start()
    assert again("proof") is None
    said = "a fixed prompt got a wrong answer: token 3 is 'x' instead of 'c', which led by 8.0"
    assert again("serving") == Finding("answers-changed", f"{said} nats", "serving")


def test_one_wrong_answer_alone_is_reported(world: World) -> None:
    world.fake.answers = [greedy(word) for word in ("abc", "abx", "abc")]
    start = world.start()
    assert [start("proof"), start("proof")] == [None, None]
    assert world.notices == ["one of two answers to a fixed prompt differed"]


def test_another_plan_begins_anew(world: World) -> None:
    world.fake.answers = [greedy(word) for word in ("abc", "xyz")]
    assert world.start()("proof") is None
    assert world.start(Plan("another", {}, {}))("proof") is None
    assert len(json.loads(world.path.read_text())) == 2


@pytest.mark.parametrize(("cache", "fails"), [("auto", True), ("fp8", False)])
def test_a_plan_that_rounds_to_few_bits_has_more_tolerance(
    world: World, cache: str, fails: bool
) -> None:
    plan = Plan("m", {"kv_cache_dtype": Setting(cache, "user", "")}, {})
    world.fake.answers = [greedy(word, lead=1.5) for word in ("abc", "abx", "abx")]
    assert world.start(plan)("proof") is None
    assert (world.start(plan)("proof") is not None) is fails


def test_a_near_tie_is_excused_and_reported_once(world: World) -> None:
    world.fake.answers = [greedy(word, lead=0.5) for word in ("abc", "abx", "axy")]
    assert world.start()("proof") is None
    again = world.start()
    assert [again("proof"), again("serving")] == [None, None]
    assert len(world.notices) == 1
    assert "rounding explains the difference" in world.notices[0]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (greedy("abc", None), "its logits are not finite numbers"),
        (
            Unanswered(f"HTTP 500: Out of range float values are {NOT_JSON}"),
            "its logits are not finite numbers",
        ),
        (greedy("xxx"), "it repeats 'x'"),
    ],
)
def test_a_degenerate_answer_is_a_failure_of_its_own(
    world: World, answer: str | Exception, why: str
) -> None:
    world.fake.answers = [greedy("abc"), answer, answer]
    assert world.start()("proof") is None
    finding = world.start()("proof")
    assert finding is not None
    assert finding.failure == "answers-degenerate"
    assert why in finding.text


def test_answers_next_to_other_requests_are_neither_kept_nor_compared(world: World) -> None:
    words = ("xyz", "xyz", "abc", "xyz", "xyz", "abx", "abx")
    world.fake.answers = [greedy(word) for word in words]
    world.fake.busy = [1, 4]  # requests that end, and that come, during ours
    start = world.start()
    assert [start("proof"), start("proof")] == [None, None]
    assert not world.path.exists()
    assert [start("proof"), start("serving"), start("serving")] == [None, None, None]
    assert (start("proof") or Finding("unknown", "")).failure == "answers-changed"


def test_an_engine_that_does_not_answer_is_not_judged_here(world: World) -> None:
    world.fake.answers = [Unanswered("refused")]
    assert world.start()("proof") is None


@pytest.mark.parametrize("broken", ["", "[]", "{", '{"k": [["a"], []]}', '{"k": 1}'])
def test_a_broken_file_is_begun_anew(world: World, broken: str) -> None:
    world.path.write_text(broken)
    world.fake.answers = [greedy("abc"), greedy("abx"), greedy("abx")]
    assert world.start()("proof") is None
    assert world.start()("proof") is not None


def test_where_nothing_can_be_written_it_says_so_and_still_compares(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("caovand.adapters.files.state_file.write", full)
    world.fake.answers = [greedy("abc"), greedy("abx"), greedy("abx")]
    start = world.start()
    assert start("proof") is None
    assert "No space left" in world.notices[0]
    assert start("serving") is not None


def test_what_is_forgotten_is_not_compared_with(world: World) -> None:
    world.fake.answers = [greedy("abc"), greedy("abx")]
    assert world.start()("proof") is None
    FirstAnswers(world.path, lambda *_: None).forget()
    assert world.start()("proof") is None
