"""`caovanctl plan --engine`: another kind of engine than the chosen one, or a comparison of all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from caovand.adapters import model_folder
from caovand.adapters.engine.choice import chosen_engine
from caovand.cli import plan as plan_verb
from caovand.cli.common import candidates, drawing, survey
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.common.planned import plan_for
from caovand.cli.main import main
from caovand.cli.top import parts
from caovand.core.config.parser import parse
from caovand.core.config.schema import Config
from caovand.core.engine.planning import Modelled
from caovand.core.facts.forecast import MemoryPart
from caovand.core.facts.inventory import EngineInfo, Gpu, ModelCard
from caovand.core.facts.inventory_file import engines_in, render
from caovand.core.problem import Problem
from caovand.engines.registry import engine_of
from tests.core.machines import (
    CPU,
    CUDA,
    FIXED,
    HOST,
    QWEN_27B,
    QWEN_27B_AWQ,
    cards,
    inventory,
    named,
    turing,
)
from tests.core.machines import plan as planned
from tests.engines.llamacpp import machines as llamacpp

MISSING = Problem("find the engine", "there is none", "install one")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of our own."""
    for name in ("RUNTIME", "STATE", "CACHE", "LOGS"):
        monkeypatch.setenv(f"{name}_DIRECTORY", str(tmp_path / name.lower()))


def here(
    monkeypatch: pytest.MonkeyPatch,
    engines: Mapping[str, EngineInfo],
    model: ModelCard,
    gpus: tuple[Gpu, ...],
) -> None:
    """A machine with these engines, whose models all are this one."""

    def look(config: Config, *_: object, **named: object) -> survey.SurveyedMachine:
        found = engines.get(chosen_engine(config).name)
        return survey.SurveyedMachine(gpus, HOST, found, None if found else MISSING)

    monkeypatch.setattr(plan_verb, "inspect", look)
    monkeypatch.setattr(model_folder, "read_model", lambda path, weights: model)


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, object]]:
    """The engines of the printed document, by name and in its order."""
    main(["plan", *words, "--engine", "all", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"] == found["engines"][0]["name"]
    return {one["name"]: one for one in found["engines"]}


def test_all_are_shown_and_why_the_first_was_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here(monkeypatch, {"vllm": FIXED}, QWEN_27B_AWQ, turing(2))
    assert main(["plan", "/srv/models/27b", "--engine", "all"]) == Exit.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["engine", "fits", "context", "tokens/s", "GiB", "a", "card"]
    assert lines[1].split()[:3] == ["vLLM", "yes", "262,144"]
    assert [line.split()[0] for line in lines[2:5]] == ["llama.cpp", "Ollama", "SGLang"]
    assert f"Ollama: {MISSING}" in lines
    assert any("vLLM is chosen: no other engine prefers this model's files" in x for x in lines)


def test_a_gguf_file_is_for_llama_cpp_and_the_others_say_why_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = {"vllm": FIXED, "llamacpp": llamacpp.CUDA}
    here(monkeypatch, engines, llamacpp.QWEN_8B, turing(1))
    found = document(capsys, llamacpp.QWEN_8B.path)
    assert next(iter(found)) == "llamacpp"
    assert isinstance(found["llamacpp"]["tokens_s"], float)
    assert found["sglang"]["plan"] is None
    assert found["sglang"]["problem"] == str(MISSING)


def test_with_no_plan_at_all_the_status_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    here(monkeypatch, {}, QWEN_27B_AWQ, turing(2))
    assert main(["plan", "/srv/models/27b", "--engine", "all"]) == Exit.FAILED


def test_one_kind_is_planned_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = {"vllm": FIXED, "llamacpp": llamacpp.CUDA}
    here(monkeypatch, engines, llamacpp.QWEN_8B, turing(1))
    assert main(["plan", "/srv/models/8b", "--engine", "llamacpp", "--json"]) == Exit.DONE
    assert "gpu_layers" in json.loads(capsys.readouterr().out)["settings"]


def test_what_is_meant_for_one_engine_is_left_out_for_another() -> None:
    engine = replace(Config().engine, python="/vllm/bin/python", extra_args=("--seed", "1"))
    config = replace(Config(), engine=engine)
    assert candidates.with_engine(config, "vllm") == config
    other = candidates.with_engine(config, "llamacpp").engine
    assert (other.kind, other.python, other.extra_args, other.env) == ("llamacpp", None, (), ())


def test_one_saved_inventory_compares_the_engines_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "read_model", lambda path, weights: llamacpp.QWEN_8B)
    saved = tmp_path / "inventory.json"
    others = {"llamacpp": llamacpp.CUDA, "ollama": replace(llamacpp.CUDA, executable="/o/ollama")}
    saved.write_text(json.dumps(render(turing(2), HOST, CUDA, "vllm", others)))
    found = document(capsys, llamacpp.QWEN_8B.path, "--inventory", str(saved))
    assert found["llamacpp"]["plan"]
    assert "GGUF files are for llama.cpp" in str(found["vllm"]["problem"])
    only = "the saved inventory has only vLLM, llama.cpp, Ollama; install it there"
    assert only in str(found["sglang"]["problem"])
    assert main(["inventory", "--inventory", str(saved), "--json"]) == Exit.DONE
    assert engines_in(json.loads(capsys.readouterr().out)) == {"vllm": CUDA, **others}


def test_a_gguf_file_is_not_planned_with_another_engines_inventory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "read_model", lambda path, weights: llamacpp.QWEN_8B)
    saved = tmp_path / "inventory.json"
    for engine, kind in ((CUDA, ""), (FIXED, "vllm")):
        saved.write_text(json.dumps(render(turing(2), HOST, engine, kind)))
        words = ["plan", llamacpp.QWEN_8B.path, "--inventory", str(saved)]
        assert main(words) == Exit.FAILED
        text = "cannot plan for llama.cpp: the saved inventory has only vLLM; install it"
        assert text in capsys.readouterr().err
    saved.write_text(json.dumps(render(turing(2), HOST, llamacpp.CUDA)))
    assert main(words) == Exit.DONE


