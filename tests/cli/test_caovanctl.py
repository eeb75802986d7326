"""caovanctl against a daemon in a thread: exit statuses, words, JSON."""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand import __version__
from caovand.adapters.engine_install import places
from caovand.cli import check_config
from caovand.cli import main as cli_main
from caovand.cli.common import reach
from caovand.cli.common.client import DaemonClient, runtime_directory
from caovand.cli.common.errors import CommandError
from caovand.cli.common.survey import SurveyedMachine
from caovand.cli.incidents import files
from caovand.cli.parser import parser
from caovand.core.lifecycle.events import Gone, Start, Stop
from caovand.core.lifecycle.state import LifecycleRules, Snapshot, State
from caovand.core.lifecycle.transitions import step
from caovand.core.problem import Problem
from caovand.core.reporting import wire
from caovand.core.reporting.wire import Notice, Reply, notice_fields
from tests.cli.conftest import Ctl
from tests.cli.fake_daemon import FakeDaemon, status
from tests.core.machines import CPU, HOST

ROOT = Path(__file__).parents[2]

DEGRADED = {
    "why": ["MTP 3 -> 2, because of hang"], "since": 1_700_000_000.0, "rungs": ["mtp-2"],
    "back": "caovanctl retry --full",
}  # fmt: skip
HOT = {
    "index": 0, "used_mib": 9000, "total_mib": 22_527, "utilization": 99, "temperature": 84,
    "power_w": None, "throttled": "heat", "fault": "",
}  # fmt: skip
LOST = {**HOT, "index": 1, "fault": "GPU is lost"}


# -- no daemon ---

ASKING = [
    ("status",), ("wait", "--timeout", "0"), ("start",), ("stop",), ("restart",), ("reload",),
    ("mode",), ("mode", "fast"), ("logs",), ("events",), ("events", "-f"), ("retry",), ("reset",),
]  # fmt: skip


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_without_a_daemon_the_exit_status_is_4(ctl: Ctl, words: tuple[str, ...]) -> None:
    said = ctl(*words)
    assert said.code == 4
    assert said.out == ""
    assert "cannot reach caovand at" in said.err
    assert "start the caovand of this folder, or check --runtime and RUNTIME_DIR" in said.err


def test_who_finds_no_daemon_of_the_system_is_told_to_start_it(
    folder: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "SYSTEM_RUNTIME", folder)
    assert "systemctl start caovan" in ctl("status").err


def test_a_socket_nobody_listens_on_is_no_daemon(folder: Path, ctl: Ctl) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "status"))
    said = ctl("status")
    assert (said.code, "no daemon listens there" in said.err) == (4, True)


def test_a_path_too_long_for_a_socket_is_told(folder: Path) -> None:
    (folder / ("x" * 200)).mkdir()
    with (
        pytest.raises(CommandError, match="path too long"),
        DaemonClient(folder / ("x" * 200)) as client,
    ):
        client.ask("status")


def test_a_daemon_that_does_not_answer_is_not_reachable(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(folder / "status"))
        mute.listen()
        with (
            pytest.raises(CommandError, match="did not answer within 0 s") as caught,
            DaemonClient(folder) as client,
        ):
            client.ask("status", answer_s=0.1)
    assert caught.value.status == 4


