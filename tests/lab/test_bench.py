"""`caovanctl bench`: its requests, output, stored results, comparisons and errors."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caovand.cli.common.progress import Screen
from caovand.core.figures import track
from caovand.core.figures.track import Track
from caovand.lab.bench import drive
from tests.cli.conftest import Ctl
from tests.cli.fake_daemon import FakeDaemon, status
from tests.lab.completions_server import Completions, completions, streamed, tokens_of
from tests.patience import until
from tests.secret_files import secret_file

PLAN = {
    "engine": "vllm", "fingerprint": "f1", "context": 8192, "model": "/srv/m", "rungs": [],
}  # fmt: skip
SHORT = ("bench", "--prompts", "64", "--at-once", "1,2", "--rounds", "2", "--tokens", "4")


class Box:
    """A daemon and its engine; the daemon counts what the engine was asked for."""

    def __init__(self, daemon: FakeDaemon, engine: Completions, folder: Path) -> None:
        self.daemon, self.engine = daemon, engine
        self.generation = 1
        self.config = folder / "caovan.toml"
        self.config.write_text('[model]\npath = "/srv/m"\n')
        daemon.answers.update(status=lambda _args: self.status(), plan=PLAN)

    def status(self, **changes: Any) -> dict[str, Any]:
        """The document now: every request drafted twice."""
        requests = len(self.engine.completions())
        figures = {**track.describe(Track(), 0.0), "restarts": {}, "memory": []}
        figures["age_s"] = -1.0  # taken after any request of the past
        figures["totals"] |= {
            "requests": requests, "drafts": 2.0 * requests,
            "accepted": [1.5 * requests, 0.5 * requests],
            "prefix_queries": 100.0 * requests, "prefix_hits": 0.0,
        }  # fmt: skip
        port = self.engine.port
        served = {"name": "m", "host": "0.0.0.0", "port": port, "url": f"http://0.0.0.0:{port}/v1"}
        base = {"served": served, "figures": figures, "generation": self.generation}
        daemon = {"version": "0.1", "pid": 7, "config": str(self.config)}
        return status(**{**base, "daemon": daemon, **changes})


@pytest.fixture
def box(daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    with completions() as engine:
        yield Box(daemon, engine, tmp_path)


def test_it_measures_shows_and_keeps(box: Box, ctl: Ctl) -> None:
    said = ctl(*SHORT)
    assert said.code == 0, said.err
    head, how, table, one, two, *rest = said.out.splitlines()
    assert head == "m (/srv/m) on vllm, mode auto, MTP 3, plan f1"
    assert how == "4 tokens generated per request, seed 1; medians of 2 rounds"
    assert table.split()[:5] == ["prompt", "at", "once", "prefill", "tok/s"]
    assert (one.split()[:2], two.split()[:2]) == (["64", "1"], ["64", "2"])
    assert one.split()[-1] == "-", "no card, no joules"
    assert rest[0] == (
        "drafts, prompts of 64, 1 at once: accepted 75% 25% by position, 2.00 tokens per step"
    )
    assert rest[2] == "prefix cache: 0.0% of the prompt tokens were hits"
    kept = Path(rest[-1].removeprefix("stored in "))
    assert kept.parent.name == "f1"
    document = json.loads(kept.read_text())
    assert document["complete"] is True
    assert [len(cell["rounds"]) for cell in document["cells"]] == [2, 2]
    lines = [line for line in said.err.splitlines() if " %  " in line]
    assert [line.split()[0] for line in lines] == ["37", "50", "75", "100"], "one for each round"
    assert lines[-1] == "      100 %  6 of 6  prompts of 64, 2 at once"


class Tty(io.StringIO):
    """A terminal's screen."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_moves_within_a_round(
    box: Box, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Tty()

    def events(body: dict[str, Any]) -> Iterator[str]:
        pieces = streamed(body)
        yield next(pieces)
        if len(box.engine.completions()) <= 2:  # both of the first round are read, none answered
            until(lambda: " 47 %  ━━━━" in screen.getvalue(), "the bar")
        yield from pieces

    box.engine.events = events
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(drive, "Screen", lambda _: Screen(screen))
    said = ctl("bench", "--prompts", "64", "--at-once", "2", "--rounds", "1", "--tokens", "4")
    assert said.code == 0, said.err
    *shown, last = screen.getvalue().split("\r\033[K")
    assert shown[0].endswith("─  0 of 2  prompts of 64, 2 at once")
    assert shown[-1] == f"      100 %  {'━' * 12}  2 of 2  prompts of 64, 2 at once"
    assert last == "", "the table begins on an empty line"
    assert not [line for line in shown if "\n" in line]


