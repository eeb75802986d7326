"""Every verb prints untrusted names and texts literally: no markup, no escapes."""

from __future__ import annotations

import ast
import base64
import contextlib
import gc
import io
import json
import sys
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from rich.text import Text

from caovand.cli import inventory
from caovand.cli import plan as plan_verb
from caovand.cli.common import printing
from caovand.cli.common.console import console
from caovand.cli.common.planned import plan_for
from caovand.cli.common.progress import Screen
from caovand.core.config.parser import parse
from caovand.core.facts.inventory_file import render
from caovand.core.problem import Problem
from caovand.core.reporting.wire import Reply
from tests.cli.conftest import Ctl
from tests.cli.fake_daemon import FakeDaemon, status
from tests.core.machines import CUDA, HOST, QWEN_27B_AWQ, turing
from tests.core.machines import inventory as machine
from tests.test_architecture import PACKAGE

STRANGE = "训[/x][bold][engine]\x1b]0;owned\x07\x9b31m\u202e:smile:"
SHOWN = r"训[/x][bold][engine]\x1b]0;owned"  # rich drops the bell, which is as good
KEPT = ("\n", "\t")


def assert_shown(text: str, times: int = 1) -> None:
    left = [c for c in text if unicodedata.category(c) in ("Cc", "Cs") and c not in KEPT]
    assert left == []
    assert "\u202e" not in text
    assert text.count(SHOWN) >= times, text
    assert text.count(":smile:") >= times


def strange(value: Any) -> Any:
    """The same with something strange behind each text."""
    if isinstance(value, str):
        return value + STRANGE
    if isinstance(value, Mapping):
        return {name: strange(entry) for name, entry in value.items()}
    return [strange(entry) for entry in value] if isinstance(value, list) else value


FINDING = {"failure": "hang", "text": "t", "phase": "p", "signature": "s", "line": 1}
GPU = {
    "index": 0, "used_mib": 1, "total_mib": 2, "utilization": 3, "temperature": 4, "power_w": 5,
    "throttled": "heat", "fault": "",
}  # fmt: skip
STATUS = {
    **strange(
        {
            name: status()[name]
            for name in ("reason", "phase", "detail", "model", "mode", "mode_origin", "served")
        }
    ),
    "served": None,
    "phase": STRANGE,
    "reason": STRANGE,
    "detail": STRANGE,
    "engine_mode": STRANGE,
    "degraded": {"since": 1.0, **strange({"rungs": ["mtp"], "why": ["w"], "back": "b"})},
    "warnings": [STRANGE],
    "gpus": [strange(GPU) | {"fault": ""}, strange(GPU)],
    "last_failure": strange(FINDING) | {"line": 1},
    "last_failure_s": 5.0,
    "refusal": {"text": STRANGE},
}
REPORT = {
    "number": 3, "at": "2026", **strange({"failure": "hang"}), "finding": strange(FINDING),
    "decision": {"text": STRANGE, "verdict": "fail", "obstacles": [STRANGE]},
    "plan": strange({"model": "m", "rungs": ["r"]}),
    "processes": [{"pid": 1, **strange({"name": "n", "State": "S"})}],
    "cause": strange({"before": ["b"], "line": "l", "after": ["a"]}),
}  # fmt: skip
PAGE = {
    "files": {f"log{STRANGE}": 4}, "next": None,
    "data": base64.b64encode(json.dumps(REPORT).encode()).decode(),
}  # fmt: skip
EVENT = {"seq": 1, "at": 1.0, "kind": "noticed", "text": STRANGE, "data": {}}
ROW = {
    "number": 1, "at": "2026-01-01", "bytes": 1,
    **strange({"failure": "hang", "phase": "p", "text": "t", "action": "a"}),
}  # fmt: skip
NODE = {
    **strange({"name": "n", "address": "a"}), "state": "lost", "since_s": 1.0,
    "facts": {**strange({"engine": "e", "version": "v"}), "cards": [
        {"name": STRANGE, "memory_mib": 1024, "compute_capability": "7.5", "count": 1},
    ]},
    "ranks": [{"rank": STRANGE, "pid": 1}], "gpus": [], "reported": {},
    "network": STRANGE,
}  # fmt: skip
CLUSTER = {
    "role": "head", "name": STRANGE, "head": STRANGE, "nodes": [NODE], "missing": 1, "forecast": {},
    "checks": [{"verdict": "FAIL", **strange({"node": "n", "text": "t", "remedy": "r"})}],
}  # fmt: skip
SUMMARY = {
    "role": "head", "name": STRANGE, "nodes": 3, "missing": 1, "joined": [STRANGE],
    "lost": [STRANGE], "refused": [STRANGE], "serving": 1,
}  # fmt: skip

