"""`caovanctl key` and `requests`: their requests to the daemon, and their output."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Ctl
from tests.cli.fake_daemon import FakeDaemon

ALICE = {
    "name": "alice",
    "models": ["tiny"],
    "rpm": 60,
    "tokens_per_day": None,
    "band": "background",
    "temperature": 0.2,
    "max_tokens": None,
    "reasoning_effort": "high",
}
USED = {"day": "2026-11-26", "key": "alice", "requests": 3, "read": 12345, "written": 6}


def test_a_key_is_printed_alone_so_that_it_can_be_piped(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["key_add"] = {"key": "sk-caovan-secret"}
    said = ctl("key", "add", "alice", "--models", "tiny, small", "--rpm", "60")
    assert (said.code, said.out) == (0, "sk-caovan-secret\n")
    assert daemon.asked[0].args == {
        "name": "alice", "models": ["tiny", "small"], "rpm": 60, "tokens_per_day": None,
        "band": "interactive", "temperature": None, "max_tokens": None, "reasoning_effort": None,
    }  # fmt: skip


def test_the_defaults_of_a_key_reach_the_daemon(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["key_add"] = {"key": "sk-caovan-secret"}
    ctl("key", "add", "a", "--temperature=0.2", "--max-tokens=9", "--reasoning-effort=high")
    args = daemon.asked[0].args
    found = (args["temperature"], args["max_tokens"], args["reasoning_effort"])
    assert found == (0.2, 9, "high")
    assert ctl("key", "add", "a", "--reasoning-effort", "huge").code == 2


def test_keys_and_their_use_are_listed(daemon: FakeDaemon, ctl: Ctl) -> None:
    answer: dict[str, Any] = {"required": True, "keys": [ALICE], "usage": [USED]}
    daemon.answers["keys"] = answer
    said = ctl("key", "list").out
    for text in ("alice", "tiny", "60", "any", "background", "2026-11-26", "12,345"):
        assert text in said
    for text in ("temperature", "0.2", "effort", "high"):
        assert text in said
    assert "None" not in said
    assert ctl("key", "list", "--json").json == answer
    answer.update(keys=[], usage=[])
    assert "nobody can use" in ctl("key", "list").out
    answer.update(required=False)
    assert "clients need only" in ctl("key", "list").out


def test_a_revoked_key_is_gone(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["key_revoke"] = {"required": True, "keys": [], "usage": []}
    said = ctl("key", "revoke", "alice")
    assert said.code == 0
    assert "no key is left: no client can use the gateway" in said.out
    assert daemon.asked[0].args == {"name": "alice"}


def test_the_latest_requests_are_listed(daemon: FakeDaemon, ctl: Ctl) -> None:
    row = {
        "at": 0.0, "key": "alice", "path": "/v1/messages", "model": "tiny", "status": 200,
        "outcome": "", "waited_s": 0.5, "first_s": 0.75, "whole_s": 12.25, "read": 1234,
        "written": 56, "estimated": True,
        "prefix": "message 3 changed: about 21,000 tokens read again",
    }  # fmt: skip
    lost = {**row, "status": 503, "outcome": "no_engine", "first_s": None, "key": ""}
    daemon.answers["requests"] = {"requests": [row, lost]}
    said = ctl("requests").out
    for text in (
        "alice",
        "/v1/messages",
        "0.50 s",
        "0.75 s",
        "12.25 s",
        "~1,234",
        "503 no_engine",
        row["prefix"],
    ):
        assert text in said
    assert ctl("requests", "--failed", "--json").json == [lost]
    assert ctl("requests", "-n", "1", "--json").json == [lost]
    assert ctl("requests", "-n", "0").code == 2
    daemon.answers["requests"] = {"requests": []}
    assert "no such requests" in ctl("requests").out
