"""Options, probe, metrics, log phases and rungs of llama.cpp."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.inventory import Inventory, Weights
from caovand.core.healing.failure import FAILURES, Finding
from caovand.core.healing.ladder import LadderRules, decide
from caovand.core.plan import Plan
from caovand.core.problem import Problem
from caovand.engines.common.options import values
from caovand.engines.llamacpp.engine import ENGINE
from caovand.engines.llamacpp.healing.advice import advise
from caovand.engines.llamacpp.healing.cures import CURES, HEALING
from caovand.engines.llamacpp.healing.rungs import RUNGS
from caovand.engines.llamacpp.log.explain import explain
from caovand.engines.llamacpp.log.phases import PHASES, read
from caovand.engines.llamacpp.metrics import parse_metrics
from caovand.engines.llamacpp.planning import options
from caovand.engines.llamacpp.probe import PROBE, VERSIONS
from tests.engines.llamacpp.machines import (
    HOST,
    LLAMA_70B,
    MOE_30B,
    QWEN_8B,
    QWEN_27B_MTP,
    SAMPLES,
    machine,
    plan,
)

NAMES = tuple(phase.name for phase in PHASES)
HELP = (SAMPLES / "help.txt").read_text()
METRICS = (SAMPLES / "metrics.txt").read_text()
FOUND = {
    "version": None, "executable": "/e/bin/llama-server", "cuda": False, "python_version": "3.12",
}  # fmt: skip


def test_the_help_names_options_switches_and_choices() -> None:
    told = "version: 0.6.0-dev (build 11434, commit b11434)"
    engine = PROBE.read("/e/bin/python", FOUND, {"help": HELP, "build": told})
    assert engine.version == "11434"
    assert engine.build == "cpu"
    assert {"-c", "--ctx-size", "--metrics", "--spec-type", "-ctk"} <= engine.flags
    assert {"--metrics", "--offline", "--jinja", "-kvu"} <= engine.switches
    assert not {"--ctx-size", "-np", "--spec-type", "--fit"} & engine.switches
    choices = dict(engine.choices)
    assert choices["--cache-type-k"][:2] == ("f32", "f16")
    assert "draft-mtp" in choices["--spec-type"]
    assert PROBE.lacking({**FOUND, "executable": None}) == "llama-server"


def test_a_build_of_caovan_names_its_cards_and_its_cuda(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llama-server").touch(mode=0o755)
    (tmp_path / "caovan-engine.json").write_text('{"cards": ["7.5", "12.0"]}')
    code = f"import sys; sys.prefix = {str(tmp_path)!r}; MARK = ''\n" + VERSIONS
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert found["cards"] == ["7.5", "12.0"]
    engine = PROBE.read("/e", {**found, "cuda_release": "13.0.96"}, {})
    assert (engine.kernels, engine.cuda) == ((("sm75", ()), ("sm120", ())), "13.0.96")


def test_every_option_of_ours_is_in_the_help() -> None:
    engine = PROBE.read("/e/bin/python", FOUND, {"help": HELP, "build": ""})
    unknown = {word for row in options.OPTIONS for word in row.spellings} - engine.flags
    assert unknown == set()
    for inventory in (machine(QWEN_27B_MTP, 22527, 11264), machine(MOE_30B, 8192), machine()):
        found = plan(inventory)
        words = ENGINE.planning.command(found, inventory.engine, None).argv[1:]
        assert {word for word in words if word.startswith("--")} <= engine.flags


def test_verbatim_words_are_read_as_llama_server_reads_them() -> None:
    words = ("-ngl", "20", "--metrics", "-ts", "3,1", "--no-mmap", "x", "--temp", "-1")
    found = options.read(words)
    assert values(found) == {
        "gpu_layers": 20, "metrics": True, "tensor_split": "3,1", "no_mmap": True, "temp": -1,
    }  # fmt: skip
    assert [one.value for one in found if not one.name] == ["x"]
    assert values(options.read(("--n_gpu_layers", "20"))) == {"gpu_layers": 20}


def test_options_that_llama_server_does_not_take_are_named_and_underscores_are_dashes() -> None:
    engine = PROBE.read("/e/bin/python", FOUND, {"help": HELP, "build": ""})
    assert options.refused(("--ctx_size", "4096", "--no_kv_unified", "-np", "1"), engine) == ()
    found = options.refused(("--ctx_sizes", "4096", "-n_p", "1"), engine)
    assert [problem.cannot for problem in found] == ["pass --ctx_sizes", "pass -n_p"]


def test_keys_are_shown_to_nobody() -> None:
    words = ("--api-key", "first-key,second-key", "--port", "1")
    assert options.redact(words) == ("--api-key", "***", "--port", "1")
    assert options.secret_values(words) == ("first-key", "second-key")
    assert options.api_keys(words) == ("first-key", "second-key")
    assert options.api_keys(("--port", "1")) is None


@given(st.lists(st.text(max_size=8), max_size=8))
def test_any_words_are_read(words: list[str]) -> None:
    found = options.read(words)
    assert [word for one in found for word in one.words] == words
    options.redact(words)


def test_counters_are_read_from_its_metrics() -> None:
    found = parse_metrics(METRICS, None, 7.0).progress
    assert (found.prompt_tokens, found.generation_tokens, found.iterations) == (6, 8, 9)
    assert (found.running, found.waiting, found.at, found.pending) == (0, 0, 7.0, None)
    timed = METRICS + "llamacpp:prompt_seconds_total 2.5\n"
    counters = parse_metrics(timed, None, 7.0).counters
    assert (counters.read_tokens, counters.read_seconds) == (6, 2.5)
    strange = "llamacpp:n_decode_total nan\nllamacpp:n_decode_total\nllamacpp:x 1\n\0"
    assert parse_metrics(strange, None, 0.0).progress.iterations == 0


@given(st.text())
def test_any_metrics_are_read(text: str) -> None:
    parse_metrics(text, None, 0.0)


def test_a_start_goes_through_its_phases() -> None:
    text = (SAMPLES / "start.log").read_text()
    seen = list(dict.fromkeys(mark.phase for line in text.splitlines() if (mark := read(line)[0])))
    assert seen == ["resolve", "load", "kv", "warmup", "drafter", "http"]
    assert set(seen) <= set(NAMES)
    ends = [line for line in text.splitlines() if (m := read(line)[0]) and m.progress == 1.0]
    assert len(ends) == 1
    found = explain(text)
    assert found.reached == "serving"
    assert found.finding is None
    assert [one.phase for one in found.phases] == seen
    assert found.figures["weights_CPU_Mapped_mib"] == 1.59
    assert found.figures["context"] == 256
    journal = "\n".join(f"Nov 23 06:00:00 box llama[7]: {line}" for line in text.splitlines())
    assert explain(journal).reached == "serving"


def test_rows_are_of_failures_and_every_rung_is_used() -> None:
    assert {failure for failure, _ in CURES} <= set(FAILURES)
    assert {name for names in CURES.values() for name in names} == {rung.name for rung in RUNGS}
    assert {phase for _, phase in CURES if phase} <= set(NAMES)


def descend(found: Plan, inventory: Inventory, failure: str) -> list[str]:
    """The rungs taken until there is none left."""
    rules = LadderRules(HEALING, conflicts=lambda plan: ENGINE.planning.conflicts(plan, inventory))
    taken: list[str] = []
    while (decided := decide(found, Finding(failure, "", "kv"), 99, rules)).plan is not None:  # type: ignore[arg-type]
        found = decided.plan
        taken.append(decided.rung)
        assert len(taken) < 200
    return taken


@pytest.mark.parametrize("failure", FAILURES)
def test_every_walk_down_ends(failure: str) -> None:
    for inventory in (machine(QWEN_27B_MTP, 24576), machine(LLAMA_70B, 8192), machine()):
        descend(plan(inventory), inventory, failure)


def test_memory_is_found_in_the_cheapest_place_first() -> None:
    host = machine(QWEN_27B_MTP)
    taken = descend(plan(host), host, "host-oom")
    assert taken[:3] == ["prompts-off 0", "cache q8_0", "slots 1"]
    assert "context 4096" in taken
    card = machine(LLAMA_70B, 8192)
    loaded = descend(plan(card), card, "device-oom-load")
    assert loaded[0].startswith("layers ")
    assert "layers 0" in loaded


def test_a_cache_that_the_heads_do_not_divide_is_never_quantised() -> None:
    inventory = machine()
    odd = replace(inventory, model=replace(inventory.model, head_dim=80))
    assert not [rung for rung in descend(plan(odd), odd, "host-oom") if rung.startswith("cache")]


def facts(inventory: Inventory, **more: object) -> DoctorFacts:
    known = {
        "gpus": inventory.gpus, "host": HOST, "engine": inventory.engine, "engine_problem": None,
        "model": inventory.model, "model_problem": None, "memory": None, "plan_problem": "",
        "caveats": (), "port": 8000, "listeners": (), "orphans": (),
        "python_version": "3.12", "wants_gpu": False, "wants_plugin": False,
    }  # fmt: skip
    return DoctorFacts(**{**known, **more})  # type: ignore[arg-type]


def test_the_doctor_passes_no_card_that_the_build_has_no_code_for() -> None:
    inventory = machine(QWEN_27B_MTP, 22527)
    p40 = replace(inventory.gpus[0], index=1, name="Tesla P40", compute_capability=(6, 1))
    built = replace(inventory.engine, cuda="13.0.96")
    inventory = replace(inventory, gpus=(*inventory.gpus, p40), engine=built)
    made = plan(inventory)
    rows = ENGINE.planning.checks(facts(inventory, caveats=made.caveats))
    assert [row.verdict for row in rows if "Tesla P40" in row.text] == ["WARN"]


def test_the_doctor_checks_engine_model_memory_and_port() -> None:
    inventory = machine()
    memory = ENGINE.planning.forecast(plan(inventory), inventory)
    good = ENGINE.planning.checks(facts(inventory, memory=memory))
    assert {one.verdict for one in good} == {"PASS"}
    assert {"engine", "model", "memory", "port"} <= {one.group for one in good}
    problem = Problem("load model x", "it is cut", "download it again")
    bad = ENGINE.planning.checks(
        facts(
            inventory, model_problem=problem, listeners=("nginx",), orphans=((7, "llama-server"),),
            plan_problem="no plan",
        )
    )  # fmt: skip
    verdicts = [(one.group, one.verdict) for one in bad]
    assert ("model", "FAIL") in verdicts
    assert ("port", "FAIL") in verdicts
    assert ("GPUs", "FAIL") in verdicts
    assert ("plan", "FAIL") in verdicts


def test_the_doctor_checks_what_the_readme_promises() -> None:
    """Driver, cards, engine, model, memory, port and caches."""
    inventory = machine(QWEN_8B, 24576)
    gpus = tuple(replace(gpu, driver="580.65", cuda="13.0") for gpu in inventory.gpus)
    inventory = replace(inventory, gpus=gpus)
    memory = ENGINE.planning.forecast(plan(inventory), inventory)
    host = replace(HOST, cache_free_mib=9000)
    found = ENGINE.planning.checks(facts(inventory, memory=memory, host=host, cache_dir="/c"))
    assert {one.verdict for one in found} == {"PASS"}
    promised = {"driver", "GPUs", "engine", "model", "memory", "port", "caches"}
    assert promised <= {one.group for one in found}
    closed = ENGINE.planning.checks(facts(inventory, cache_writable=False, cache_dir="/c"))
    (warned,) = (one for one in closed if one.verdict != "PASS")
    assert warned.text == "/c cannot be written: every start has to probe the engine again"


def test_a_machine_smaller_than_the_file_reads_it_from_the_disk_for_every_token() -> None:
    weights = (Weights("layers", "sharded", "GGUF", 4 << 30),)
    large = machine(replace(QWEN_8B, weights=weights))
    small = replace(HOST, ram_mib=1024, swap_mib=0)
    (found,) = (
        one for one in ENGINE.planning.checks(facts(large, host=small)) if one.verdict == "WARN"
    )
    assert "1024 MiB RAM" in found.text
    assert "every token waits for the disk" in found.text
    assert found.remedy == "add memory, or use a GGUF file quantised to fewer bits"


def test_gguf_files_prefer_it_and_others_do_not() -> None:
    assert ENGINE.prefers("/m/a.gguf", ())
    assert ENGINE.prefers("/m", ("a.gguf", "README.md"))
    assert not ENGINE.prefers("/m", ("a.gguf", "config.json"))
    assert not ENGINE.prefers("Qwen/Qwen3-0.6B", ())


def test_advice_names_the_option_that_sets_the_drafting() -> None:
    advice = " ".join(advise(Finding("illegal-access", "", "serving")))
    assert "draft nothing (mtp, --spec-type)" in advice
