"""A daemon takes over from the previous version, which had no slots."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from caovand.adapters import history
from caovand.adapters.system import processes
from caovand.preparation import memories
from tests.daemon_process import Daemon, daemon
from tests.patience import until
from tests.scenarios.test_supervision import CONTEXT_TOO_LONG, configuration, model

__all__ = ["model"]  # a fixture


def as_before(one: Daemon) -> Path:
    """Put the state of a daemon that is not running where the version before kept it."""
    state = one.folder / "state"
    own = memories.folder(state)
    for path in own.iterdir():
        path.rename(state / path.name)
    shutil.rmtree(state / memories.SLOTS)
    return state


def test_mode_plan_incidents_and_living_engines_are_taken_over(model: Path) -> None:
    orders = {
        "at": {"kv": CONTEXT_TOO_LONG}, "die_at": "kv", "unless": "1024", "ignore_term": True,
    }  # fmt: skip
    with daemon(configuration(model, orders, watch="stable_after_s = 1")) as one:
        one.until_state("SERVING")
        assert one.ctl("mode", "stable").returncode == 0
        own = memories.folder(one.folder / "state")
        one.until_state("SERVING")
        until((own / memories.DEGRADED_PLAN).exists, "the memory of the degraded plan")
        temporary = set((one.folder / "cache").glob("tmp-*"))
        left = {process.pid for process in one.tree()}
        one.kill()
        assert {process.pid for process in one.tree()} == left
        state = as_before(one)
        before = set((state / "incidents").iterdir())
        assert before
        one.start()
        status = one.until_state("SERVING")
        assert (status["mode"], status["mode_origin"]) == ("stable", "caovanctl mode")
        assert (status["rungs"], status["failures"]) == (["context 1024"], 0)
        assert not left & {p.pid for p in processes.all_processes() if not p.zombie}
        told = one.events()
        assert any(text.startswith("killed orphans of an earlier engine: ") for text in told)
        assert any(text.startswith("moved mode.json, ") for text in told)
        rows = json.loads(one.ctl("incidents", "--json").stdout)
        assert {row["number"] for row in rows} == {int(path.name[:4]) for path in before}
        names = {path.name for path in state.iterdir() if not path.name.startswith(history.FILE)}
        assert names == {"lock", memories.SLOTS}
        assert set((one.folder / "cache").glob("tmp-*")) == temporary, "the old one is emptied"
        (entry,) = status["slots"]
        assert (entry["name"], entry["state"]) == ("main", "SERVING")
