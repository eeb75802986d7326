"""The whole daemon over a stand-in engine that answers a fixed prompt wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from caovand.preparation import memories
from tests.daemon_process import daemon
from tests.patience import until
from tests.scenarios import test_supervision
from tests.scenarios.test_supervision import configuration

model = test_supervision.model


def wrong(folder: Path, do: str, times: int) -> dict[str, Any]:
    """What the stand-in is told: wrong in so many lives once the file `wrong` is there."""
    fault = {
        "at": "canary", "do": do, "times": times, "memory": str(folder / "times"),
        "after": str(folder / "wrong"),
    }  # fmt: skip
    return {"fault": fault}


@pytest.mark.parametrize(
    ("do", "failure"),
    [
        ("wrong", "answers-changed"),
        pytest.param("nan", "answers-degenerate", marks=pytest.mark.long),
        pytest.param("loop", "answers-degenerate", marks=pytest.mark.long),
    ],
)
def test_answers_that_are_wrong_after_a_restart_of_the_daemon_heal_by_a_rung(
    model: Path,
    tmp_path: Path,
    do: str,
    failure: str,
) -> None:
    with daemon(configuration(model, wrong(tmp_path, do, times=2))) as one:
        one.until_state("SERVING")
        assert one.stop() == 0
        (tmp_path / "wrong").touch()
        one.start()
        status = one.until_state("SERVING")
        assert status["last_failure"]["failure"] == failure
        assert status["last_failure"]["phase"] == "proof"
        assert status["degraded"]
        assert "a fixed prompt got a wrong answer" in " ".join(one.events())
        assert failure in one.ctl("incidents").stdout


def test_a_near_tie_is_no_failure_and_a_broken_file_is_begun_anew(
    model: Path,
    tmp_path: Path,
) -> None:
    with daemon(configuration(model, wrong(tmp_path, "tie", times=1))) as one:
        one.until_state("SERVING")
        assert one.stop() == 0
        (tmp_path / "wrong").touch()
        one.start()
        assert one.until_state("SERVING")["last_failure"] is None
        until(lambda: "after a near tie" in " ".join(one.events()), "the near tie")
        assert one.stop() == 0
        kept = memories.folder(one.folder / "state") / memories.ANSWERS
        kept.write_text("{")
        one.start()
        assert one.until_state("SERVING")["last_failure"] is None
        assert f"cannot use {kept}" in " ".join(one.events())
        assert kept.read_text() != "{"