def test_on_a_terminal_the_time_left_is_shown(
    box: Box, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Tty()
    monkeypatch.setattr(drive, "Screen", lambda _: Screen(screen))
    assert ctl(*SHORT).code == 0
    assert "1 of 6, 0 s left  prompts of 64, 1 at once" in screen.getvalue()


def test_each_prompt_is_another_and_has_the_tokens_asked_for(box: Box, ctl: Ctl) -> None:
    ctl(*SHORT)
    sent = [body["prompt"] for body in box.engine.completions()]
    assert len(sent) == 2 + 2 * 1 + 2 * 2, "two to warm up"
    assert len({text[:16] for text in sent}) == len(sent), "no two begin alike"
    assert {tokens_of(text) for text in sent} == {64}
    ctl(*SHORT)
    again = [body["prompt"] for body in box.engine.completions()][len(sent) :]
    assert not {text[:12] for text in sent} & {text[:12] for text in again}


def test_json_is_the_kept_document_alone(box: Box, ctl: Ctl) -> None:
    said = ctl(*SHORT, "--json")
    document = dict(said.json)
    kept = json.loads(Path(document.pop("kept")).read_text())
    assert kept.pop("format") == 1
    assert kept == document


def test_an_engine_that_cannot_count_is_asked_by_completions(box: Box, ctl: Ctl) -> None:
    box.daemon.answers["plan"] = {**PLAN, "engine": "ollama"}
    said = ctl(*SHORT)
    assert said.code == 0, said.err
    assert {path for path, _ in box.engine.asked} == {"/v1/completions"}
    lengths = {len(b["prompt"]) for b in box.engine.completions() if b["max_tokens"] == 4}
    assert len(lengths) == 1


def test_usual_lengths_are_those_that_fit(box: Box, ctl: Ctl) -> None:
    said = ctl("bench", "--at-once", "1", "--rounds", "1", "--tokens", "2", "--json")
    assert [cell["prompt"] for cell in said.json["cells"]] == [512, 4096]


def refused(ctl: Ctl, *words: str) -> str:
    """What a bench that measured nothing says."""
    said = ctl(*words)
    assert (said.out, said.code) == ("", 1), said.err
    return said.err


def test_a_context_that_is_too_small_is_a_problem(box: Box, ctl: Ctl) -> None:
    text = refused(ctl, "bench", "--prompts", "64,8192", "--tokens", "10")
    assert "a prompt of 8,192 tokens and 10 generated ones need a context of 8,202" in text
    assert "the plan's is 8,192" in text
    box.daemon.answers["plan"] = {**PLAN, "context": 256}
    assert "need a context of 640, but the plan's is 256" in refused(ctl, "bench")


def test_what_slowed_it_down_is_a_warning(box: Box, ctl: Ctl) -> None:
    rounds = {"more": 0.0}

    def look(_args: Any) -> Any:
        rounds["more"] += 3.0
        found = box.status()
        found["figures"]["totals"]["requests"] += rounds["more"]
        found["figures"]["totals"]["preemptions"] = rounds["more"]
        return found

    box.daemon.answers["status"] = look
    said = ctl(*SHORT)
    assert "warning: 6 requests were preempted for lack of KV cache" in said.out
    assert "warning: 6 other requests ran at the same time" in said.out


def test_a_prompt_longer_than_all_texts_keeps_what_is_complete(box: Box, ctl: Ctl) -> None:
    box.daemon.answers["plan"] = {**PLAN, "context": 1 << 24}
    said = ctl("bench", "--prompts", "64,9999999", "--at-once", "1", "--rounds", "1", "--json")
    assert said.code == 1
    assert "cannot make a prompt of 9,999,999 tokens: all texts together have" in said.err
    assert [cell["prompt"] for cell in said.json["cells"]] == [64]


@pytest.mark.parametrize("words", [("bench",), ("soak", "0.1")])
def test_a_worker_is_not_asked(box: Box, ctl: Ctl, words: tuple[str, ...]) -> None:
    cluster = {"role": "worker", "head": "10.0.0.1:7070"}
    box.daemon.answers["status"] = box.status(cluster=cluster)
    text = refused(ctl, *words)
    assert "this machine is a worker, and the head at 10.0.0.1:7070 answers clients" in text
    assert f"run `caovanctl {words[0]}` on the head" in text


def test_a_head_is_asked(box: Box, ctl: Ctl) -> None:
    cluster = {"role": "head", "nodes": []}
    box.daemon.answers["status"] = box.status(cluster=cluster, served=None, state="HOLD")
    assert "no model is served" in ctl("bench").err


def test_an_embedder_is_measured_by_its_answers(box: Box, ctl: Ctl) -> None:
    box.daemon.answers["plan"] = {**PLAN, "task": "embed"}
    box.engine.embedding = [0.5]
    said = ctl(*SHORT)
    assert said.code == 0, said.err
    _, how, _, one, *_ = said.out.splitlines()
    assert how.startswith("embeddings: the whole answer arrives at")
    assert (one.split()[:2], one.split()[3]) == (["64", "1"], "-")
    assert {path for path, _ in box.engine.asked} == {"/tokenize", "/v1/embeddings"}


@pytest.mark.parametrize(
    ("words", "task", "title"),
    [(SHORT, "transcription", "transcription"), (("soak", "0.1"), "embed", "embeddings")],
)
def test_what_sends_no_text_to_a_model_says_so(
    box: Box, ctl: Ctl, words: tuple[str, ...], task: str, title: str
) -> None:
    box.daemon.answers["plan"] = {**PLAN, "task": task}
    said = ctl(*words)
    assert said.code == 1
    assert f"cannot {words[0]}: the model is for {title}" in said.err


def test_no_model_is_served(box: Box, ctl: Ctl) -> None:
    box.daemon.answers["status"] = box.status(served=None, state="HOLD", reason="no card")
    said = ctl("bench")
    assert said.code == 3
    assert "no model is served, the state is HOLD: no card" in said.err


def test_no_daemon(ctl: Ctl) -> None:
    said = ctl("bench")
    assert said.code == 4
    assert "caovand" in said.err


def test_the_key_is_the_daemons_or_the_one_of_a_file(box: Box, ctl: Ctl, tmp_path: Path) -> None:
    secret_file(tmp_path / "key", "s3cret\n")
    box.config.write_text(f'[model]\npath = "/srv/m"\n[server]\napi_key_file = "{tmp_path}/key"\n')
    assert ctl(*SHORT).code == 0
    assert set(box.engine.keys) == {"Bearer s3cret"}
    secret_file(tmp_path / "other", "0ther\n")
    box.engine.keys.clear()
    assert ctl(*SHORT, "--api-key-file", str(tmp_path / "other")).code == 0
    assert set(box.engine.keys) == {"Bearer 0ther"}
    assert "cannot read" in refused(ctl, *SHORT, "--api-key-file", str(tmp_path / "none"))


def test_a_refused_key_names_the_remedy(box: Box, ctl: Ctl) -> None:
    box.engine.status = 401
    text = refused(ctl, *SHORT)
    assert "the engine refused the API key (HTTP 401)" in text
    assert "--api-key-file" in text


def test_a_restarted_engine_ends_it_and_what_is_complete_is_kept(box: Box, ctl: Ctl) -> None:
    def look(_args: Any) -> Any:
        if len(box.engine.completions()) > 4:  # within the second cell
            box.generation = 2
        failure = {"failure": "hang", "text": "no progress", "where": "", "captures": {}}
        return box.status(last_failure=failure)

    box.daemon.answers["status"] = look
    said = ctl(*SHORT, "--json")
    assert said.code == 1
    assert "the engine exited or was restarted: hang: no progress" in said.err
    assert said.json["complete"] is False
    assert [cell["at_once"] for cell in said.json["cells"]] == [1]


def test_a_request_that_fails_while_the_daemon_is_away(box: Box, ctl: Ctl) -> None:
    def events(body: dict[str, Any]) -> Iterator[str]:
        (box.daemon.folder / "control").unlink(missing_ok=True)
        (box.daemon.folder / "status").unlink(missing_ok=True)
        return iter(())

    box.engine.events = events
    said = ctl(*SHORT)
    assert (said.code, said.out) == (4, "")
    assert "a request failed" in said.err
    assert "caovand" in said.err


def test_ctrl_c_keeps_what_is_complete(box: Box, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def line(screen: Any, percent: int, text: str) -> None:
        if text.startswith("4 of 6"):
            raise KeyboardInterrupt

    monkeypatch.setattr("caovand.cli.common.progress.Screen.line", line)
    said = ctl(*SHORT, "--json")
    assert said.code == 130
    assert "stopped: 1 of 2 measured" in said.err
    assert said.json["complete"] is False


@pytest.mark.parametrize(
    "words",
    [
        ("--prompts", "0"), ("--prompts", "1,1"), ("--prompts", "512,"), ("--at-once", "-1"),
        ("--at-once", "300"), ("--rounds", "31"), ("--rounds", "1,2"), ("--tokens", "1e3"),
        ("--compare", "one"), ("--list", "--compare", "1", "2"),
    ],
)  # fmt: skip
def test_bad_numbers_are_refused(ctl: Ctl, words: tuple[str, ...]) -> None:
    assert ctl("bench", *words).code == 2


def kept(folder: Path, name: str, pace: float, **changes: Any) -> str:
    """A file of a result with five rounds of this pace."""
    rounds = [
        {
            "prefill_tokens_per_s": 500.0, "decode_tokens_per_s": pace + n / 10,
            "first_token_s": [1.0], "token_s": [1 / (pace + n / 10)],
        }
        for n in range(5)
    ]  # fmt: skip
    same = {"fingerprint": "f1", "engine": "vllm", "model": "m", "mode": "auto", "mtp": 3}
    more = {"tokens": 128, "seed": 1, "texts": "t", "format": 1}
    cells = [{"prompt": 512, "at_once": 2, "rounds": rounds}]
    path = folder / name
    path.write_text(json.dumps({**same, **more, "cells": cells, **changes}))
    return str(path)


def test_two_results_side_by_side(ctl: Ctl, tmp_path: Path) -> None:
    a, b = kept(tmp_path, "a", 20.0), kept(tmp_path, "b", 25.0, mtp=4)
    said = ctl("bench", "--compare", a, b)
    assert said.code == 0, said.err
    *files, mtp, _, prefill, decode, first, token, test = said.out.splitlines()
    assert files == [f"A is {a}", f"B is {b}"]
    assert mtp == "mtp: A 3, B 4"
    assert prefill.endswith("noise (p 1.000)")
    assert "20.2 (20.0 to 20.4)" in decode
    assert decode.endswith("+24.8%  better (p 0.008)")
    assert first.endswith("noise (p 1.000)")
    assert token.endswith("better (p 0.008)")
    assert "rank-sum" in test
    found = ctl("bench", "--compare", a, b, "--json").json
    assert [row["verdict"] for row in found["rows"]] == ["noise", "better", "noise", "better"]
    assert found["files"] == [a, b]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with results of two plans, in files whose names do not sort by time."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    for plan, at, pace in (("f2", NOON, 20.0), ("f1", NOON + 3600, 25.0), ("f2", NOON + 60, 30.0)):
        folder = tmp_path / "state/bench" / plan
        folder.mkdir(parents=True, exist_ok=True)
        more = {"at": at, "served_name": "tiny", "complete": plan == "f2", "fingerprint": plan}
        kept(folder, f"{at:.0f}.json", pace, **more)
    kept(tmp_path / "state/bench/f1", "soak-1.json", 1.0)
    return tmp_path / "state/bench"


NOON = time.mktime((2026, 11, 23, 12, 0, 0, 0, 0, -1))


def test_kept_results_are_listed_the_newest_first(results: Path, ctl: Ctl) -> None:
    said = ctl("bench", "--list")
    assert (said.code, said.err) == (0, "")
    head, *rows = (line.split() for line in said.out.splitlines())
    assert head == ["when", "plan", "prompt", "at", "once", "decode", "tok/s", "model"]
    same = ["512", "2"]
    assert rows == [
        ["1", "2026-11-23", "13:00", "f1", *same, "25.2", "tiny", "(stopped", "early)"],
        ["2", "2026-11-23", "12:01", "f2", *same, "30.2", "tiny"],
        ["3", "2026-11-23", "12:00", "f2", *same, "20.2", "tiny"],
    ]
    first, *_ = found = ctl("bench", "--list", "--json").json
    assert [one["number"] for one in found] == [1, 2, 3]
    assert (first["at"], first["decode_tokens_per_s"]) == (NOON + 3600, 25.2)
    assert first["path"] == str(results / "f1" / f"{NOON + 3600:.0f}.json")


def test_no_result_is_listed(ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    assert f"no results in {tmp_path};" in ctl("bench", "--list").out
    assert ctl("bench", "--list", "--json").json == []


def test_what_is_no_result_has_no_number(results: Path, ctl: Ctl) -> None:
    for name, text in (("a", "{}"), ("b", '{"format": 1, "cells": []}'), ("c", "nonsense")):
        (results / "f1" / f"{name}.json").write_text(text)
    said = ctl("bench", "--list")
    assert len(said.out.splitlines()) == 4
    assert said.err.count(", which is not a result of this release") == 3


def test_results_are_compared_by_their_numbers(results: Path, ctl: Ctl, tmp_path: Path) -> None:
    said = ctl("bench", "--compare", "3", "2")
    assert said.out.startswith(f"A is {results}/f2/{NOON:.0f}.json\nB is {results}/f2/")
    assert "better (p 0.008)" in said.out
    mixed = ctl("bench", "--compare", "1", kept(tmp_path, "4", 20.0))
    assert mixed.code == 0, mixed.err
    text = refused(ctl, "bench", "--compare", "1", "4")
    assert "cannot compare result 4: 3 exist\n" in text
    assert "caovanctl bench --list" in text


def test_what_cannot_be_compared_is_a_problem(ctl: Ctl, tmp_path: Path) -> None:
    a = kept(tmp_path, "a", 20.0)
    (tmp_path / "text").write_text("hello")
    (tmp_path / "other").write_text("{}")
    (tmp_path / "hollow").write_text('{"format": 1}')
    for name, text in (
        ("none", "No such file"), ("text", "not JSON"), ("other", "not a result of this release"),
        ("hollow", "lacks 'cells'"),
    ):  # fmt: skip
        assert text in refused(ctl, "bench", "--compare", a, str(tmp_path / name))
    empty = kept(tmp_path, "empty", 20.0, cells=[])
    assert "no combination of prompt length" in refused(ctl, "bench", "--compare", a, empty)


def test_a_result_that_cannot_be_kept_is_a_problem(
    box: Box, ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "file"))
    said = ctl(*SHORT)
    assert said.code == 1
    assert f"cannot keep the result in {tmp_path}/file/bench/f1/" in said.err
    assert "decode tok/s" in said.out, "what was measured is shown all the same"
    assert ctl(*SHORT, "--json").json["kept"] is None
