"""One card: the draft tuner, the fixed prompt over a kill and changed answers, the field test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from caovand.lab.core.fieldtest.trials import FORCE
from caovand.preparation import memories
from tests.cards.conftest import CARD, OUR_KERNELS, configuration, running, serves, shown
from tests.daemon_process import ROOT
from tests.e2e.test_tuning import APPLY, asked_until
from tests.patience import until
from tests.ports import free_port


def test_the_tuner_turns_useless_drafts_off_and_changed_answers_are_noticed(cards: int) -> None:
    port = free_port()
    with running(configuration("hybrid", port, [CARD], more=APPLY)) as one:
        first = serves(one)
        depth = first["mtp"]
        assert depth
        before = asked_until(one, port, f"drafting depth 0 instead of {depth}")
        # Between the plan and its engine the one before is SERVING, and about to end.
        until(lambda: one.status()["generation"] > first["generation"], "another engine")
        assert serves(one)["mtp"] == 0
        after = asked_until(one, port, "drafting depth 0 is the fastest")
        print(f"{before:.0f} tokens/s with drafts, {after:.0f} without", flush=True)
        assert after > before

        kept = memories.folder(one.folder / "state") / memories.ANSWERS
        seen = json.loads(kept.read_text())
        core = next(process for process in one.tree() if "EngineCor" in process.name)
        os.kill(core.pid, signal.SIGKILL)
        until(lambda: one.status()["state"] != "SERVING", "a restart")
        serves(one)
        assert json.loads(kept.read_text()) == seen

        one.stop()
        changed = {k: [["other", *v[0][1:]], [9.0, *v[1][1:]], *v[2:]] for k, v in seen.items()}
        kept.write_text(json.dumps(changed))
        one.start()
        until(lambda: "answers" in str(one.status().get("last_failure")), "changed answers")
        shown(one, "status")
        shown(one, "incidents")


@pytest.mark.parametrize("count", [1, 2])
def test_the_field_test_ends_with_a_report_of_what_was_served(
    count: int, cards: int, tmp_path: Path
) -> None:
    if cards < count:
        pytest.skip(f"needs {count} cards")
    config, archive = tmp_path / "caovan.toml", tmp_path / "fieldtest.tar.gz"
    gpus = [CARD] if count == 1 else list(range(count))
    config.write_text(configuration("hybrid", free_port(), gpus, OUR_KERNELS, env={FORCE: "1"}))
    folders = {
        f"{name}_DIRECTORY": str(tmp_path / name.lower())
        for name in ("RUNTIME", "STATE", "CACHE", "LOGS")
    }
    words = ["fieldtest", "--quick", "--config", str(config), str(archive)]
    done = subprocess.run(
        [sys.executable, "-m", "caovand.cli.main", *words],
        env={**os.environ, **folders, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    print(done.stdout, flush=True)
    assert done.returncode == 0
    assert "| as configured |" in done.stdout
    assert "caovan's kernels are not used" not in done.stdout
    assert "| caovan's kernels off |" in done.stdout
    assert ("| one card |" in done.stdout) is (count == 2)
    with tarfile.open(archive) as found:
        assert any(name.endswith("report.md") for name in found.getnames())