def test_a_plan_names_the_engine_that_would_serve_a_model_better(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(HOST, ram_mib=16384, available_mib=14000, instructions=("avx2",))
    card = replace(QWEN_27B_AWQ, model_type="qwen3", gptq=None, weights=QWEN_27B.weights)
    for model, host in ((card, small), (card, replace(small, ram_mib=65536, available_mib=60000))):
        machine = survey.SurveyedMachine((), host, CPU)
        monkeypatch.setattr(plan_verb, "inspect", lambda *_, machine=machine, **named: machine)
        monkeypatch.setattr(model_folder, "read_model", lambda path, weights, model=model: model)
        main(["plan", model.path])
        shown = " ".join(capsys.readouterr().out.split())
        offered = "instead: llama.cpp would serve it from a GGUF file of type Q4_K_M" in shown
        assert offered == (host is not small), shown


def test_a_saved_inventory_is_for_its_own_kind_of_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "read_model", lambda path, weights: QWEN_27B_AWQ)
    saved = tmp_path / "inventory.json"
    saved.write_text(json.dumps(render(turing(2), HOST, CUDA)))
    found = document(capsys, "/srv/models/27b", "--inventory", str(saved))
    assert found["vllm"]["plan"]
    assert "the saved inventory has only vLLM; install it there" in str(
        found["llamacpp"]["problem"]
    )


def test_a_card_with_more_bandwidth_answers_faster() -> None:
    planning = engine_of().planning
    speeds = []
    for card in ("RTX 3090", "A100", "H200"):
        machine = inventory(QWEN_27B_AWQ, named(card), CUDA)
        speeds.append(planning.speed(planned(machine), machine) or 0)
    assert speeds == sorted(speeds)
    assert speeds[0] > 10


def test_an_answer_is_slower_with_layers_in_host_memory() -> None:
    planning = engine_of("llamacpp").planning
    speeds = []
    for mib in (22528, 4096):
        machine = llamacpp.machine(llamacpp.QWEN_8B, mib)
        speeds.append(planning.speed(llamacpp.plan(machine), machine) or 0)
        found = [planning.modelled(llamacpp.plan(machine), machine, 512, n) for n in (1, 2)]
        assert found == [Modelled(decode=speeds[-1]), Modelled()], "of one answer alone"
    assert speeds[0] > 2 * speeds[1] > 0


@pytest.mark.parametrize("part", get_args(MemoryPart))
def test_every_part_of_a_forecast_can_be_drawn(part: str) -> None:
    """`plan` and `top` look each of them up."""
    for table in (drawing.COLOURS, drawing.LEGEND, parts.LETTERS, parts.NAMES):
        assert part in table


def test_a_gguf_model_on_a_card_is_shown_with_a_bar_by_part(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = {"llamacpp": llamacpp.CUDA}
    here(monkeypatch, engines, llamacpp.QWEN_8B, (llamacpp.card(0, 11264),))
    assert main(["plan", llamacpp.QWEN_8B.path]) == Exit.DONE
    shown = capsys.readouterr().out
    assert "GPU 0" in shown
    assert "weights " in shown
    assert "compute buffers" in shown


def test_a_card_that_others_use_has_another_engines_offer() -> None:
    gpu = replace(turing(1)[0], free_mib=20000, users=((7, "Xorg", 2400),))
    model = replace(QWEN_27B_AWQ, model_type="qwen3_5_text")
    with pytest.raises(CommandError) as caught:
        plan_for(parse({"model": {"path": model.path}}), inventory(model, (gpu,)), None)
    assert "Xorg (pid 7) holds 2400 MiB" in caught.value.message
    assert caught.value.hint.startswith("instead: llama.cpp would serve it from a GGUF file")
    assert "tokens/s (modelled)" in caught.value.hint


@pytest.mark.parametrize("name", ["V100", "GTX 1080 Ti"])
def test_a_card_without_kernels_has_ollamas_offer(name: str) -> None:
    """It names the file, its size and speed, and what to set."""
    old = {"V100": named("V100"), "GTX 1080 Ti": cards(1, "GTX 1080 Ti", (6, 1), 11264)}[name]
    model = replace(QWEN_27B_AWQ, model_type="qwen3_5_text")
    with pytest.raises(CommandError) as caught:
        plan_for(parse({"model": {"path": model.path}}), inventory(model, old), None)
    assert "no kernels before SM75" in caught.value.message
    hint = caught.value.hint
    assert hint.startswith("instead: Ollama would serve it from a GGUF file of type Q4_K_M, about")
    assert "tokens/s (modelled)" in hint
    assert "model pull --from ollama hf.co/OWNER/NAME:Q4_K_M" in hint
    assert hint.endswith('[model] path = "hf.co/OWNER/NAME:Q4_K_M"')


def test_an_engine_that_cannot_serve_is_not_called_chosen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here(monkeypatch, {"vllm": CUDA}, QWEN_27B_AWQ, cards(1, "Tesla P40", (6, 1), 24576))
    main(["plan", QWEN_27B_AWQ.path, "--engine", "all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "vLLM would be chosen, but cannot serve this model here: no other engine prefers" in shown
    )
