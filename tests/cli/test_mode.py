"""`caovanctl mode`: its output, its choice, and what overrides the mode."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Ctl
from tests.cli.fake_daemon import FakeDaemon, status

TYPED = "[policy] mtp is 2"
TOLD = f"mode fast does not decide the MTP depth: {TYPED}\n"


def answer(state: str, overruled: str = "") -> dict[str, Any]:
    """What a daemon answers that is asked for its mode."""
    return {"mode": "fast", "origin": "caovanctl mode", "overruled": overruled, "state": state}


def test_modes_are_shown_chosen_and_forgotten(daemon: FakeDaemon, ctl: Ctl) -> None:
    daemon.answers["mode"] = answer("STOPPED")
    assert ctl("mode").out == "fast (from caovanctl mode)\n"
    assert ctl("mode", "fast", "--defer").code == 0
    assert ctl("mode", "--default").code == 0
    assert [dict(request.args) for request in daemon.asked] == [
        {}, {"mode": "fast", "defer": True}, {"mode": "default", "defer": False},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "words", "said"),
    [
        ("SERVING", (), "fast (from caovanctl mode)\n" + TOLD),
        ("SERVING", ("fast",), TOLD + "serving m on http://h:1/v1, MTP 2\n"),
        ("STOPPED", ("fast",), TOLD + "STOPPED\n"),
        ("SERVING", ("fast", "--no-wait"), TOLD + "SERVING\n"),
        ("SERVING", ("fast", "--defer"), TOLD + "SERVING\n"),
    ],
)
def test_a_mode_that_is_overruled_says_by_what(
    daemon: FakeDaemon, ctl: Ctl, state: str, words: tuple[str, ...], said: str
) -> None:
    daemon.answers.update({"mode": answer(state, TYPED), "wait": status(mtp=2)})
    assert (ctl("mode", *words).code, ctl("mode", *words).out) == (0, said)
    assert ctl("mode", *words, "--json").json["overruled"] == TYPED


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("MTP 4 -> 3, because of draft-collapse", True),
        ("the model has no MTP head, so drafting is off", True),
        ("mode fast drafts 4 tokens on any number of GPUs", False),
    ],
)
def test_what_only_a_plan_tells_is_told_once_it_serves(
    daemon: FakeDaemon, ctl: Ctl, reason: str, told: bool
) -> None:
    setting = {"value": {}, "origin": "policy", "reason": reason}
    plan = {"settings": {"speculative_config": setting}}
    daemon.answers.update({"mode": answer("SERVING"), "wait": status(mtp=2), "plan": plan})
    said = ctl("mode", "fast")
    more = f"mode fast does not decide the MTP depth: {reason}\n" if told else ""
    assert (said.code, said.out) == (0, f"serving m on http://h:1/v1, MTP 2\n{more}")
    assert ctl("mode", "fast", "--json").json == {**status(mtp=2), "overruled": ""}
