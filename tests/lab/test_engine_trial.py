"""`caovanctl engine try`: refusals, success and rollback, with canned replies from a daemon."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.engine_install import places
from caovand.adapters.engine_install.places import InstalledEngine
from caovand.core.figures import track
from caovand.core.figures.track import Track
from caovand.lab import engine_trial
from caovand.lab.bench.drive import BenchOrder
from tests.cli.conftest import Ctl
from tests.cli.fake_daemon import FakeDaemon, status

OLD, NEW = "vllm-0.21.0-cuda", "vllm-0.33.0-cuda"
FIGURES = {**track.describe(Track(), 0.0), "restarts": {}, "memory": []}


class Box:
    """Two engines, and a daemon that serves with the current one after each reload."""

    def __init__(self, daemon: FakeDaemon, root: Path, config: Path) -> None:
        self.daemon, self.root, self.config = daemon, root, config
        self.served, self.reloads, self.fails, self.refuses = OLD, 0, "", ""
        for name in (OLD, NEW):
            (root / name).mkdir(parents=True)
            version = name.split("-")[1]
            made = InstalledEngine(
                name, root / name, version, "cuda", "3.12", "", None, None, "", ""
            )
            places.finish(made)
        places.switch(root, OLD)
        config.write_text(
            f'[model]\npath = "/srv/m"\n[engine]\npython = "{root}/current/bin/python"\n'
        )
        plan = {"engine": "vllm", "fingerprint": "f", "context": 8192, "model": "m", "rungs": []}
        daemon.answers |= {
            "status": lambda _args: self.status(), "wait": lambda _args: self.status(),
            "plan": plan, "reload": lambda _args: self.reload(),
        }  # fmt: skip

    def status(self, **changes: Any) -> dict[str, Any]:
        state = "FAILED" if self.fails == self.served else "SERVING"
        refusal = {"failure": "x", "text": self.refuses} if self.refuses else None
        return status(
            state=state, reason="no", figures=FIGURES, refusal=refusal,
            reported={"version": self.served.split("-")[1]},
            served={"name": "m", "host": "h", "port": 1, "url": "http://h:1/v1"},
            daemon={"version": "0.1", "pid": 7, "config": str(self.config)}, **changes,
        )  # fmt: skip

    def reload(self) -> dict[str, Any]:
        self.reloads += 1
        now = places.current(self.root)
        assert now is not None
        self.served = now.name
        return self.status()

    @property
    def current(self) -> str:
        now = places.current(self.root)
        return now.name if now else ""


@pytest.fixture
def box(daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    made = Box(daemon, tmp_path / "engines", tmp_path / "caovan.toml")
    monkeypatch.setattr(engine_trial, "_refusal", lambda *_: "")
    monkeypatch.setattr(engine_trial, "_answer", lambda _found, prompt: prompt)
    monkeypatch.setattr(engine_trial.drive, "measure", measured(made, {OLD: 100.0, NEW: 120.0}))
    return made


def measured(box: Box, speeds: Mapping[str, float]) -> Any:
    """A bench whose decode speed is that of the engine that serves."""

    def measure(_client: Any, found: Any, order: BenchOrder) -> tuple[dict[str, Any], None]:
        speed = speeds[box.served]
        rounds = [
            {"decode_tokens_per_s": speed + n, "prefill_tokens_per_s": 1.0,
             "first_token_s": [0.1], "token_s": [1 / (speed + n)]}
            for n in range(order.rounds)
        ]  # fmt: skip
        cells = [{"prompt": 512, "at_once": 1, "rounds": rounds}]
        texts = {"tokens": order.tokens, "seed": order.seed, "texts": ""}
        return {**found.described, **texts, "cells": cells}, None

    return measure


def tried(ctl: Ctl, box: Box, *words: str) -> Any:
    return ctl("engine", "try", *words, "--root", str(box.root))


def test_a_faster_engine_is_kept_and_shown_next_to_the_old_one(box: Box, ctl: Ctl) -> None:
    said = tried(ctl, box, "0.33.0")
    assert said.code == 0, said.err
    assert (box.current, box.served, box.reloads) == (NEW, NEW, 1)
    assert said.out.startswith(f"A is {OLD}\nB is {NEW}\n")
    assert "4 of 4 fixed prompts got the same answer" in said.out
    assert said.out.endswith(f"{NEW} is kept\n")


def test_a_slower_engine_is_rolled_back_unless_it_is_wanted_all_the_same(
    box: Box, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = measured(box, {OLD: 100.0, NEW: 80.0})
    monkeypatch.setattr(engine_trial.drive, "measure", slow)
    said = tried(ctl, box, NEW, "--json")
    assert said.code == 1
    assert (box.current, box.served, box.reloads) == (OLD, OLD, 2)
    assert said.json["kept"] is False
    assert "prompts of 512, 1 at once" in said.json["why"]
    assert (said.json["before"], said.json["tried"]) == (OLD, NEW)
    said = tried(ctl, box, NEW, "--keep-slower")
    assert (said.code, box.current) == (0, NEW)


def test_a_little_slower_is_no_reason_to_go_back(
    box: Box, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    little = measured(box, {OLD: 1000.0, NEW: 980.0})
    monkeypatch.setattr(engine_trial.drive, "measure", little)
    assert tried(ctl, box, NEW).code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, None])
def test_whatever_cuts_a_trial_short_the_old_engine_is_in_use_afterwards(
    number: signal.Signals | None, box: Box, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = measured(box, {OLD: 100.0, NEW: 120.0})

    def cut(*given: Any, **named: Any) -> Any:
        if box.served == NEW:
            if number is None:
                raise ValueError("unforeseen")
            signal.raise_signal(number)
        return plain(*given, **named)

    monkeypatch.setattr(engine_trial.drive, "measure", cut)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, *engine_trial.ENDING)]
    with contextlib.suppress(KeyboardInterrupt, ValueError):
        assert tried(ctl, box, NEW).code != 0
    assert (box.current, box.served) == (OLD, OLD)
    assert handlers == [signal.getsignal(one) for one in (signal.SIGINT, *engine_trial.ENDING)]


@pytest.mark.parametrize("how", ["fails", "refuses"])
def test_an_engine_that_does_not_serve_is_followed_by_the_old_one(
    how: str, box: Box, ctl: Ctl
) -> None:
    if how == "fails":
        box.fails = NEW
    else:
        plain = box.reload

        def reload() -> dict[str, Any]:
            plain()
            box.refuses = "it does not fit" if box.served == NEW else ""
            return box.status()

        box.daemon.answers["reload"] = lambda _args: reload()
    said = tried(ctl, box, NEW)
    assert (said.code, box.current, box.served) == (1, OLD, OLD)
    assert f"going back to {OLD}" in said.err
    assert f"cannot try {NEW}: " in said.err


def test_after_an_installation_the_one_that_serves_still_is_compared(box: Box, ctl: Ctl) -> None:
    places.switch(box.root, NEW)
    assert box.served == OLD
    said = tried(ctl, box, NEW)
    assert said.code == 0, said.err
    assert said.out.startswith(f"A is {OLD}\n")
    again = tried(ctl, box, NEW)
    assert (again.code, "this engine is already serving" in again.err) == (1, True)


def test_what_cannot_work_is_refused_before_anything_is_stopped(
    box: Box, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*words: str) -> str:
        said = tried(ctl, box, *words)
        assert (said.code, box.current, box.reloads) == (1, OLD, 0)
        return str(said.err)

    assert "install that version first: sudo caovanctl engine install 0.34.0" in refused("0.34.0")
    text = box.config.read_text()
    box.config.write_text(text.replace("current", OLD))
    assert "switching in" in refused(NEW)
    box.config.write_text(text)
    box.daemon.answers["status"] = box.status(rungs=["mtp-off off"])
    assert "degraded: mtp-off off" in refused(NEW)
    box.daemon.answers["status"] = {**box.status(), "served": None, "state": "STOPPED"}
    assert "no model is served" in refused(NEW)
    box.daemon.answers["status"] = box.status()
    monkeypatch.setattr(engine_trial, "_refusal", lambda *_: "5.8 GiB left, 12.2 GiB needed")
    assert "5.8 GiB left, 12.2 GiB needed; nothing was stopped" in refused(NEW)


def test_it_waits_until_nobody_asks(box: Box, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([2, 1, 0, 0, 0, 0, 0, 0])
    clock = [0.0]
    monkeypatch.setattr(engine_trial.time, "monotonic", lambda: clock[0])

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(engine_trial.time, "sleep", sleep)

    class Client:
        def ask(self, _op: str) -> dict[str, Any]:
            return {"figures": {"running": next(looks), "waiting": 0}}

    class Screen:
        def say(self, text: str) -> None:
            assert text == "waiting for 3 s without a request"

    engine_trial._wait_until_idle(Client(), 3.0, Screen())  # type: ignore[arg-type]
    assert (clock[0], next(looks)) == (4.0, 0)


def test_the_plan_is_made_for_the_tried_engine(tmp_path: Path) -> None:
    config = engine_trial.Config()
    made = InstalledEngine(NEW, tmp_path / NEW, "0.33.0", "cuda", "3.12", "", None, None, "", "")
    with_it = engine_trial._with(config, made)
    assert with_it.engine.python == str(tmp_path / NEW / "bin/python")
    assert replace(with_it, engine=config.engine) == config