SCREENS: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {
    "status": (("status",), {"status": status(**STATUS, state="HOLD")}),
    "status serving": (
        ("status",),
        {"status": status(**{**STATUS, "served": strange(status()["served"])}, state="SERVING")},
    ),
    "status of a head": (
        ("status",), {"status": status(**STATUS, state="HOLD", cluster=SUMMARY)},
    ),
    "wait": (("wait",), {"wait": status(**STATUS, state="FAILED", reached=False)}),
    "start": (("start",), {
        "start": status(**STATUS), "wait": status(**STATUS, state="FAILED", reached=True),
    }),
    "start no-wait": (("start", "--no-wait"), {"start": {"state": STRANGE}}),
    "mode": (("mode",), {"mode": {"mode": "auto", "origin": STRANGE, "overruled": STRANGE}}),
    "stop": (("stop",), {
        "stop": status(), "wait": status(**{**STATUS, "state": "STOPPED", "reached": True}),
    }),
    "refused": (("reload",), {
        "status": status(), "reload": Reply("", None, "bad-config", STRANGE, STRANGE),
    }),
    "version": (("version",), {"version": {"version": STRANGE}}),
    "logs": (("logs",), {"logs": {"lines": [STRANGE], "last": 1, "end": 1, "more": False}}),
    "incidents": (("incidents",), {"incidents": {"incidents": [ROW]}}),
    "incident": (("incidents", "show", "3"), {"incident": PAGE}),
    "nodes": (("cluster", "nodes"), {"cluster": CLUSTER}),
    "check": (("cluster", "check"), {"cluster": CLUSTER}),
}  # fmt: skip


@pytest.mark.parametrize("name", SCREENS)
def test_what_a_daemon_answers_is_shown(name: str, daemon: FakeDaemon, ctl: Ctl) -> None:
    words, answers = SCREENS[name]
    daemon.answers.update(answers)
    said = ctl(*words)
    assert_shown(said.out + said.err)


