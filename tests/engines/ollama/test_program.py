"""The program is found and asked for its version; it is not caovan's to install."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.adapters.engine import probe
from caovand.adapters.engine_install.errors import EngineError
from caovand.cli.common.progress import Screen
from caovand.cli.engine import choice
from caovand.cli.parser import parser
from caovand.core.config.parser import parse
from caovand.core.doctor.facts import DoctorFacts
from caovand.core.problem import Problem
from caovand.daemon.start.inspection import no_card
from caovand.engines import registry
from caovand.engines.ollama.engine import ENGINE
from caovand.engines.ollama.metrics import read_ps
from caovand.preparation.plan_request import PlanRequest
from tests.engines.ollama.store import add_program
from tests.engines.ollama.test_planner import HOST, machine, plan


def test_the_program_on_path_is_asked_for_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = add_program(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    config = parse({"model": {"path": "tiny"}, "engine": {"kind": "ollama"}})
    python = PlanRequest(config, None, os.environ).python
    assert python == sys.executable
    found = probe.probe_engine(ENGINE.probe, python, None)
    assert (found.version, found.build, found.executable) == ("0.12.3", "cpu", str(program))


def test_a_machine_without_it_learns_how_to_get_it() -> None:
    absent = replace(ENGINE.probe, versions='print(MARK + \'{"executable": null, "stamp": 1}\')')
    with pytest.raises(probe.EngineMissing) as caught:
        probe.probe_engine(absent, sys.executable, None)
    assert caught.value.problem.message.startswith(
        "cannot use Ollama as the engine: no program `ollama` is on PATH"
    )
    assert "ollama.com/install.sh" in caught.value.problem.remedy


@pytest.mark.parametrize(
    ("text", "version"),
    [("ollama version is 0.6.5\n", "0.6.5"), ("client version is 0.13.0-rc1", "0.13.0-rc1"),
     ("what", "")],
)  # fmt: skip
def test_versions_are_read(text: str, version: str) -> None:
    found = {"executable": "/o", "cuda": True, "python_version": "3.12"}
    engine = ENGINE.probe.read("/p", found, {"version": text})
    assert (engine.version, engine.build) == (version, "cuda")
    both = ENGINE.probe.read("/p", {**found, "releases": ["12", "13"]}, {})
    assert (engine.cuda, both.cuda) == (None, "12")


@pytest.mark.parametrize("words", [["install"], ["fetch", "--wheels", "here"]])
def test_it_is_not_installed_here(words: list[str]) -> None:
    args = parser().parse_args(["engine", *words, "--kind", "ollama"])
    with pytest.raises(EngineError) as caught:
        choice.chosen_lock(args, Screen(sys.stderr))
    assert caught.value.problem.message == (
        "cannot install Ollama: Ollama installs and updates itself, outside caovan"
    )
    assert "ollama.com/install.sh" in caught.value.problem.remedy


def test_a_missing_card_is_no_reason_to_install_another_build_of_it() -> None:
    assert str(no_card(ENGINE)).endswith("check `nvidia-smi`")
    assert "install the CPU build" in str(no_card(registry.engine_of("llamacpp")))


def test_an_answer_is_a_sign_of_life_without_counts() -> None:
    reading = read_ps('{"models":[]}', None, 3.0)
    assert (reading.progress.at, reading.progress.running, reading.progress.pending) == (3, 0, None)


def test_a_prompt_of_words_is_as_long_as_its_tokens() -> None:
    prompt = ENGINE.api.prompt(range(50))
    assert isinstance(prompt, str)
    assert len(prompt.split()) == 50


def facts(**more: object) -> DoctorFacts:
    inventory = machine(22527)
    known = {
        "gpus": inventory.gpus, "host": HOST, "engine": inventory.engine, "engine_problem": None,
        "model": inventory.model, "model_problem": None,
        "memory": ENGINE.planning.forecast(plan(inventory), inventory), "plan_problem": "",
        "caveats": (), "port": 8000, "listeners": (), "orphans": (),
        "python_version": "3.12", "wants_gpu": True, "wants_plugin": False,
    }  # fmt: skip
    return DoctorFacts(**{**known, **more})  # type: ignore[arg-type]


def test_the_doctor_names_the_program_and_its_version() -> None:
    good = ENGINE.planning.checks(facts())
    assert {one.verdict for one in good} == {"PASS"}
    assert good[0].text == "Ollama 0.12.3, /usr/local/bin/ollama"
    missing = Problem("serve model m with Ollama", "Ollama has no such model", "ollama pull m")
    bad = ENGINE.planning.checks(
        facts(
            engine=None, engine_problem=Problem("use Ollama", "there is none", "install it"),
            model=None, model_problem=missing, memory=None, listeners=("ollama (pid 7)",),
        )
    )  # fmt: skip
    assert [(one.group, one.verdict, one.remedy) for one in bad] == [
        ("engine", "FAIL", "install it"),
        ("model", "FAIL", "ollama pull m"),
        ("port", "FAIL", "stop it, or set another [server] port"),
    ]


def test_the_doctor_warns_of_cards_that_are_not_used() -> None:
    inventory = machine()
    found = ENGINE.planning.checks(facts(engine=inventory.engine))
    assert [one.group for one in found if one.verdict == "WARN"] == ["GPUs"]


def test_caovanctl_names_it(tmp_path: Path) -> None:
    program = add_program(tmp_path)
    (tmp_path / "c.toml").write_text('[model]\npath = "tiny:8b"\n[engine]\nkind = "ollama"\n')
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "OLLAMA_MODELS": str(tmp_path / "models"),
    }

    def ctl(verb: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "caovand.cli.main", verb, "--config", "c.toml"]
        environ["PYTHONPATH"] = str(Path(__file__).parents[3])
        return subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )

    shown = ctl("inventory").stdout
    assert "engine  ollama 0.12.3 (cpu)\n" in shown
    assert str(program) in shown
    refused = ctl("plan")
    assert refused.returncode == 1
    assert "download it: sudo caovanctl model pull --from ollama tiny:8b" in refused.stderr
