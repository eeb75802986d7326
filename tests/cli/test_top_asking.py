"""Requests of `caovanctl top` to the daemon, and its output without a screen."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.system import processes
from caovand.cli.common.client import DaemonClient
from caovand.cli.top import screen, watcher
from caovand.cli.top.view import CardProcess, EventLine, ScreenPage, TerminalStyle
from caovand.core.reporting.wire import Reply
from tests.cli.conftest import Ctl
from tests.cli.fake_daemon import FakeDaemon, status
from tests.cli.test_top import FIGURES, RECENT, SERVES, WAITS, card


@pytest.fixture
def answering(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon that answers all that `top` asks."""
    entry = {"seq": 1, "at": 0.0, "kind": "state", "text": "STARTING -> SERVING", "data": {}}
    daemon.answers.update(
        status=status(figures=FIGURES, gpus=[card(0, users=[[os.getpid(), 100], [0, 7]])]),
        recent=RECENT,
        events={"events": [entry]},
    )
    return daemon


def test_what_is_no_terminal_gets_one_screen(answering: FakeDaemon, ctl: Ctl) -> None:
    said = ctl("top")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("SERVING for 12 s  m on http://h:1/v1\n")
    assert "max 900" in said.out
    assert "STARTING -> SERVING" in said.out
    assert "\x1b" not in said.out
    own = next(line for line in said.out.splitlines() if line.split()[:1] == [str(os.getpid())])
    assert "  python" in own or "  pytest" in own
    assert re.search(r"\n {8}0 \? {12}0 {8}7 +not visible from here\n", said.out)


def test_it_exits_as_status_does(answering: FakeDaemon, ctl: Ctl) -> None:
    answering.answers["status"] = {**WAITS.status}
    assert ctl("top").code == 3
    answering.stop()
    said = ctl("top")
    assert (said.code, said.out) == (4, "")
    assert "cannot reach caovand" in said.err
    answering.stop = lambda: None  # type: ignore[method-assign]


def test_who_may_not_see_events_sees_the_rest_and_why(answering: FakeDaemon, ctl: Ctl) -> None:
    answering.answers["events"] = Reply("", None, "not-permitted", "permission denied")
    said = ctl("top")
    assert said.code == 0
    assert "  note      no events: permission denied\n" in said.out


def test_a_daemon_from_before_an_upgrade_is_shown_without_figures(
    answering: FakeDaemon, ctl: Ctl
) -> None:
    old = status(gpus=[{k: v for k, v in card(0).items() if k != "users"}])
    answering.answers["status"] = {k: v for k, v in old.items() if k != "figures"}
    del answering.answers["recent"]
    said = ctl("top")
    assert said.code == 0
    assert "18,944 of 22,528 MiB" in said.out


def on_cards(answer: Mapping[str, Any]) -> list[CardProcess]:
    """The processes at a first look."""
    return list(watcher.on_cards(answer, watcher.work_on_cards(answer), {}))


def test_a_process_has_the_cores_that_it_keeps_busy_since_the_look_before(
    answering: FakeDaemon, folder: Path
) -> None:
    with DaemonClient(folder) as client:
        one = watcher.Watcher(client)
        first, absent = one.first().processes
        assert (first.cores, absent.cores, absent.age_s) == (None, None, None)
        assert (first.host_mib or 0) > 10
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        second, _ = one.poll(ScreenPage.MAIN).processes
    assert 0.0 < (second.cores or 0.0) < 100.0
    assert (second.age_s or 0.0) > (first.age_s or 0.0) > 0.0


def test_no_command_line_shows_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "command_of", lambda _: "vllm serve --api-key sesame-4711 m")
    (found,) = on_cards(status(gpus=[card(0, users=[[os.getpid(), 1]])]))
    assert "sesame" not in found.command
    assert found.command.startswith("vllm serve --api-key")


def test_pids_of_another_host_get_no_name_from_this_one() -> None:
    unknown = {"figures": {"memory": [{"gpu": 0, "engine_mib": None}]}}
    gpus = [card(index, users=[[os.getpid(), 1]]) for index in (0, 1)]
    found = on_cards(status(gpus=gpus, **unknown))
    assert [one.host_mib is None for one in found] == [True, False]
    assert [bool(one.user and one.command) for one in found] == [False, True]


def test_one_screen_of_text_has_the_latest_events() -> None:
    many = tuple(EventLine("06:00:00", "state", f"event {n}") for n in range(50))
    found = [
        line.plain
        for line in screen.one_off(replace(SERVES, event_lines=many), 80, TerminalStyle())
    ]
    assert found[-1].endswith("event 49")
    assert sum("  state    event" in line for line in found) == 10


def test_the_log_ends_with_the_latest_line(answering: FakeDaemon, folder: Path) -> None:
    """An answer holds what fits a frame, the oldest lines first."""
    pieces = {0: (["one"], 1), 1: (["two"], 2), 2: (["three"], 3)}

    def logs(args: Mapping[str, Any]) -> dict[str, Any]:
        lines, last = pieces[args.get("since", 0)]
        return {"lines": lines, "last": last, "more": True, "end": 3}

    answering.answers["logs"] = logs
    with DaemonClient(folder) as client:
        assert watcher.Watcher(client).poll(ScreenPage.LOG).body == ("one", "two", "three")
        answering.answers["logs"] = {"lines": [], "last": 0, "more": False, "end": 0}
        found = watcher.Watcher(client).poll(ScreenPage.LOG).body
    assert found == ("the engine has not printed anything yet",)


def test_a_question_and_its_outcome(answering: FakeDaemon, folder: Path) -> None:
    with DaemonClient(folder) as client:
        one = watcher.Watcher(client)
        assert one.first().note == ""
        answering.answers["mode"] = {"mode": "fast", "overruled": "", "state": "RECYCLING"}
        one.choose("fast")
        assert one.poll(ScreenPage.MAIN).note == "mode fast"
        assert [request.args for request in answering.asked if request.op == "mode"] == [
            {"mode": "fast"}
        ]
        answering.answers["mode"] = Reply("", None, "failed", "cannot do mode: disk full")
        one.choose("auto")
        assert one.poll(ScreenPage.MAIN).note == "cannot do mode: disk full"


def test_another_daemon_is_noticed_even_between_two_questions(
    answering: FakeDaemon, folder: Path
) -> None:
    with DaemonClient(folder) as client:
        one = watcher.Watcher(client)
        one.first()
        answering.answers["status"] = status(daemon={"version": "1", "pid": 8, "config": "/c"})
        found = one.poll(ScreenPage.MAIN)
        assert "caovand was restarted: pid 8, previously 7" in [
            one.text for one in found.event_lines
        ]
        # Its events count from 1 again.
        assert [request.args for request in answering.asked if request.op == "events"] == [
            {"since": 0}, {"since": 1}, {"since": 0}, {"since": 1},
        ]  # fmt: skip
        assert [one.text for one in found.event_lines].count("STARTING -> SERVING") == 2
        answering.answers["status"] = Reply("", None, "busy", "cannot answer: too many requests")
        lost = one.poll(ScreenPage.MAIN)
        assert lost.lost == "cannot answer: too many requests"
        assert lost.event_lines
