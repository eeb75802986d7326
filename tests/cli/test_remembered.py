"""The degraded plan that served appears wherever the next start is planned: in `plan` and in
serve."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from caovand.adapters import model_folder
from caovand.adapters.files import config_file, state_file
from caovand.cli import plan as plan_verb
from caovand.cli import serve
from caovand.cli.common import survey
from caovand.cli.doctor import examination
from caovand.cli.main import main
from caovand.core.config.schema import Config, ModelSection
from caovand.core.facts.inventory import Inventory
from caovand.core.healing import degraded
from caovand.core.plan import Plan, Setting, Taken
from tests.core.machines import CUDA, HOST, QWEN_27B_AWQ, turing

MODEL = QWEN_27B_AWQ.path
LOWERED = Plan(
    MODEL,
    {"max_model_len": Setting(4096, "ladder", "the cache was short")},
    {},
    taken=(Taken("context"),),
)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inventory:
    """Two 2080 Ti without a daemon, and folders of our own."""
    for name in ("RUNTIME", "STATE", "CACHE", "LOGS"):
        monkeypatch.setenv(f"{name}_DIRECTORY", str(tmp_path / name.lower()))
    monkeypatch.delenv("CAOVAN_AUTO_SPEC", raising=False)
    seen = survey.SurveyedMachine(turing(2), HOST, CUDA)
    monkeypatch.setattr(model_folder, "read_model", lambda path, weights: QWEN_27B_AWQ)
    for module in (examination, plan_verb, serve):
        monkeypatch.setattr(module, "inspect", lambda *asked, **named: seen)
    return Inventory(seen.gpus, seen.host, CUDA, QWEN_27B_AWQ)


@pytest.fixture(autouse=True, params=[".", "slots/main"], ids=["version before", "this one"])
def place(request: pytest.FixtureRequest) -> str:
    """Where in its state folder the daemon kept the plan."""
    return str(request.param)


def keep(state: Path, place: str, config: Config, machine: Inventory) -> None:
    """As a daemon of this configuration keeps it."""
    state = state / place
    state.mkdir(parents=True, exist_ok=True)
    mark = degraded.fingerprint(config, machine)
    state_file.write(state / "good-plan.json", degraded.to_document(LOWERED, mark, "auto"))


@pytest.mark.parametrize("alone", [False, True])
def test_serve_shows_the_steps_that_its_daemon_will_take(
    alone: bool,
    place: str,
    machine: Inventory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [MODEL, "--port", "9000", "--api-key", "hunter2"]
    order = serve.read(words)
    state = serve.own_places(order).state
    keep(state, place, config_file.load(serve.write_config(state, order)), machine)
    for name in ("become_daemon", "become_engine"):
        monkeypatch.setattr(serve, name, lambda *asked: None)
    monkeypatch.setattr(serve, "_engine", lambda: (order.config.engine, None))
    serve.main(["--exec", *words] if alone else words)
    told = capsys.readouterr().err
    assert ("remembered" in told) is not alone
    assert ("--max-model-len 4096" in told) is not alone


def test_the_plan_is_that_of_the_next_start_here(
    place: str, machine: Inventory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path / "state", place, Config(model=ModelSection(path=MODEL)), machine)
    main(["plan", MODEL])
    assert "--max-model-len 4096" in capsys.readouterr().out
    main(["plan", MODEL, "--mode", "fast"])
    assert "--max-model-len 4096" in capsys.readouterr().out  # a mode forgets drafting alone
    main(["plan", "/srv/models/other"])
    assert "--max-model-len 4096" not in capsys.readouterr().out


def test_the_doctor_looks_at_the_plan_of_the_next_start(
    place: str, machine: Inventory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", MODEL])
    whole = capsys.readouterr().out
    keep(tmp_path / "state", place, Config(model=ModelSection(path=MODEL)), machine)
    main(["doctor", MODEL])
    lowered = capsys.readouterr().out
    needed = re.compile(r"([\d.]+) GiB needed for one full-length request")
    before, after = needed.search(whole), needed.search(lowered)
    assert before
    assert after
    assert float(after[1]) < float(before[1])
