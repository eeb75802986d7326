"""Which steps of a field test are repeated after a change."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters.engine_install.commands import Finished
from caovand.cli.common.errors import CommandError
from caovand.cli.common.progress import Screen
from caovand.core.config.schema import Config
from caovand.lab.fieldtest import kernels, steps, trial
from caovand.lab.fieldtest.steps import ORDER, QUICK, Subject
from caovand.lab.fieldtest.work import FieldtestResults
from tests.core.machines import FIXED, inventory, named, turing
from tests.daemon_process import ROOT

MACHINE = inventory(gpus=turing(2), engine=FIXED)
BEFORE = Subject(Config(), MACHINE, Path("/etc/caovan.toml"), QUICK)
Take = Callable[..., list[str]]


@pytest.fixture
def take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Take:
    """Takes the steps for a subject; returns the cards that the kernels were measured on."""
    measured: list[str] = []

    def measure(_: object, gpu: Any, say: object) -> dict[str, Any]:
        measured.append(gpu.name)
        return {"why": "", "parts": [{"title": "time", "code": 0, "text": f"{len(measured)}"}]}

    monkeypatch.setattr(kernels, "measure", measure)
    monkeypatch.setattr(steps, "_facts", lambda _: {"version": "1"})
    monkeypatch.setattr(steps, "_plan_trial", lambda *_: (None, "not here"))

    def taken(subject: Subject, *, again: bool = False) -> list[str]:
        measured.clear()
        work = FieldtestResults(tmp_path / "work", subject.describe(), again=again)
        steps.take(subject, work, Screen(io.StringIO()))
        return list(measured)

    return taken


def configured(**changes: Any) -> Subject:
    """Another configuration of the same machine."""
    return replace(BEFORE, config=replace(Config(), **changes))


def test_another_configuration_does_not_repeat_the_kernels(take: Take, tmp_path: Path) -> None:
    assert take(BEFORE) == [turing(1)[0].name]
    other = configured(policy=replace(Config().policy, mtp=1))
    (tmp_path / "work" / "configured.json").write_text("{}")
    assert take(other) == []
    assert (tmp_path / "work" / "configured.json").read_text() != "{}"
    assert take(other, again=True) == [turing(1)[0].name]


def test_a_full_test_takes_no_result_of_a_quick_one(take: Take, tmp_path: Path) -> None:
    take(BEFORE)
    kept = tmp_path / "work" / "configured.json"
    kept.write_text('{"of": "a quick test"}')
    take(BEFORE)
    assert "a quick test" in kept.read_text(), "the same test goes on"
    assert take(replace(BEFORE, order=ORDER)) == [], "its kernels are measured in the same way"
    assert "a quick test" not in kept.read_text()


def test_a_machine_without_any_plan_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "_plan_trial", lambda *_: (None, "it does not fit in memory"))
    with pytest.raises(CommandError, match="cannot measure anything: it does not fit") as refused:
        steps.check(BEFORE)
    assert "caovanctl doctor --config /etc/caovan.toml" in refused.value.hint


@pytest.mark.parametrize(
    "machine",
    [
        replace(MACHINE, engine=replace(FIXED, version="0.22.0")),
        replace(MACHINE, engine=replace(FIXED, plugin="0.2.0")),
        replace(MACHINE, gpus=tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in turing(2))),
    ],
    ids=["engine", "plugin", "card"],
)
def test_another_engine_or_card_does(take: Take, machine: Any) -> None:
    assert take(BEFORE)
    assert take(replace(BEFORE, machine=machine))


def test_kernels_that_were_not_used_are_measured_once_they_are(take: Take) -> None:
    off = configured(engine=replace(Config().engine, plugin=False))
    assert take(off) == []
    assert take(BEFORE)
    assert take(off) == []


def test_they_are_measured_on_a_card_that_they_are_made_for(take: Take) -> None:
    mixed = (*named("A100"), replace(turing(1)[0], index=1))
    assert take(replace(BEFORE, machine=replace(MACHINE, gpus=mixed))) == [turing(1)[0].name]


def test_every_part_is_a_program_of_the_plugin_and_attention_of_prompts_is_one() -> None:
    folder = kernels.MODULE.replace(".", "/")
    programs = {path.stem for path in (ROOT / "plugin" / folder).glob("*.py")}
    assert {name for name, _ in kernels.PARTS} <= programs
    assert "prefill_attention" in dict(kernels.PARTS)


@pytest.mark.parametrize(("uuid", "named_as"), [("GPU-1", "GPU-1"), ("", "1")])
def test_the_kernels_see_that_card_alone(
    monkeypatch: pytest.MonkeyPatch, uuid: str, named_as: str
) -> None:
    seen: list[str] = []

    def run(_: object, env: dict[str, str], __: object) -> Any:
        seen.append(env["CUDA_VISIBLE_DEVICES"])
        return Finished(0, "")

    monkeypatch.setattr(kernels, "run", run)
    kernels.measure(FIXED, replace(turing(1)[0], index=1, uuid=uuid), lambda _: None)
    assert set(seen) == {named_as}


@pytest.fixture
def serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[FieldtestResults, str]]:
    """Takes the steps where each trial ends with this result; the results, and what was said."""
    monkeypatch.setattr(kernels, "measure", lambda *_: {"why": "", "parts": []})
    monkeypatch.setattr(steps, "_facts", lambda _: {"version": "1"})

    def served(kept: dict[str, Any], **found: Any) -> tuple[FieldtestResults, str]:
        monkeypatch.setattr(trial, "run", lambda one, *_: {**trial.empty_result(one), **found})
        work, out = (
            FieldtestResults(tmp_path / "work", BEFORE.describe(), again=False),
            io.StringIO(),
        )
        for name, document in kept.items():
            work.keep(name, document)
        steps.take(BEFORE, work, Screen(out))
        return work, out.getvalue()

    return served


CELLS = [{"prompt": 512 * n, "at_once": n} for n in (1, 2, 300)]


def test_each_figure_is_modelled_for_its_prompts_and_requests(
    serve: Callable[..., tuple[FieldtestResults, str]],
) -> None:
    work, _ = serve({}, plan={"rungs": []}, bench={"cells": CELLS})
    one, two, most = work.of("configured")["modelled"]
    assert one["prefill"] < two["prefill"], "a step that is fuller is better used"
    assert one["decode"] < two["decode"] < 2 * one["decode"]
    assert set(most.values()) == {None}, "more than the plan's sequences: some wait for others"


def test_another_plan_than_the_planned_one_has_no_modelled_value(
    serve: Callable[..., tuple[FieldtestResults, str]],
) -> None:
    work, _ = serve({}, plan={"rungs": ["plugin-off"]}, bench={"cells": CELLS})
    assert work.of("configured")["modelled"] is None


def test_trials_that_were_measured_tell_how_long_the_others_take(
    serve: Callable[..., tuple[FieldtestResults, str]],
) -> None:
    before = {"seconds": 600.0}
    work, said = serve({"configured": before})
    assert "[4/12] caovan's kernels off, about 60 min left\n" in said
    assert work.of("one-card")["seconds"] is not None


def test_before_a_trial_was_measured_nobody_knows_how_long_they_take(
    serve: Callable[..., tuple[FieldtestResults, str]],
) -> None:
    assert "[3/12] as configured\n" in serve({})[1]
