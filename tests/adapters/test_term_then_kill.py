"""Ending a child: TERM first, KILL for one that does not end."""

from __future__ import annotations

import subprocess

import pytest

from caovand.adapters.system.term_then_kill import term_then_kill
from tests.patience import LIMIT_S


@pytest.mark.parametrize(
    ("trap", "grace_s", "status"), [("exit 3", LIMIT_S, 3), ("", 0.05, -9)], ids=["ends", "deaf"]
)
def test_a_child_may_finish_and_one_that_does_not_is_killed(
    trap: str, grace_s: float, status: int
) -> None:
    script = f"trap '{trap}' TERM; echo; while :; do read line; done"
    with subprocess.Popen(
        ["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        term_then_kill(child, grace_s)
        assert child.returncode == status
