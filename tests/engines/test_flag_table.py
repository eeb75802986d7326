"""The table of flags: each row against the flags of real engines, and does what it says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from caovand.core.config.schema import Config, ModelSection, PolicySection, ServerSection
from caovand.core.plan import Unplannable
from caovand.engines.vllm.command import build
from caovand.engines.vllm.flags import command_line
from caovand.engines.vllm.flags.spelling import option
from caovand.engines.vllm.flags.table import FLAGS, SWITCHES, FlagRow
from caovand.engines.vllm.planning import obstacles
from caovand.engines.vllm.planning.decisions import (
    DECISIONS,
    EASING,
    FIRST,
    GOALS,
    HINDERING,
    OBSTACLES,
    SECOND,
    FlagDecision,
    forecast,
)
from tests.core.machines import CUDA, inventory, plan

SAMPLES = sorted((Path(__file__).parents[1] / "samples" / "engines").glob("*.json"))
REAL = [json.loads(path.read_text()) for path in SAMPLES]
KNOWN = {word for engine in REAL for word in engine["flags"]}
CHOICES = {word for engine in REAL for word in engine["choices"]}


def rows(which: str, table: Sequence[Any] = FLAGS) -> Any:
    """A test of each row that has this field."""
    found = [row for row in table if getattr(row, which)]
    assert found
    return pytest.mark.parametrize("row", found, ids=lambda row: row.name)


def twin(name: str) -> str:
    return "--no-" + option(name)[2:]


def given(*words: str) -> Any:
    return plan(engine={"extra_args": list(words)})


@pytest.mark.parametrize("table", [FLAGS, DECISIONS], ids=["read", "decided"])
def test_a_flag_has_one_row(table: Sequence[Any]) -> None:
    names = [row.name for row in table]
    shorts = [row.short for row in FLAGS if row.short]
    assert len(set(names)) == len(names)
    assert set(names) <= {row.name for row in FLAGS}
    assert len(set(shorts)) == len(shorts)


@pytest.mark.parametrize("row", FLAGS, ids=lambda row: row.name)
def test_a_row_is_of_a_flag_that_engines_take(row: FlagRow) -> None:
    assert {option(row.name), twin(row.name)} & KNOWN
    assert not row.short or row.short in KNOWN or row.short == "-O"
    if row.takes != "nothing":
        assert twin(row.name) not in KNOWN, "it has a twin, and so takes no word"
    else:
        assert option(row.name) not in CHOICES


def test_every_short_name_of_the_engines_is_known() -> None:
    """A short name read as another flag is planned against the operator's wish."""
    short = {word for word in KNOWN if not word.startswith("--")}
    assert short - {"-h"} == {row.short for row in FLAGS if row.short} - {"-O"}


@rows("short")
def test_a_short_name_is_read_as_the_flag(row: FlagRow) -> None:
    words = [row.short] if row.takes == "nothing" else [row.short, "2"]
    assert [flag.name for flag in command_line.read([*words, "--port", "1"])] == [row.name, "port"]


@pytest.mark.parametrize("row", FLAGS, ids=lambda row: row.name)
def test_a_flag_is_followed_by_as_many_words_as_it_takes(row: FlagRow) -> None:
    taken = {"nothing": 0, "one": 1, "many": 2}[row.takes]
    read = command_line.read([option(row.name), "a", "b"])
    assert len(read[0].words) == 1 + taken
    assert len(read) == 3 - taken


@rows("secret")
def test_a_secret_is_shown_nowhere_and_comes_by_its_variable(row: FlagRow) -> None:
    found = given(option(row.name), "hunter22")
    command = build(found, CUDA)
    assert command.env[row.carrier] == "hunter22"
    assert "hunter22" not in str((command.argv, command.shown, found.settings, found.warnings))
    assert command_line.redact([option(row.secret), "hunter22"])[1] == command_line.HIDDEN


@rows("wanted")
@pytest.mark.parametrize("value", ["nonsense", "-7"])
def test_a_value_that_cannot_be_meant_is_refused(row: FlagRow, value: str) -> None:
    with pytest.raises(Unplannable) as caught:
        given(option(row.name), value)
    assert str(caught.value).startswith(f"cannot use {option(row.name)} ")
    assert "; write " in str(caught.value)


@rows("rule", DECISIONS)
def test_a_rule_does_not_run_for_a_flag_given_verbatim(row: FlagDecision) -> None:
    """But for --additional-config, with which the operator's object is merged."""
    assert (row.name in dict(SECOND)) == row.sized
    assert (row.name in dict(FIRST)) == (not row.sized)
    value = {"port": "8123", "additional_config": "{}", "gpu_memory_utilization": "0.5"}
    words = [] if row.name in SWITCHES else [value.get(row.name, "1")]
    setting = given(option(row.name), *words).settings[row.name]
    assert setting.origin == "user" or row.name == "additional_config"
    assert setting.reason.startswith("passed verbatim") or row.name == "additional_config"


@rows("goal", DECISIONS)
def test_a_goal_is_a_key_of_the_configuration(row: FlagDecision) -> None:
    assert row.goal is not None
    sections = {"model": ModelSection, "policy": PolicySection, "server": ServerSection}
    assert row.goal.section in {field.name for field in fields(Config)}
    assert row.goal.key in {field.name for field in fields(sections[row.goal.section])}
    assert [goal.setting for goal in GOALS if goal.key == row.goal.key] == [row.name]


@rows("unforeseen")
def test_a_flag_that_changes_memory_unforeseen_leaves_no_verdict(row: FlagRow) -> None:
    words = [] if row.takes == "nothing" else ["2"]
    found = forecast(given(option(row.name), *words), inventory())
    assert not found.fits
    assert not found.parts
    assert found.reason == f"{option(row.name)} is set, and {row.unforeseen}"


def test_every_obstacle_stands_in_one_row() -> None:
    found = {
        value
        for name, value in vars(obstacles).items()
        if callable(value) and not name.startswith("_") and value.__module__ == obstacles.__name__
    }
    assert len(OBSTACLES) == len(set(OBSTACLES))
    assert found <= set(OBSTACLES)


def test_advice_names_each_flag_once() -> None:
    assert not set(EASING) & set(HINDERING)
    for places in ([row.eases for row in DECISIONS], [row.hinders for row in DECISIONS]):
        used = sorted(filter(None, places))
        assert used == list(range(1, len(used) + 1))