def test_a_short_question_takes_one_connection_and_its_answer_may_be_long(folder: Path) -> None:
    """ZeroMQ's handshake takes several round trips through the daemon's loop."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "control"))
        listener.listen(1)

        def answer() -> None:
            link, _ = listener.accept()
            listener.close()
            with link:
                asked = json.loads(link.makefile("rb").readline())
                reply = Reply(asked["id"], {"text": "x" * 2 * wire.MAX_BYTES})
                link.sendall(wire.encode_reply(reply) + b"\n")

        with ThreadPoolExecutor(1) as pool, DaemonClient(folder) as client:
            answering = pool.submit(answer)
            assert len(client.ask("status")["text"]) == 2 * wire.MAX_BYTES
            answering.result()


def test_version_needs_no_daemon(ctl: Ctl) -> None:
    assert ctl("version").out == f"caovanctl {__version__}\ncaovand not running\n"
    assert ctl("version", "--json").json == {"caovanctl": __version__, "caovand": None}


# -- rights ---


def test_a_socket_that_may_not_be_used_is_exit_status_5(
    daemon: FakeDaemon, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["status"] = status()
    # Others cannot import from a checkout in root's home.
    parsers = {verb: cli_main.parser((verb,)) for verb in ("stop", "status")}
    monkeypatch.setattr(cli_main, "parser", lambda words: parsers[words[-1]])
    if os.geteuid() == 0:
        os.seteuid(65534)
    else:
        (daemon.folder / "control").chmod(0)
    try:
        said = ctl("stop")
        open_one = ctl("status")
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
    assert said.code == 5
    assert "usermod -aG caovan" in said.err
    assert open_one.code == 0


def test_a_refusal_of_the_daemon_is_exit_status_5(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["stop"] = Reply("", code="not-permitted", message="cannot do stop", hint="ask")
    assert (ctl("stop").code, ctl("stop").err) == (5, "caovanctl: cannot do stop\n  ask\n")


# -- status ---


def test_the_requests_at_the_gateway_are_counted_by_how_they_ended(
    daemon: FakeDaemon, ctl: Ctl
) -> None:
    server = {"url": "http://h:1/", "serving": True, "problem": "", "pid": 9}
    ended = {"200": 1234, "503": 5, "0": 2, "429": 0}
    totals = {"ended": ended, "waited_s": 1.0, "resent": 3}
    daemon.answers["status"] = status(
        gateway={**server, "waiting": 7, "at_engine": 12, "totals": totals}
    )
    assert (
        "  clients   7 waiting, 12 at the engine; ended: 1,234 with 200, 5 with 503,"
        " 2 left by the client, 3 sent again\n"
    ) in ctl("status").out
    daemon.answers["status"] = status(gateway=server)  # a daemon from before an upgrade
    assert "waiting" not in ctl("status").out


def test_serving_is_exit_status_0_and_says_what_is_served(daemon: FakeDaemon, ctl: Ctl) -> None:
    figures = {
        "running": 2.0, "waiting": 1.0, "kv_cache_usage": 0.25, "prefix_hits": 0.5,
        "per_s": {"prompt_tokens": 512.34, "generation_tokens": 84.21, "requests": 0.2},
        "first_token_s": {"p50": 0.2134, "p99": 1.25, "mean": 0.3},
        "token_s": {"p50": 0.0118, "p99": 0.02, "mean": 0.01},
        "drafting": {"accepted": [0.9, 0.7, 0.4], "tokens_per_step": 3.0},
    }  # fmt: skip
    daemon.answers["status"] = status(figures=figures)
    said = ctl("status")
    assert said.code == 0
    assert said.out.splitlines() == [
        "SERVING for 12 s  m on http://h:1/v1",
        "  mode      auto (from /etc/caovan.toml), MTP 3",
        "  model     /srv/m",
        "  engine    pid 42, restarts 0",
        "  speed     84.2 tokens/s generated, 512.3 tokens/s of prompts",
        "  activity  2 running, 1 waiting, KV 25%, prefix hits 50%",
        "  latency   first token 213.4 ms, 99 % within 1.2 s;"
        " per token 11.8 ms, 99 % within 20.0 ms",
        "  drafts    accepted 90% 70% 40% by position, 3.00 tokens per step",
    ]


def test_without_an_engine_that_answers_no_speed_is_shown(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["status"] = status(figures={"running": None})
    assert [line.split()[0] for line in ctl("status").out.splitlines()[1:]] == [
        "mode", "model", "engine",
    ]  # fmt: skip


def test_the_seconds_of_a_start_are_shown_next_to_those_of_the_one_before(
    daemon: FakeDaemon, ctl: Ctl
) -> None:
    before = {"seconds": 248.3, "at": 1, "phases": {"compile": 248.3}, "reported": {}}
    phases = {"launch": 60.2, "load": 35.9}
    took = {"seconds": 96.1, "at": 2, "phases": phases, "reported": {"engine_init_s": 35.25}}
    daemon.answers = {"status": status(start={**took, "before": {**before, "same_plan": True}})}
    lines = ctl("status").out.splitlines()
    assert "  start     96 s: launch 60, load 36" in lines
    assert "            from the engine's log, in seconds: engine init 35.25" in lines
    assert "            before: 248 s: compile 248" in lines
    daemon.answers = {"status": status(start={**took, "before": {**before, "same_plan": False}})}
    assert "before (another plan): 248 s" in ctl("status").out
    daemon.answers = {"status": {k: v for k, v in status().items() if k != "start"}}
    assert "launch" not in ctl("status").out  # an older daemon's


def test_a_failure_before_this_start_is_shown_as_past(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["status"] = status(
        last_failure={"failure": "hang", "text": "h"}, last_failure_s=720.0
    )
    last = ctl("status").out.splitlines()[-1]
    assert re.fullmatch(r"  failure   last one 12 min ago \([-\d]+ [:\d]+\): hang: h", last)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "STARTING", "phase": "load", "progress": 0.5, "detail": "shard 1"}, "load 50% "),
        ({"state": "STARTING", "phase": "launch"}, "  launch\n"),
        ({"state": "BACKOFF", "retry_in_s": 3.6, "reason": "it died"}, "attempt in 4 s"),
        ({"state": "HOLD", "looking": True, "reason": "busy"}, "checking whether"),
        ({"state": "FAILED", "reason": "no [red]room[/red]"}, "no [red]room[/red]"),
        ({"state": "HOLD", "refusal": {"text": "no card"}}, "refused   no card"),
        (
            {"state": "FAILED", "last_failure": {"failure": "hang", "text": "h"}, "failures": 5},
            "failure   hang: h (5 in a row)",
        ),
        (
            {
                "state": "FAILED",
                "reason": "no room",
                "last_failure": {"failure": "hang", "text": "no"},
            },
            "  failure   hang\n",
        ),
        ({"state": "FAILED", "reason": "no room"}, "no automatic retry; fix the cause, then `cao"),
        ({"state": "STOPPED", "model": None, "mtp": 0, "engine_pid": None}, "MTP off"),
        ({"state": "STARTING", "degraded": DEGRADED, "warnings": ["w"]}, "degraded  mtp-2; since"),
        ({"state": "STARTING", "degraded": DEGRADED}, "MTP 3 -> 2, because of hang"),
        ({"state": "STARTING", "degraded": DEGRADED}, "back: caovanctl retry --full"),
        ({"state": "STARTING", "gpus": [LOST]}, "GPU 1     GPU is lost"),
        ({"state": "STARTING", "gpus": [HOT]}, "9,000 of 22,527 MiB, 99% busy, 84 °C, slowed"),
        ({"state": "STOPPED", "since_s": 200_000.0}, "STOPPED for 2 d"),
        ({"state": "HOLD", "log_bytes_lost": 12_345}, "log       engine.log lacks 12,345 bytes"),
    ],
)
def test_not_serving_is_exit_status_3_and_says_why(
    daemon: FakeDaemon, ctl: Ctl, changes: dict[str, Any], words: str
) -> None:
    daemon.answers["status"] = status(**{"served": None, **changes})
    said = ctl("status")
    assert said.code == 3
    assert words in said.out
    assert "\x1b" not in said.out


def test_status_as_json_is_the_document(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["status"] = status(state="HOLD")
    said = ctl("status", "--json")
    assert (said.code, said.json) == (3, status(state="HOLD"))


# -- waiting ---


def test_wait_is_done_when_it_serves(daemon: FakeDaemon, ctl: Ctl) -> None:
    states = iter(["STARTING", "STARTING", "SERVING"])
    daemon.answers["wait"] = lambda args: status(
        state=(state := next(states)), reached=state == "SERVING", phase="load"
    )
    said = ctl("wait", "--serving", "--timeout", "60")
    assert said.code == 0
    assert said.err.splitlines() == ["STARTING, load", "SERVING, load"]
    assert [request.args["until"] for request in daemon.asked] == ["serving"] * 3


def test_wait_waits_for_a_daemon_that_does_not_listen_yet(
    folder: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[FakeDaemon] = []

    def begin(_: float) -> None:
        begun.append(FakeDaemon(folder))
        begun[0].answers["wait"] = status(reached=True)

    monkeypatch.setattr("caovand.cli.wait.time.sleep", begin)
    try:
        said = ctl("wait", "--timeout", "240")
    finally:
        for one in begun:
            one.stop()
    assert said.code == 0
    assert said.err.splitlines()[0].startswith(f"cannot reach caovand at {folder}")
    assert said.err.splitlines()[0].endswith("; waiting for the daemon")


def test_wait_that_times_out_is_exit_status_3(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["wait"] = status(state="FAILED", reason="no room", reached=False)
    said = ctl("wait", "--timeout", "0", "--json")
    assert said.code == 3
    assert said.json["state"] == "FAILED"
    assert "caovanctl: not serving: FAILED no room" in said.err


def test_only_a_wait_that_ran_out_of_time_says_how_long_it_was(
    daemon: FakeDaemon, ctl: Ctl
) -> None:
    daemon.answers["wait"] = status(state="FAILED", reason="no room", reached=False)
    assert "not serving: FAILED no room" in ctl("wait", "--timeout", "600").err
    daemon.answers["wait"] = status(state="HOLD", reason="busy", reached=False)
    assert "not serving after 0 s: HOLD busy" in ctl("wait", "--timeout", "0").err


@pytest.mark.parametrize(("state", "reached", "code"), [("FAILED", True, 0), ("HOLD", False, 3)])
def test_wait_settled(daemon: FakeDaemon, ctl: Ctl, state: str, reached: bool, code: int) -> None:
    daemon.answers["wait"] = status(state=state, reached=reached)
    assert ctl("wait", "--settled", "--timeout", "0").code == code
    assert daemon.asked[0].args["until"] == "settled"


# -- what changes the engine ---


@pytest.mark.parametrize("verb", ["start", "restart", "retry", "reset"])
def test_a_change_that_ends_in_serving_is_exit_status_0(
    daemon: FakeDaemon, ctl: Ctl, verb: str
) -> None:
    daemon.answers.update({verb: {"state": "STARTING", "settled": False}, "wait": status()})
    said = ctl(verb)
    assert (said.code, said.out) == (0, "serving m on http://h:1/v1, MTP 3\n")


def test_a_note_of_the_daemon_is_printed_along_with_the_outcome(
    daemon: FakeDaemon, ctl: Ctl
) -> None:
    note = {"state": "SERVING", "settled": True, "note": "nothing to do: the full plan serves"}
    daemon.answers.update({"retry": note, "wait": status()})
    said = ctl("retry", "--full")
    assert (said.code, said.out) == (0, "serving m on http://h:1/v1, MTP 3\n")
    assert said.err.startswith("nothing to do: the full plan serves\n")
    assert ctl("retry", "--full", "--json").json["note"] == note["note"]


def test_the_only_model_is_printed_once(daemon: FakeDaemon, ctl: Ctl) -> None:
    slot = {"name": "main", **status()}
    daemon.answers["status"] = status(slots=[slot])
    found = ctl("status", "--json").json
    assert (found["slots"], found["state"]) == ([{"name": "main"}], "SERVING")
    daemon.answers["status"] = status(slots=[slot, {**slot, "name": "b"}])
    assert [one["state"] for one in ctl("status", "--json").json["slots"]] == ["SERVING"] * 2


def test_a_change_that_ends_otherwise_is_exit_status_3(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers.update({"start": {"state": "STARTING"}, "wait": status(state="FAILED")})
    assert ctl("start").code == 3


def test_no_wait_tells_the_state_at_once(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["start"] = {"state": "STARTING", "settled": False}
    said = ctl("start", "--no-wait")
    assert (said.code, said.out) == (0, "STARTING\n")
    assert ctl("start", "--no-wait", "--json").json == {"state": "STARTING", "settled": False}


def test_stop_waits_until_it_is_stopped(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers.update({"stop": {"state": "STOPPING"}, "wait": status(state="STOPPED")})
    said = ctl("stop")
    assert (said.code, said.out, said.err) == (0, "STOPPED\n", "")


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_stop_that_left_processes_is_exit_status_1_and_says_so(
    daemon: FakeDaemon, ctl: Ctl, words: tuple[str, ...]
) -> None:
    left = status(state="STOPPED", reason="cannot stop the engine: x (pid 7) outlived KILL")
    daemon.answers.update({"stop": {"state": "STOPPING"}, "wait": left})
    said = ctl("stop", *words)
    assert (said.code, "x (pid 7) outlived KILL" in said.err) == (1, True)
    assert said.json == left if words else said.out == ""


def test_a_clean_stop_has_the_reason_that_caovanctl_knows(daemon: FakeDaemon, ctl: Ctl) -> None:
    snapshot, _ = step(Snapshot(), Start(at=0.0), LifecycleRules())
    snapshot, _ = step(snapshot, Stop(at=1.0), LifecycleRules())
    snapshot, _ = step(snapshot, Gone(at=2.0, generation=snapshot.generation), LifecycleRules())
    assert snapshot.state is State.STOPPED
    ended = status(state="STOPPED", reason=snapshot.reason)
    daemon.answers.update({"stop": {"state": "STOPPING"}, "wait": ended})
    assert ctl("stop").code == 0


def test_a_stop_that_does_not_end_is_exit_status_1(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers.update(
        {"stop": {"state": "STOPPING"}, "wait": status(state="STOPPING", reached=False)}
    )
    assert ctl("stop", "--timeout", "0").code == 1


def test_a_file_that_is_refused_is_exit_status_1_with_every_finding(
    daemon: FakeDaemon, ctl: Ctl
) -> None:
    daemon.answers["status"] = status()
    daemon.answers["reload"] = Reply("", code="bad-config", message="one\ntwo", hint="correct it")
    assert (ctl("reload").code, ctl("reload").err) == (1, "caovanctl: one\ntwo\n  correct it\n")
    said = ctl("reload", "--json")
    error = {"code": "bad-config", "message": "one\ntwo", "hint": "correct it"}
    assert (said.code, said.json) == (1, {"ok": False, "error": error})


@pytest.mark.parametrize("state", ["STOPPED", "STOPPING"])
@pytest.mark.parametrize("words", [("reload",), ("mode", "fast")], ids=" ".join)
def test_what_starts_no_engine_has_no_outcome_to_wait_for(
    daemon: FakeDaemon, ctl: Ctl, words: tuple[str, ...], state: str
) -> None:
    answer = {"state": state, "mode": "fast", "origin": "caovanctl mode", "overruled": ""}
    daemon.answers.update({"status": status(state=state), "reload": answer, "mode": answer})
    said = ctl(*words)
    assert (said.code, said.out) == (0, f"{state}\n")


def test_a_plan_that_is_refused_is_exit_status_1(daemon: FakeDaemon, ctl: Ctl) -> None:
    refused = status(refusal={"text": "no such dtype"})
    daemon.answers.update({"status": status(), "reload": {"state": "SERVING"}, "wait": refused})
    said = ctl("reload")
    assert (said.code, "nothing changed: no such dtype" in said.err) == (1, True)
    daemon.answers["wait"] = {**refused, "state": "HOLD", "reason": "no card"}
    assert (ctl("reload").code, "not serving: HOLD: no card" in ctl("reload").err) == (3, True)


def test_a_reload_names_what_counts_from_the_daemons_next_start(
    daemon: FakeDaemon, ctl: Ctl
) -> None:
    answer = {"state": "SERVING", "unapplied": ["[cluster] nodes", "[log] level"]}
    daemon.answers.update({"status": status(), "reload": answer, "wait": status()})
    restart = "not applied until caovan restarts (sudo systemctl restart caovan)"
    text = f"{restart}: [cluster] nodes, [log] level\n"
    for words in (("reload",), ("reload", "--no-wait")):
        assert ctl(*words).err.startswith(text)
    for words in (("reload", "--json"), ("reload", "--no-wait", "--json")):
        said = ctl(*words)
        assert (said.json["unapplied"], said.err) == (answer["unapplied"], "")


def test_a_reload_that_changes_nothing_says_so(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers.update({"status": status(), "reload": {"state": "SERVING"}, "wait": status()})
    assert "plan unchanged: the engine was not restarted" in ctl("reload").out


# -- logs and events ---


def test_logs_are_printed_until_nothing_is_left(daemon: FakeDaemon, ctl: Ctl) -> None:
    def answer(args: Mapping[str, Any]) -> Mapping[str, Any]:
        first = "lines" in args
        last = 1 if first else 2
        return {"lines": ["a"] if first else ["b"], "last": last, "more": first, "end": 2}

    daemon.answers["logs"] = answer
    assert ctl("logs", "-n", "7").out == "a\nb\n"
    assert [dict(request.args) for request in daemon.asked] == [{"lines": 7}, {"since": 1}]
    assert ctl("logs", "--json").out == '{"line": "a"}\n{"line": "b"}\n'


def test_logs_end_at_the_line_that_was_last_when_they_began(daemon: FakeDaemon, ctl: Ctl) -> None:
    """The engine prints more lines between two answers than one answer holds."""
    count = 100

    def answer(args: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal count
        end = count
        since = args.get("since", end - args.get("lines", 0))
        last = since + 2
        count += 1000
        lines = [str(number) for number in range(since + 1, last + 1)]
        return {"lines": lines, "last": last, "more": True, "end": end}

    daemon.answers["logs"] = answer
    assert ctl("logs", "-n", "3").out.split() == ["98", "99", "100"]
    assert len(daemon.asked) == 2


def backlog(*numbers: int) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """What a daemon with these notices answers."""
    notices = [notice_fields(Notice(n, 0.0, "state", f"text {n}")) for n in numbers]
    return lambda args: {"events": [n for n in notices if n["seq"] > args["since"]]}


def test_events_are_printed_to_the_last(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["events"] = backlog(1, 2)
    said = ctl("events")
    assert (said.code, [line[21:] for line in said.out.splitlines()]) == (
        0, ["state    text 1", "state    text 2"],
    )  # fmt: skip
    first, second = map(json.loads, ctl("events", "--json").out.splitlines())
    assert (first["seq"], second["text"]) == (1, "text 2")


def test_who_follows_events_gets_each_once_in_order(daemon: FakeDaemon) -> None:
    daemon.answers["events"] = backlog(1, 2)
    with DaemonClient(daemon.folder) as client:
        notices = client.notices(0)
        seen = [next(notices).seq for _ in range(2)]
        # One that is published again, one that follows, and one after a gap the backlog closes.
        daemon.answers["events"] = backlog(1, 2, 3, 4, 5)
        for number in (2, 3, 5):
            daemon.publish(Notice(number, 0.0, "state", f"text {number}"))
        seen += [next(notices).seq for _ in range(3)]
    assert seen == [1, 2, 3, 4, 5]


# -- wrong usage, odd daemons ---


@pytest.mark.parametrize(
    "words",
    [(), ("dance",), ("mode", "warp"), ("wait", "--timeout", "soon"), ("logs", "-n", "x"),
     ("wait", "--serving", "--settled"), ("completion", "fish"), ("mode", "fast", "--default")],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_exit_status_2(ctl: Ctl, words: tuple[str, ...]) -> None:
    assert ctl(*words).code == 2


def test_a_daemon_of_another_version_is_told(daemon: FakeDaemon, ctl: Ctl) -> None:
    assert (ctl("start").code, ctl("start").err) == (1, "caovanctl: cannot do start\n")


def test_a_reader_that_goes_away_is_no_error(daemon: FakeDaemon) -> None:
    lines = {"lines": ["x" * 100] * 400, "last": 400, "more": True, "end": 10**6}
    daemon.answers["logs"] = lambda args: lines
    command = [sys.executable, "-m", "caovand.cli.main", "--runtime", str(daemon.folder), "logs"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_a_verb_with_effects_whose_output_nobody_reads_is_no_success(daemon: FakeDaemon) -> None:
    daemon.answers["stop"] = daemon.answers["wait"] = status(state="STOPPED")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "caovand.cli.main", "--runtime", str(daemon.folder), "stop"]
    with open(write, "wb") as pipe:
        done = subprocess.run(
            command, stdout=pipe, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False
        )
    assert done.stderr.splitlines()[-1].startswith("caovanctl: cannot report the outcome: ")
    assert done.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [("logs",), ("status",), ("completion", "bash"), ("--help",)])
def test_a_full_disk_is_one_line_and_exit_status_1(
    daemon: FakeDaemon, words: tuple[str, ...]
) -> None:
    daemon.answers["logs"] = {"lines": ["x"], "last": 1, "more": False, "end": 1}
    daemon.answers["status"] = status()
    command = [sys.executable, "-m", "caovand.cli.main", "--runtime", str(daemon.folder), *words]
    env = {**os.environ, "PYTHONUNBUFFERED": ""}  # as it is for people: written at the end
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=env, check=False
        )
    assert done.stderr == (
        "caovanctl: cannot write the output: No space left on device; free space, or write it"
        " elsewhere\n"
    )
    assert done.returncode == 1


def parsers(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and all the parsers under it."""
    yield top
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