def test_events_are_shown(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["events"] = lambda args: {"events": [EVENT] if args["since"] < 1 else []}
    assert_shown(ctl("events").out)


def test_files_and_logs_are_shown(ctl: Ctl, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(
        f"INFO 11-20 08:53:06 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config:"
        f" model='{STRANGE}', dtype=x\nERROR 11-20 09:20:00 [core.py:1] ValueError: {STRANGE}\n"
        f"RuntimeError: Engine core initialization failed. {STRANGE}\n"
    )
    said = ctl("explain", str(log))
    assert not [c for c in said.out if unicodedata.category(c) == "Cc" and c not in KEPT]
    bad = tmp_path / f"bad{STRANGE.replace('/', '')}.toml"
    bad.write_text(f'[model]\npath = "{"x" * 3}"\n"a[b]c" = 1\n')
    said = ctl("check-config", str(bad))
    assert said.code == 1
    assert_shown(said.out.replace("[x]", "[/x]"))


def test_cards_and_their_users_are_shown(
    ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = tuple(
        replace(gpu, name=STRANGE, driver=STRANGE, users=((7, STRANGE, 5),)) for gpu in turing(1)
    )
    engine = replace(CUDA, **dict.fromkeys(("torch", "plugin", "flashinfer"), STRANGE))
    seen = inventory.SurveyedMachine(gpus, HOST, engine)
    monkeypatch.setattr(inventory, "inspect", lambda *_, **__: seen)
    monkeypatch.setenv("COLUMNS", "400")
    said = ctl("inventory")
    assert said.code == 0
    assert_shown(said.out, times=4)
    monkeypatch.setattr(
        inventory,
        "inspect",
        lambda *_, **__: replace(seen, engine=None, engine_problem=Problem("", STRANGE, "")),
    )
    assert_shown(ctl("inventory").out, times=3)


def test_a_plan_and_a_checkup_are_shown(
    ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    path = QWEN_27B_AWQ.path + STRANGE
    config = parse({"model": {"path": path}, "engine": {"extra_args": ["--x", STRANGE]}})
    found = plan_for(config, machine(gpus=turing(2)), None)
    found = replace(found, plan=replace(found.plan, caveats=(Problem.stated(STRANGE),)))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        plan_verb.print_plan(found, console())
    assert_shown(out.getvalue(), times=2)
    saved = tmp_path / "machine.json"
    gpus = tuple(replace(gpu, users=((7, "n[/x]", 9000),)) for gpu in turing(1))
    saved.write_text(json.dumps(render(gpus, HOST, CUDA)))
    said = ctl("doctor", "--inventory", str(saved), f"/nowhere/{STRANGE}")
    assert said.code == 1
    assert_shown(said.out)


@pytest.mark.parametrize("make", [str, Text, lambda text: Table("x", text, title=text)])
def test_the_console_shows_whatever_holds_the_text(make: Callable[[str], Any]) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        made = console()
        made.width = 200
        made.print(make(STRANGE))
    assert_shown(out.getvalue())


def test_a_terminal_gets_colours_of_ours_and_none_of_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    out = io.StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    with contextlib.redirect_stdout(out), printing.escaping_output():
        console().print(Text("ours \x1b[32mtheirs", style="red"))
        print("\x1b[31mtheirs")
    assert out.getvalue().startswith("\x1b[31mours \\x1b[32mtheirs\x1b[0m")
    assert out.getvalue().endswith("\n\\x1b[31mtheirs\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_shown(terminal: bool) -> None:
    out = io.StringIO()
    out.isatty = lambda: terminal  # type: ignore[method-assign]
    with contextlib.redirect_stderr(out), printing.escaping_output():
        screen = Screen(sys.stderr)
        screen.progress(1, 2, STRANGE[:12])
        screen.say(STRANGE)
    text = out.getvalue()
    assert text.count("\r\033[K") == terminal
    assert_shown(text.replace("\r\033[K", ""))
    assert ("━" in text) is terminal


def test_only_one_place_makes_consoles_and_none_writes_past_them() -> None:
    for file in sorted((PACKAGE / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            code = ast.unparse(node) if isinstance(node, (ast.Call, ast.Attribute)) else ""
            if file.name != "console.py":
                assert not code.startswith("Console("), f"{file.name}: use console()"
            assert "sys.__std" not in code, file.name
            assert not code.startswith(("sys.stdout.buffer", "sys.stderr.buffer")), file.name
            assert code not in ("os.write", "rich.print"), file.name
            if code.startswith("raw("):
                assert file.name in ("console.py", "ending.py", "printing.py", "progress.py")


def test_a_stream_that_was_closed_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collected late, as part of a cycle, it would flush what is closed by then."""
    faults: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", faults.append)
    stream = io.TextIOWrapper(io.BytesIO())
    shown = printing.EscapingStream(stream)
    print("text", file=shown)
    stream.close()
    del shown
    gc.collect()
    assert faults == []
