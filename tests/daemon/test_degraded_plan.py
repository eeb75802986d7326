"""The degraded plan between starts of the daemon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from caovand.core.plan import Plan, Setting, Taken
from caovand.daemon.start.degraded_plan import PlanMemory
from caovand.engines.vllm.healing.cures import HEALING

OFF = {"VLLM_PLUGINS": Setting("", "ladder", "caovan's kernels off")}
WITHOUT_PLUGIN = Plan("/m", {}, OFF, taken=(Taken("plugin-off"),))


def test_since_when_a_plan_is_degraded_outlives_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the ladder changed the environment only, too."""
    monkeypatch.setattr("time.time", lambda: 1000.0)
    before = PlanMemory(tmp_path / "good-plan.json", HEALING)
    before.date(WITHOUT_PLUGIN)
    before.served_stably(WITHOUT_PLUGIN, "mark", "auto")
    monkeypatch.setattr("time.time", lambda: 9000.0)
    after = PlanMemory(tmp_path / "good-plan.json", HEALING)
    kept = {name: replace(setting, origin="remembered") for name, setting in OFF.items()}
    after.date(replace(WITHOUT_PLUGIN, env=kept))
    assert after.since == 1000.0


def test_a_new_compile_cache_degrades_nothing(tmp_path: Path) -> None:
    lowered = PlanMemory(tmp_path / "good-plan.json", HEALING)
    lowered.date(Plan("/m", {}, {}, taken=(Taken("fresh-cache", degrades=False),)))
    assert lowered.since is None


def test_a_plan_to_be_forgotten_is_not_remembered_while_the_full_one_is_made(
    tmp_path: Path,
) -> None:
    """Its engine may become stable between the command and its own end."""
    file = tmp_path / "good-plan.json"
    lowered = PlanMemory(file, HEALING)
    lowered.served_stably(WITHOUT_PLUGIN, "mark", "auto")
    lowered.forget()
    lowered.served_stably(WITHOUT_PLUGIN, "mark", "auto")
    assert not file.exists()
    assert lowered.document(WITHOUT_PLUGIN, "mark", "auto") is None
    # The full plan failed: what the ladder finds then is worth remembering again.
    assert lowered.take_fallback() is None
    lowered.served_stably(WITHOUT_PLUGIN, "mark", "auto")
    assert file.exists()