@pytest.mark.parametrize("one", list(parsers(parser())), ids=lambda one: one.prog)
def test_every_help_has_an_example_and_is_printed(one: argparse.ArgumentParser, ctl: Ctl) -> None:
    words = one.prog.split()[1:]
    assert re.search(r"^examples?:\s+.*\bcaovan", one.epilog or "", re.S), one.prog
    assert " ".join(words) in (one.epilog or "")
    assert ctl(*words, "--help").code == 0


def verbs(*words: str) -> list[str]:
    """The verbs that the parser for this command line knows."""
    return [one.prog.split()[1] for one in parsers(parser(words)) if len(one.prog.split()) == 2]


@pytest.mark.parametrize("verb", verbs())
def test_a_command_line_imports_its_own_verb_only(verb: str) -> None:
    assert verbs(verb) == verbs("--runtime", "plan", verb, "--json") == [verb]


@pytest.mark.parametrize("words", [(), ("statu",), ("client",), ("--help",), ("--runtime",)])
def test_without_a_verb_the_parser_knows_them_all(words: tuple[str, ...]) -> None:
    assert verbs(*words) == verbs() != []


@pytest.mark.parametrize("program", ["caovand", "caovand.cli.doctor", "caovand.cli.serve"])
def test_every_other_program_has_an_example_too(program: str) -> None:
    command = [sys.executable, "-m", program, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "example: caovan" in done.stdout


# -- where the sockets are ---


def test_the_runtime_folder_is_the_given_one_else_ours_else_the_system_s(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runtime_directory(Path("/x")) == Path("/x")
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/a")
    assert runtime_directory(None) == Path("/run/a")
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    uid = os.getuid() or 1000
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    assert runtime_directory(None) == Path("/run/caovan")
    (folder / "caovan").mkdir()
    (folder / "caovan/status").touch()
    for path in (folder / "caovan", folder / "caovan/status"):
        os.chown(path, uid, -1)
    assert runtime_directory(None) == folder / "caovan"
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert runtime_directory(None) == Path("/run/caovan"), "it is another user's"


# -- check-config ---


def test_a_valid_file_is_exit_status_0(ctl: Ctl) -> None:
    path = str(ROOT / "etc/caovan.toml")
    assert (ctl("check-config", path).code, ctl("check-config", path).out) == (
        0,
        f"{path}: valid\n",
    )
    assert ctl("check-config", path, "--json").json == {
        "file": path, "ok": True, "findings": [], "unchecked": "",
    }  # fmt: skip


def test_a_bad_file_is_exit_status_1_with_every_finding(ctl: Ctl, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[server]\nport = 0\nhots = 1\n")
    said = ctl("check-config", str(path))
    assert said.code == 1
    assert said.out.splitlines() == [
        f"{path}: [server] port must be from 1 to 65535, is 0",
        f'{path}: unknown key "hots" in [server]; did you mean "host"?',
    ]
    assert len(ctl("check-config", str(path), "--json").json["findings"]) == 2


def test_flags_that_the_engine_refuses_are_found(
    ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, engine = tmp_path / "a.toml", CPU
    file.write_text('[engine]\nextra_args = ["--no-such-flag-at-all"]\n')
    machine = SurveyedMachine((), HOST, replace(engine, flags=frozenset({"--port"})))
    monkeypatch.setattr(check_config, "inspect", lambda *config, **how: machine)
    said = ctl("check-config", str(file))
    assert (said.code, said.out) == (
        1,
        f"{file}: [engine] extra_args: cannot pass --no-such-flag-at-all: vLLM {engine.version}"
        " has no such flag; remove it from [engine] extra_args\n",
    )
    machine = SurveyedMachine(
        (), HOST, None, Problem("use x as the engine", "it is missing", "install it")
    )
    said = ctl("check-config", str(file))
    assert (said.code, said.out) == (
        0,
        f"{file}: valid, but [engine] extra_args are not checked: cannot use x as the engine: it is"
        " missing; install it\n",
    )
    assert ctl("check-config", str(file), "--json").json["unchecked"]


def test_a_key_file_that_is_missing_is_found_too(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[server]\napi_key_file = "/nowhere/key"\n')
    said = ctl("check-config", str(tmp_path / "a.toml"))
    where = f"{tmp_path}/a.toml: cannot read [server] api_key_file /nowhere/key: No such file"
    assert (said.code, said.out.startswith(where)) == (1, True)


# -- incidents ---


def piece(data: bytes, following: Any = None, files: Any = ("incident.json",)) -> dict[str, Any]:
    """A piece of an incident's file, as a daemon sends it."""
    sizes = dict.fromkeys(files, 1) if isinstance(files, tuple) else files
    return {"files": sizes, "data": base64.b64encode(data).decode(), "next": following}


HOSTILE = {
    "a name that leads out": (
        lambda _: piece(b"x", files=("../etc/cron.d/x",)),
        "not a file name",
    ),
    "a full path": (lambda _: piece(b"x", files=("/etc/passwd",)), "not a file name"),
    "two dots": (lambda _: piece(b"x", files=("..",)), "not a file name"),
    "a name with a line end": (lambda _: piece(b"x", files=("a\nb",)), "not a file name"),
    "many names": (lambda _: piece(b"x", files=tuple(map(str, range(1000)))), "1000 files"),
    "empty pieces without end": (lambda args: piece(b"", args["offset"]), "continues at byte 0"),
    "the same piece again": (
        lambda _: piece(b"x", 0),
        "continues at byte 0, but 1 bytes were received",
    ),
    "pieces without end": (lambda args: piece(bytes(9), args["offset"] + 9), "more than 9 pieces"),
    "bytes without end": (lambda args: piece(bytes(300), args["offset"] + 300), "more than 0 MiB"),
    "no Base64": (lambda _: {**piece(b""), "data": "%%%"}, "malformed"),
    "no table": (lambda _: piece(b"", files=7), "malformed"),
    "another kind of place": (lambda _: piece(b"x", "1"), "malformed"),
}


@pytest.mark.parametrize(("answer", "fact"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("verb", [("bundle", "1", "b.tar.gz"), ("show", "1")], ids=lambda v: v[0])
def test_an_incident_of_a_hostile_daemon_leads_nowhere_and_ends(
    daemon: FakeDaemon, ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[Mapping[str, Any]], dict[str, Any]], fact: str, verb: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "MAX_PIECES", 9)
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    daemon.answers["incident"] = answer
    said = ctl("incidents", *verb)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("caovanctl: cannot read incident 1: ")
    assert fact in said.err
    assert not list(tmp_path.iterdir())


# -- completion ---


def completed(script: str, *words: str, user: int | None = None) -> set[str]:
    """What bash offers for the last of `words`, which stand as typed; it starts no program."""
    quoted = " ".join(map(shlex.quote, ("caovanctl", *words)))
    ask = f"""PATH=/nowhere
{script}
COMP_WORDS=({quoted}); COMP_CWORD={len(words)}
_caovanctl; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(
        ["bash", "-c", ask], capture_output=True, text=True, check=True, user=user
    )
    assert done.stderr == ""
    return set(done.stdout.splitlines()) - {""}


def test_bash_completes_verbs_flags_and_choices(ctl: Ctl) -> None:
    script = ctl("completion", "bash").out
    assert {"status", "stop", "start"} <= completed(script, "st")
    assert "mode" not in completed(script, "st")
    assert {"auto", "stable", "fast"} <= completed(script, "mode", "")
    assert completed(script, "mode", "--de") == {"--default", "--defer"}
    assert {"status"} <= completed(script, "--runtime", "/run/x", "stat")
    assert completed(script, "status", "--j") == {"--json"}


COMPLETIONS = [
    (("plan", "--mode", ""), {"auto", "stable", "fast"}),
    (("plan", "--mode", "=", "fa"), {"fast"}),
    (("plan", "--mode", "="), {"auto", "stable", "fast"}),
    (("plan", "--mode", "fast", "--js"), {"--json"}),
    (("engine", "install", "--bu"), {"--build"}),
    (("engine", "install", "--build", "cu"), {"cuda"}),
    (("engine", "install", "--wheels", "w", "--ag"), {"--again"}),
    (("engine", "list", "--bu"), set()),
    (("engine", "--root", "x", "inst"), {"install"}),
    (("--ru",), {"--runtime"}),
    (("--runtime", "mode", "re"), {"restart", "reset", "retry", "reload", "requests"}),
    (("incidents", "sh"), {"show"}),
    (("incidents", "show", "--"), {"--help", "--json"}),
    (("cluster", ""), {"init", "join", "leave", "nodes", "check"}),
    (("cluster", "init", "--l"), {"--listen"}),
    (("cluster", "join", "10.0.0.1:7070", "--k"), {"--key-file"}),
    (("explain", "status", "--js"), {"--json"}),
    (("status", ""), {"-h", "--help", "--json"}),
    (("completion", "z"), {"zsh"}),
]


@pytest.mark.parametrize(
    ("words", "offered"), COMPLETIONS, ids=[" ".join(words) for words, _ in COMPLETIONS]
)
def test_bash_completes_verbs_of_verbs_and_values_of_flags(
    ctl: Ctl, words: tuple[str, ...], offered: set[str]
) -> None:
    assert completed(ctl("completion", "bash").out, *words) == offered


def test_bash_completes_files_where_a_file_is_wanted(
    ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file.toml").touch()
    monkeypatch.chdir(tmp_path)
    script = ctl("completion", "bash").out
    for words in (("check-config", ""), ("plan", "--config", "a"), ("--runtime", "")):
        assert completed(script, *words) == {"a file.toml"}
    assert completed(script, "wait", "--timeout", "") == set()


@pytest.fixture
def engines(tmp_path: Path) -> Path:
    """A folder with two engines, one begun, and what else lies there."""
    root = tmp_path / "my engines"
    for name in ("vllm-0.21.0-cuda", "vllm-0.32.0-cpu.2", "half", ".removing-old", "$(echo>&2)"):
        (root / name).mkdir(parents=True)
        (root / name / (places.STEPS if name == "half" else places.MARKER)).touch()
    (root / "current").symlink_to("vllm-0.32.0-cpu.2")
    return root


INSTALLED = {"vllm-0.21.0-cuda", "vllm-0.32.0-cpu.2"}


@pytest.mark.parametrize("verb", ["use", "remove", "verify"])
def test_bash_completes_the_installed_engines_of_the_root_that_was_typed(
    ctl: Ctl, engines: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    script, above = ctl("completion", "bash").out, engines.parent
    monkeypatch.setenv("HOME", str(above))
    for typed in (f"'{engines}'", f'"{engines}"', f"{above}/my\\ engines", "~/my\\ engines"):
        assert completed(script, "engine", verb, "--root", typed, "") == INSTALLED
    assert completed(script, "engine", verb, "--root", "=", f"'{engines}'", "") == INSTALLED
    monkeypatch.chdir(engines)
    assert completed(script, "engine", verb, "--root=.", "") == INSTALLED
    assert completed(script, "engine", verb, "--root", ".", "vllm-0.3") == {"vllm-0.32.0-cpu.2"}
    assert completed(script, "engine", verb, "--root", ".", "--j") == {"--json"}


def test_bash_completes_the_engines_of_the_variable_else_of_the_system(
    ctl: Ctl, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAOVAN_ENGINES", str(engines))
    assert completed(ctl("completion", "bash").out, "engine", "use", "") == INSTALLED
    monkeypatch.delenv("CAOVAN_ENGINES")
    monkeypatch.setattr(places, "DEFAULT_ROOT", engines.parent / "of-the-system")
    engines.rename(places.DEFAULT_ROOT)
    assert completed(ctl("completion", "bash").out, "engine", "use", "") == INSTALLED


def test_bash_says_nothing_where_no_engine_can_be_seen(ctl: Ctl, engines: Path) -> None:
    script = ctl("completion", "bash").out
    words = ("engine", "use", "--root")
    flags = {"-h", "--help", "--root", "--json"}
    for typed in ("/nowhere", str(engines / "current" / places.MARKER), str(engines / "half")):
        assert completed(script, *words, typed, "") == flags
    nobody = 65534 if os.geteuid() == 0 else None
    engines.chmod(0)
    try:
        assert completed(script, *words, f"'{engines}'", "", user=nobody) == flags
    finally:
        engines.chmod(0o755)


def test_the_script_loads_as_the_help_says(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "c").write_text(ctl("completion", "bash").out)
    ask = f"source <(cat {tmp_path}/c) && complete -p caovanctl"
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert "_caovanctl" in done.stdout


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_the_script_loads_in_zsh(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "c").write_text(ctl("completion", "zsh").out)
    ask = f"autoload -U compinit && compinit -D && source {tmp_path}/c"
    subprocess.run(["zsh", "-fc", ask], capture_output=True, check=True)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_completes_verbs_of_verbs_values_of_flags_and_engines(
    ctl: Ctl, tmp_path: Path, engines: Path
) -> None:
    (tmp_path / "c").write_text(ctl("completion", "zsh").out)
    asked = [
        ("plan --mode fa", "plan --mode fast"),
        ("engine inst", "engine install"),
        ("engine install --bui", "engine install --build"),
        ("engine install --build cu", "engine install --build cuda"),
        ("--runt", "--runtime"),
        (
            "engine use --root my\\ engines vllm-0.3",
            "engine use --root my\\ engines vllm-0.32.0-cpu.2",
        ),
        ("engine remove --root='my engines' v", "engine remove --root='my engines' vllm-0."),
        ("engine use --root /nowhere --js", "engine use --root /nowhere --json"),
    ]
    tries = "\n".join(
        f"""
zpty -w -n shell $'\\x15'{shlex.quote(f"caovanctl {typed}")}$'\\t'
seen=
for i in {{1..200}}; do
    zpty -r -t shell more && seen+=$more
    [[ $seen == *{shlex.quote(f"caovanctl {wanted}")}* ]] || {{ sleep 0.05; continue }}
    print -r -- {shlex.quote(wanted)}
    break
done"""
        for typed, wanted in asked
    )
    script = f"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'autoload -U compinit; compinit -u -D; source {tmp_path}/c; echo loa""ded'
zpty -r -m shell seen '*loaded*'
{tries}
"""
    done = subprocess.run(
        ["zsh", "-f", "-c", script], capture_output=True, text=True, timeout=120, check=False,
        cwd=engines.parent,
    )  # fmt: skip
    assert done.stdout.splitlines() == [wanted for _, wanted in asked], done.stderr
