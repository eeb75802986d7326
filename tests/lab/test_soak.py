"""`caovanctl soak`: what it refuses before it sends requests."""

from __future__ import annotations

from typing import Any, cast

import pytest

from caovand.cli.common.client import DaemonClient
from caovand.lab.soak.ledger import SoakLedger
from caovand.lab.soak.watch import SoakWatch
from tests.cli.conftest import Ctl
from tests.lab.test_bench import Box, box

__all__ = ["box"]  # a fixture


@pytest.mark.parametrize(
    "words",
    [
        (), ("0",), ("-1",), ("nan",), ("inf",), ("8h",), ("1001",), ("0.001",), ("",),
        ("1", "--at-once", "0"), ("1", "--at-once", "1,2"), ("1", "--seed", "x"),
    ],
)  # fmt: skip
def test_bad_values_are_refused(ctl: Ctl, words: tuple[str, ...]) -> None:
    said = ctl("soak", *words)
    assert (said.code, said.out) == (2, "")


def test_no_model_is_served(box: Box, ctl: Ctl) -> None:
    box.daemon.answers["status"] = box.status(served=None, state="HOLD", reason="no card")
    said = ctl("soak", "1")
    assert said.code == 3
    assert "cannot soak: no model is served, the state is HOLD: no card" in said.err


def test_no_daemon(ctl: Ctl) -> None:
    assert ctl("soak", "1").code == 4


def test_first_requests_that_fail_are_a_problem(box: Box, ctl: Ctl) -> None:
    box.daemon.answers["events"] = {"events": []}
    box.engine.status = 401
    said = ctl("soak", "1")
    assert (said.code, said.out) == (1, "")
    assert "cannot soak: the engine refused the API key (HTTP 401)" in said.err
    box.engine.status = 500
    assert "cannot soak: the first requests failed: /tokenize: HTTP 500" in ctl("soak", "1").err


class Events:
    """A daemon that answers with these events, once."""

    def __init__(self, *kinds: str) -> None:
        self._entries: list[dict[str, Any]] = [
            {"seq": number, "kind": kind, "text": f"a {kind}"}
            for number, kind in enumerate(kinds, 1)
        ]

    def ask(self, op: str, since: int = 0) -> Any:
        if op == "status":
            return {"rungs": [], "served": None, "daemon": {"pid": 1}}
        return {"events": [entry for entry in self._entries if entry["seq"] > since]}


def test_only_events_that_the_verdict_names_are_kept() -> None:
    watch = SoakWatch(cast(DaemonClient, Events("state", "failure", "figures")), SoakLedger())
    watch.sample()
    assert [(event.kind, event.text) for event in watch.events] == [("failure", "a failure")]
