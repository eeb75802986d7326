"""plan, inventory, doctor and serve, with no daemon and no GPU."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from caovand.adapters import model_folder
from caovand.adapters.engine_install import places
from caovand.adapters.servers import server_process
from caovand.adapters.servers.server_process import GATEWAY, PAGE
from caovand.adapters.system.processes import Process
from caovand.cli import doctor, serve
from caovand.cli import inventory as inventory_verb
from caovand.cli import plan as plan_verb
from caovand.cli.common import survey
from caovand.cli.common.errors import CommandError, Exit
from caovand.cli.doctor import examination, orphans, own_machine
from caovand.cli.main import main
from caovand.core.config.schema import Config
from caovand.core.doctor.facts import DoctorFacts
from caovand.core.facts.all_reduce import AllReduceResult
from caovand.core.facts.inventory import EngineInfo, Gpu, Host
from caovand.core.facts.inventory_file import BadInventory, parse, render
from caovand.core.problem import Problem
from caovand.engines.vllm.doctor import checkup
from caovand.engines.vllm.memory.candidate import Candidate, Kernels
from caovand.engines.vllm.memory.estimate import estimate
from caovand.engines.vllm.planning.decisions import forecast
from tests.cli.fake_daemon import FakeDaemon, status
from tests.core.machines import (
    CPU,
    CUDA,
    FIXED,
    HOST,
    QWEN_27B_AWQ,
    inventory,
    turing,
    weights,
)
from tests.core.machines import plan as planned
from tests.secret_files import secret_file

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2,
    "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "vocab_size": 512,
    "intermediate_size": 128, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny dense model."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    entry = {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}
    text = json.dumps({"model.embed_tokens.weight": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 8)
    return folder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """An inventory of two 2080 Ti."""
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(render(turing(2), HOST, CUDA)))
    return path


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNTIME", "STATE", "CACHE", "LOGS"):
        monkeypatch.setenv(f"{name}_DIRECTORY", str(tmp_path / name.lower()))
    monkeypatch.delenv("CAOVAN_AUTO_SPEC", raising=False)


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_plan_is_printed_as_json(
    model: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(model), "--inventory", str(saved), "--json"]) == Exit.DONE
    found = printed(capsys)
    assert found["settings"]["tensor_parallel_size"]["value"] == 2
    assert all(entry["reason"] for entry in found["settings"].values())
    assert found["argv"][0] == CUDA.python
    assert found["env"]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert found["memory"]["fits"] is True
    assert found["memory"]["kv_tokens"] > found["memory"]["max_model_len"] == 4096
    assert found["memory"]["reserve_mib"] > 0
    assert found["warnings"] == []


@pytest.mark.parametrize("verb", ["plan", "doctor", "inventory", "check-config"])
def test_a_key_that_every_user_can_open_is_refused_by_every_verb_that_reads_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    key, config = secret_file(tmp_path / "key", "sesame"), tmp_path / "c.toml"
    key.chmod(0o644)
    config.write_text(f'[server]\napi_key_file = "{key}"\n')
    words = [verb, str(config)] if verb == "check-config" else [verb, "--config", str(config)]
    assert main(words) == Exit.FAILED
    said = capsys.readouterr()
    assert f"run `sudo chmod 640 {key}`" in said.out + said.err


def test_a_plan_for_people_shows_reasons_and_a_bar_a_card(
    model: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(model), "--inventory", str(saved)]) == Exit.DONE
    text = capsys.readouterr().out
    assert "[server] host" in text
    assert text.count("GiB\n") >= 3
    assert "█" in text
    assert "fits:" in text


def test_a_plan_whose_engine_could_not_start_fails(
    model: Path, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[engine]\nextra_args = ["--no-such-flag"]\n')
    document = json.loads(saved.read_text())
    document["engine"]["flags"] = ["--max-model-len"]
    saved.write_text(json.dumps(document))
    words = ["plan", str(model), "--inventory", str(saved), "--config", str(config)]
    assert main(words) == Exit.FAILED
    assert "the daemon would not start this plan: cannot pass" in capsys.readouterr().out
    assert main([*words, "--json"]) == Exit.FAILED


def test_every_stage_of_a_plan_has_a_bar_and_its_sizes(
    model: Path, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[engine]\nextra_args = ["-pp", "2"]\n')
    words = ["plan", str(model), "--inventory", str(saved), "--config", str(config)]
    assert main(words) == Exit.DONE
    text = capsys.readouterr().out
    assert "stage 0 on card 0: layer 0\n" in text
    assert "stage 1 on card 1: layer 1; it has the least free memory" in text
    assert text.count("  22.0 GiB\n") == text.count("█ CUDA 0.") == 2


@pytest.mark.parametrize("weights_gib", [1.0, 13.33, 18.0, 40.0])
@pytest.mark.parametrize("free_mib", [0, 300, 11111, 22527])
def test_a_bar_is_as_long_as_the_card_and_says_what_does_not_go_in(
    weights_gib: float, free_mib: int
) -> None:
    gpu = replace(turing(1)[0], free_mib=free_mib)
    load = Candidate(4096, 1, 2048, 0.9, kernels=Kernels(turing=True))
    card = replace(QWEN_27B_AWQ, weights=weights(layers=weights_gib))
    shown = plan_verb.bar(gpu, estimate(card, load, (gpu,))).plain
    assert shown.count("█") == plan_verb.BAR
    assert ("GiB short" in shown) == (weights_gib > 20 or free_mib < 22000)


def test_a_plan_that_does_not_fit_says_so_in_words(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tuple(replace(gpu, total_mib=1100, free_mib=1000) for gpu in turing(2))
    saved = tmp_path / "full.json"
    saved.write_text(json.dumps(render(full, HOST, CUDA)))
    main(["plan", str(model), "--inventory", str(saved)])
    said = capsys.readouterr().out
    assert "no memory is left for a cache" in said
    assert "-" not in said.split("does not fit: ")[1].split(";")[0]


def test_what_is_not_forecast_and_what_cannot_run_is_said_in_words(
    model: Path, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.toml"
    words = ["plan", str(model), "--inventory", str(saved), "--config", str(config)]
    config.write_text('[engine]\nextra_args = ["-pp", "2", "--nnodes", "2"]\n')
    main(words)
    assert "no forecast: --pipeline-parallel-size is set" in capsys.readouterr().out
    main([*words, "--json"])
    memory = printed(capsys)["memory"]
    assert memory["fits"] is memory["weights_gib"] is None
    assert memory["gpu_memory_utilization"] > 0.8
    config.write_text('[engine]\nextra_args = ["-tp", "8"]\n')
    main(words)
    said = capsys.readouterr().out
    assert "does not run: " in said
    assert "would help: remove --tensor-parallel-size: caovan plans 2" in said


def test_a_cpu_build_has_no_legend_of_a_card(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "cpu.json"
    saved.write_text(json.dumps(render((), replace(HOST, available_mib=1), CPU)))
    main(["plan", str(model), "--inventory", str(saved)])
    said = capsys.readouterr().out
    assert "CUDA" not in said.split("GiB")[0].splitlines()[-1]
    assert "does not fit: 0.00 GiB of weights and" in said


def test_the_mode_can_be_tried(
    model: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["plan", str(model), "--inventory", str(saved), "--mode", "fast", "--json"])
    assert printed(capsys)["settings"]["additional_config"]["value"]["caovan_mode"] == "fast"


@pytest.mark.parametrize("state", ["SERVING", "STOPPED"])
@pytest.mark.parametrize(
    ("origin", "reason"),
    [
        ("caovanctl mode", "mode fast drafts 4 tokens on any number of GPUs"),
        ("/etc/caovan.toml", "mode stable drafts 3 tokens on any number of GPUs"),
    ],
)
def test_a_plan_beside_a_daemon_is_of_its_file_and_mode(
    state: str,
    origin: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "daemon.toml"
    config.write_text(f'[model]\npath = "{tmp_path}"\n[policy]\nmode = "stable"\n')
    machine = survey.SurveyedMachine(turing(2), HOST, CUDA)
    monkeypatch.setattr(model_folder, "read_model", lambda path, weights: QWEN_27B_AWQ)
    monkeypatch.setattr(plan_verb, "inspect", lambda *asked, **named: machine)
    monkeypatch.setattr(examination, "inspect", lambda *asked, **named: machine)
    with tempfile.TemporaryDirectory(prefix="caovan-") as folder:
        daemon = FakeDaemon(Path(folder))
        try:
            daemon.answers["status"] = status(
                state=state,
                engine_pid=42 if state == "SERVING" else None,
                mode="fast" if origin == "caovanctl mode" else "stable",
                mode_origin=origin,
                daemon={"version": "1", "pid": 7, "config": str(config)},
            )
            assert main(["--runtime", folder, "plan", "--json"]) == Exit.DONE
            depth = printed(capsys)["settings"]["speculative_config"]
            assert (depth["origin"], depth["reason"]) == ("user", reason)
            config.write_text('[policy]\ndtype = "bfloat16"\n[model]\npath = "/m"\n')
            assert main(["--runtime", folder, "doctor", "--json"]) == Exit.FAILED
            assert 'set dtype = \\"half\\"' in capsys.readouterr().out
        finally:
            daemon.stop()


def test_a_depth_that_nobody_chose_is_the_policy_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "daemon.toml"
    config.write_text(f'[model]\npath = "{tmp_path}"\n')
    machine = survey.SurveyedMachine(turing(2), HOST, CUDA)
    beside = status(daemon={"version": "1", "pid": 7, "config": str(config)})
    monkeypatch.setattr(plan_verb, "running", lambda runtime: beside)
    monkeypatch.setattr(model_folder, "read_model", lambda path, weights: QWEN_27B_AWQ)
    monkeypatch.setattr(plan_verb, "inspect", lambda *asked, **named: machine)
    assert main(["plan", "--json"]) == Exit.DONE
    assert printed(capsys)["settings"]["speculative_config"]["origin"] == "policy"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a table"),
        ('{"gpus": 1}', '"gpus" is not a list'),
        ("{}", '"host"'),
    ],
)
def test_a_saved_inventory_that_is_none_is_refused(
    model: Path, tmp_path: Path, content: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    assert main(["plan", str(model), "--inventory", str(path)]) == Exit.FAILED
    assert said in capsys.readouterr().err


def test_what_cannot_be_planned_is_one_sentence(
    model: Path, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[policy]\ndtype = "bfloat16"\n')
    words = ["plan", str(model), "--inventory", str(saved), "--config", str(config)]
    assert main(words) == Exit.FAILED
    assert 'set dtype = "half"' in capsys.readouterr().err


def test_an_inventory_survives_being_saved(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inventory", "--inventory", str(saved), "--json"]) == Exit.DONE
    assert parse(printed(capsys)) == (turing(2), HOST, CUDA)


def test_an_inventory_names_the_engine_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = EngineInfo("/e/bin/python", "11434.0.0", "", "cpu", executable="/e/bin/llama-server")
    for engine, shown in ((server, "llama-server 11434.0.0 (cpu)\n"), (CUDA, "vLLM ")):
        path = tmp_path / "machine.json"
        path.write_text(json.dumps(render((), HOST, engine)))
        assert main(["inventory", "--inventory", str(path)]) == Exit.DONE
        assert f"engine  {shown}" in capsys.readouterr().out


@pytest.mark.parametrize("capability", ["7.5", 7.5, [7, 5], "sm_75", "75"])
def test_a_capability_may_be_written_in_many_ways(capability: object) -> None:
    gpu = {"index": 0, "name": "x", "compute_capability": capability, "total_mib": 22527}
    host = {"ram_mib": 1, "swap_mib": 0, "shm_mib": 1, "cpus": 1}
    gpus, _, engine = parse({"gpus": [gpu], "host": host, "engine": None})
    assert gpus[0].compute_capability == (7, 5)
    assert gpus[0].free_mib == 22527
    assert engine is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"compute_capability": "new"}, "compute_capability"),
        ({"total_mib": "much"}, r"gpus\[0\].total_mib"),
        ({"total_mib": -1}, r"gpus\[0\].total_mib"),
    ],
)
def test_a_bad_value_in_an_inventory_is_named(change: dict[str, object], said: str) -> None:
    gpu = {"index": 0, "name": "x", "compute_capability": "7.5", "total_mib": 1, **change}
    host = {"ram_mib": 1, "swap_mib": 0, "shm_mib": 1, "cpus": 1}
    with pytest.raises(BadInventory, match=said):
        parse({"gpus": [gpu], "host": host})


def test_the_doctor_passes_a_good_machine(
    model: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--inventory", str(saved), "--json", str(model), "--max-model-len", "1024"]
    assert doctor.main(words) == Exit.DONE
    found = printed(capsys)
    assert found["ok"]
    groups = {check["group"] for check in found["checks"]}
    assert {"engine", "model", "memory"} <= groups
    assert "port" not in groups, "a saved inventory is of another machine"


def test_the_doctor_fails_a_broken_model(
    model: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "model.safetensors").write_bytes(b"version https://git-lfs")
    assert main(["doctor", "--inventory", str(saved), str(model)]) == Exit.FAILED
    out = capsys.readouterr().out
    assert "FAIL" in out
    assert "fix: download these files again" in out


@pytest.mark.parametrize(
    ("ram_mib", "status"),
    [
        (65536, Exit.FAILED),  # vLLM would have to load more than there is
        (262144, Exit.FAILED),  # reading 124 GiB over the bus for every token is refused
    ],
)
def test_the_doctor_names_another_engine_that_would_serve(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ram_mib: int, status: Exit
) -> None:
    """A 70B checkpoint on 8 GB; its weights are a hole in a file."""
    layers = {"hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256}
    most = {"max_position_embeddings": 131072}
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    llama = {**kind, **layers, **heads, **most}
    (model / "config.json").write_text(json.dumps(llama))
    size = 130 << 30
    entry = {"dtype": "BF16", "shape": [size // 4, 2], "data_offsets": [0, size]}
    header = json.dumps({"model.layers.0.mlp.up_proj.weight": entry}).encode()
    with (model / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    card = replace(turing(1)[0], total_mib=8192, free_mib=7900)
    host = replace(HOST, ram_mib=ram_mib, available_mib=ram_mib - 4096)
    saved = tmp_path / "small.json"
    saved.write_text(json.dumps(render((card,), host, CUDA)))
    assert main(["doctor", "--inventory", str(saved), str(model)]) == status
    shown = capsys.readouterr().out
    assert "llama.cpp would serve it from a GGUF file" in shown
    assert "fix: search the hub for " in shown
    capsys.readouterr()
    main(["doctor", "--inventory", str(saved), str(model), "--json"])
    assert "other engines" in {check["group"] for check in printed(capsys)["checks"]}


def test_the_doctor_plans_nothing_for_a_worker_whose_head_plans(
    model: Path, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "worker.toml"
    alone = f'[model]\npath = "{model}"\nmax_model_len = 16000000\n'
    config.write_text(alone)
    words = ["doctor", "--inventory", str(saved), "--json", "--config", str(config)]
    assert main(words) == Exit.FAILED
    capsys.readouterr()
    config.write_text(f'{alone}[cluster]\nrole = "worker"\nhead = "10.0.0.1:7070"\n')
    assert main(words) == Exit.DONE
    (plan,) = (one for one in printed(capsys)["checks"] if one["group"] == "plan")
    assert plan["verdict"] == "PASS"
    assert "a worker of 10.0.0.1:7070, and its head plans" in plan["text"]


GOOD = DoctorFacts(
    gpus=tuple(replace(gpu, driver="580.65", cuda="13.0", persistence=True) for gpu in turing(2)),
    host=HOST,
    engine=replace(FIXED, cuda="13.0", compiler="gcc", nvcc="nvcc", python_version="3.12.1"),
    engine_problem=None,
    model=QWEN_27B_AWQ,
    model_problem=None,
    memory=None,
    plan_problem="",
    caveats=(),
    port=8000,
    listeners=(),
    orphans=(),
    python_version="3.10.12",
    wants_gpu=True,
    wants_plugin=True,
)


def test_a_machine_with_nothing_wrong_passes_every_check() -> None:
    assert {finding.verdict for finding in checkup(GOOD)} == {"PASS"}


def test_right_sums_over_the_cards_pass() -> None:
    found = checkup(replace(GOOD, all_reduce=AllReduceResult("right", 1.0)))
    assert "all-reduce over the plan's cards was correct when it was checked" in {
        f.text for f in found
    }
    assert {finding.verdict for finding in found} == {"PASS"}


def test_the_doctor_tells_the_depth_and_the_share_that_would_be_planned() -> None:
    found, machine = planned(), inventory()
    facts = replace(GOOD, memory=forecast(found, machine), mtp=found.mtp)
    (told,) = [finding.text for finding in checkup(facts) if finding.group == "plan"]
    share = found.value("gpu_memory_utilization")
    assert told.startswith(f"MTP drafts 3 tokens, and gpu_memory_utilization is {share};")
    for depth, words in ((1, "MTP drafts 1 token,"), (0, "drafting is off (MTP 0)")):
        (told,) = [one.text for one in checkup(replace(facts, mtp=depth)) if one.group == "plan"]
        assert told.startswith(words)


def test_flashinfer_is_not_said_to_serve_a_model_that_it_cannot() -> None:
    told = [f.text for f in checkup(replace(GOOD, model=replace(QWEN_27B_AWQ, head_dim=96)))]
    assert any("no kernel for heads of 96; the plan uses another" in text for text in told)
    assert not any("supports SM75" in text for text in told)


@pytest.mark.parametrize(
    ("facts", "verdict", "said"),
    [
        (replace(GOOD, python_version="3.10.0"), "FAIL", "3.10.0"),
        (replace(GOOD, host=replace(HOST, wsl=True)), "WARN", "WSL"),
        (replace(GOOD, host=replace(HOST, shm_mib=64)), "FAIL", "/dev/shm"),
        (replace(GOOD, host=replace(HOST, open_files=1024)), "WARN", "files can be open"),
        (replace(GOOD, host=replace(HOST, shm_free_mib=3)), "FAIL", "/dev/shm is full: 3 of its"),
        (replace(GOOD, host=replace(HOST, ram_mib=8000, available_mib=7000)), "WARN", "checkpoint"),
        (replace(GOOD, host=replace(HOST, available_mib=7000)), "WARN", "checkpoint"),
        (
            replace(GOOD, gpus=tuple(replace(gpu, cuda="12.4") for gpu in GOOD.gpus)),
            "FAIL",
            "supports CUDA 12.4, but the engine needs CUDA 13.0",
        ),
        (replace(GOOD, gpus=()), "FAIL", "no NVIDIA GPU"),
        (
            replace(GOOD, link_errors={0: 3, 1: 4711}),
            "WARN",
            "1: 4,711 corrected PCIe link errors",
        ),
        (
            replace(GOOD, gpus=tuple(replace(gpu, persistence=False) for gpu in GOOD.gpus)),
            "WARN",
            "persistence",
        ),
        (
            replace(GOOD, gpus=(replace(GOOD.gpus[0], compute_capability=(6, 1)),)),
            "FAIL",
            "no kernels before SM75",
        ),
        (
            replace(GOOD, gpus=(*GOOD.gpus, replace(GOOD.gpus[0], compute_capability=(6, 1)))),
            "WARN",
            "no kernels before SM75",
        ),
        (
            replace(GOOD, gpus=(replace(GOOD.gpus[0], mig=True),)),
            "FAIL",
            "partitioned (MIG)",
        ),
        (
            replace(GOOD, gpus=(replace(GOOD.gpus[0], users=((7, "python", 900),)),)),
            "WARN",
            "holds 900 MiB",
        ),
        (replace(GOOD, orphans=((5, "VLLM::EngineCore"),)), "FAIL", "left over"),
        (
            replace(GOOD, all_reduce=AllReduceResult("wrong", 1.0, "NCCL", "3 of 9")),
            "WARN",
            "wrong: NCCL, 3 of 9",
        ),
        (
            replace(GOOD, all_reduce=AllReduceResult("hung", 1.0, "NCCL", "no answer")),
            "WARN",
            "did not end: NCCL",
        ),
        (
            replace(GOOD, all_reduce=AllReduceResult("unclear", 1.0, text="no torch")),
            "WARN",
            "checked: no torch",
        ),
        (replace(GOOD, engine=replace(CUDA, version="0.19.0")), "WARN", "tested with"),
        (replace(GOOD, engine=replace(CUDA, flashinfer="0.6.12")), "WARN", "256-wide heads"),
        (
            replace(GOOD, engine=replace(CUDA, python_version="3.12.1", nvcc="nvcc")),
            "FAIL",
            "C compiler",
        ),
        (
            replace(GOOD, engine=replace(CUDA, python_version="3.12.1", compiler="gcc")),
            "WARN",  # the plan goes without
            "no nvcc",
        ),
        (replace(GOOD, engine=replace(CUDA, plugin=None)), "WARN", "kernels are not installed"),
        (
            replace(GOOD, engine=replace(CUDA, plugin="1", gdn_interface="fail: no class X")),
            "WARN",
            "(no class X)",
        ),
        (
            replace(GOOD, engine=replace(CUDA, plugin="1", library_problem="no such file")),
            "FAIL",
            "cannot be loaded: no such file",
        ),
        (
            replace(
                GOOD,
                engine=replace(CUDA, version="0.33.0", plugin="1", attention="fail: a is not b"),
            ),
            "WARN",
            "Triton attention's caches differently (a is not b)",
        ),
        (
            replace(GOOD, engine=replace(CUDA, plugin="1", lm_head="fail: a is not b")),
            "WARN",
            "computes logits differently (a is not b)",
        ),
        (
            replace(GOOD, engine=replace(FIXED, states="fail: a is not b")),
            "WARN",
            "would corrupt vLLM 0.21.0's answers (a is not b)",
        ),
        (replace(GOOD, half_asked=True), "WARN", "still being imported"),
        (
            replace(GOOD, model=None, model_problem=Problem("read the model", "no", "get it")),
            "FAIL",
            "cannot",
        ),
        (
            replace(GOOD, unreadable="/srv/models", service_user="caovan"),
            "FAIL",
            "cannot read /srv/models",
        ),
        (replace(GOOD, plan_problem="cannot split; use 2"), "FAIL", "cannot split"),
        (replace(GOOD, listeners=("nginx (pid 3)",)), "FAIL", "port 8000 is taken"),
        (
            replace(GOOD, cache_writable=False, cache_dir="/var/cache/caovan"),
            "WARN",
            "has to compile",
        ),
    ],
)
def test_each_trouble_is_found_with_its_fix(facts: DoctorFacts, verdict: str, said: str) -> None:
    found = [finding for finding in checkup(facts) if said in finding.text]
    assert [finding.verdict for finding in found[:1]] == [verdict]
    assert found[0].remedy


@pytest.mark.parametrize(
    ("closed", "fix"),
    [
        ("/home/alice", "sudo chmod a+x /home/alice"),  # and nothing of what else is in it
        ("/home/alice/my models", "sudo chmod -R a+rX '/home/alice/my models'"),
        ("/home/alice/my models/a.safetensors", "sudo chmod -R a+rX '/home/alice/my models'"),
    ],
)
def test_the_fix_for_a_closed_folder_opens_nothing_but_the_model(closed: str, fix: str) -> None:
    model = replace(QWEN_27B_AWQ, path="/home/alice/my models")
    found = checkup(replace(GOOD, model=model, unreadable=closed, service_user="caovan"))
    assert [one.remedy for one in found if f"cannot read {closed}" in one.text] == [fix]


def test_root_is_not_told_to_use_sudo() -> None:
    model = replace(QWEN_27B_AWQ, largest_file=QWEN_27B_AWQ.size())
    host = replace(HOST, ram_mib=8000, available_mib=7000, shm_mib=64)
    small = replace(GOOD, model=model, host=host)
    for as_root in (False, True):
        remedies = [finding.remedy for finding in checkup(replace(small, as_root=as_root))]
        assert any("sudo " in remedy for remedy in remedies) is not as_root
        assert any("mkswap /swapfile && " in remedy for remedy in remedies)


def test_serve_reads_what_people_type_as_vllm_serve() -> None:
    words = ["--port", "9000", "/srv/m", "-tp", "2", "--api-key", "hunter2", "--enforce-eager"]
    order = serve.read(words)
    assert order.config.model.path == order.config.model.served_name == "/srv/m"
    assert order.config.server.port == 9000
    assert order.config.server.host == "0.0.0.0"
    assert order.config.engine.extra_args == ("--port", "9000", "-tp", "2", "--enforce-eager")
    assert order.secrets == {"VLLM_API_KEY": "hunter2"}


@pytest.mark.parametrize(
    ("words", "secrets", "kept"),
    [
        (["--api-key", "1e5"], {"VLLM_API_KEY": "1e5"}, ()),
        (["--api-k=007"], {"VLLM_API_KEY": "007"}, ()),
        (["--api-key", "a", "--api-key", "b"], {"VLLM_API_KEY": "b"}, ()),
        (["--api-key", "a", "b"], {}, ("--api-key", "a", "b")),
        (["--hf-token"], {}, ("--hf-token",)),
        (["--hf-token", "12"], {"HF_TOKEN": "12"}, ()),
    ],
)
def test_serve_moves_a_key_as_it_was_typed_out_of_sight(
    words: list[str], secrets: dict[str, str], kept: tuple[str, ...]
) -> None:
    order = serve.read(["/srv/m", *words])
    assert order.secrets == secrets
    assert order.config.engine.extra_args == kept


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config", "vllm.yaml"], "cannot plan with --config vllm.yaml"),
        (["/srv/m", "--additional-config", "{"], "not a JSON object"),
    ],
)
def test_serve_refuses_what_it_would_have_to_guess_at(words: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said) as caught:
        serve.read(words)
    assert caught.value.status == Exit.USAGE


CONFIG_FILE = {
    "c.yml": {
        "model": "/f", "port": 8000, "trust-remote-code": True, "enable-prefix-caching": False,
        "enable-lora": False, "lora-modules": ["a=/a", "b=/b"], "seed": None, "middleware": [],
        "speculative-config": {"method": "ngram", "num_speculative_tokens": 3},
    }
}  # fmt: skip
FROM_FILE = [
    "--model", "/f", "--port", "8000", "--trust-remote-code", "--no-enable-prefix-caching",
    "--lora-modules", "a=/a", "b=/b", "--seed", "None",
    "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}',
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/m", "-tp", "2", "--config", "c.yml", "--seed", "1"],
         ["/m", *FROM_FILE, "-tp", "2", "--seed", "1"]),
        (["--config", "c.yml", "--port", "9"], [*FROM_FILE, "--port", "9"]),
        (["/m", "--config=c.yml"], ["/m", "--config=c.yml"]),
        (["/m"], ["/m"]),
    ],
)  # fmt: skip
def test_serve_reads_the_keys_of_a_config_file_before_what_is_typed(
    words: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve.yaml_file, "read", lambda path, python: CONFIG_FILE[path])
    known = {"--no-enable-prefix-caching"}
    assert serve.with_config_file(words, "/engine/python", known) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/m", "--config"], "files whose names end in .yaml or .yml"),
        (["/m", "--config", "c.json"], "files whose names end in .yaml or .yml"),
        (["/m", "--config", "a.yml", "--config", "b.yml"], "vLLM reads only one file"),
        (["/m", "--config", "list.yml"], "the file has no keys"),
        (["/m", "--config", "absent.yml"], "cannot read absent.yml: No such file"),
    ],
)
def test_serve_names_what_is_wrong_with_a_config_file(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = serve.yaml_file.read
    kept = {"list.yml": [1]}
    monkeypatch.setattr(serve.yaml_file, "read", lambda path, _: kept.get(path) or read(path, _))
    with pytest.raises(CommandError, match=said):
        serve.with_config_file(words, "/engine/python", ())


def test_a_model_may_be_named_like_a_number() -> None:
    assert serve.read(["--model", "1e5"]).config.model.path == "1e5"


@pytest.mark.parametrize("folder", [".", "slots/main"], ids=["version before", "this one"])
def test_serve_shows_the_mode_its_daemon_will_use(folder: str) -> None:
    order = serve.read(["/srv/m", "--port", "9000"])
    assert serve.remembered_mode(order) is None
    state = serve.own_places(order).state / folder
    state.mkdir(parents=True)
    (state / "mode.json").write_text('{"mode": "fast"}')
    assert serve.remembered_mode(order) == "fast"
    assert serve.remembered_mode(serve.read(["/srv/m", "--port", "9001"])) is None


@pytest.mark.parametrize("verb", ["doctor", "plan"])
def test_vllms_own_config_file_is_no_configuration_of_ours(
    verb: str, model: Path, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [verb, "--inventory", str(saved), "--config", "vllm.yaml", str(model)]
    assert main(words) == Exit.FAILED
    assert "pass its keys as vLLM flags" in capsys.readouterr().err


def test_the_doctor_and_the_plan_refuse_vllms_own_config_file_among_the_flags(
    model: Path, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[engine]\nextra_args = ["--config=vllm.yaml"]\n')
    words = ["--inventory", str(saved), "--config", str(config), str(model)]
    assert main(["plan", *words]) == Exit.FAILED
    assert "cannot plan with --config vllm.yaml" in capsys.readouterr().err
    assert main(["doctor", *words]) == Exit.FAILED
    out = capsys.readouterr().out
    assert "FAIL  cannot plan with --config vllm.yaml" in out
    assert "fix: write its keys as flags" in out


def test_serve_knows_a_switch_from_a_flag_with_a_value() -> None:
    known = ("--enforce-eager", "--no-enforce-eager")
    assert serve.read(["--enforce-eager", "/srv/m"], None, known).config.model.path == "/srv/m"
    assert serve.read(["--model", "/srv/m"]).config.model.path == "/srv/m"


@pytest.mark.parametrize("words", [[], ["--port", "8000"], ["/srv/m", "--port", "99999"]])
def test_serve_without_a_model_or_with_a_bad_port_is_wrong_usage(words: list[str]) -> None:
    with pytest.raises(CommandError) as caught:
        serve.read(words)
    assert caught.value.status == Exit.USAGE


def test_serve_plans_with_the_key_it_will_ask_for() -> None:
    order = serve.read(["/srv/m", "--api-key", "hunter2"])
    assert serve.with_key_file(order, Path("/s")).server.api_key_file == "/s/api-key"
    bare = serve.read(["/srv/m"])
    assert serve.with_key_file(bare, Path("/s")) == bare.config


def test_serve_writes_a_configuration_that_only_we_can_read(tmp_path: Path) -> None:
    order = serve.read(["/srv/m", "--api-key", "hunter2", "--seed", "3"])
    path = serve.write_config(tmp_path / "state", order)
    assert path.stat().st_mode & 0o077 == 0
    assert "hunter2" not in path.read_text()
    assert (tmp_path / "state" / "api-key").read_text() == "hunter2"
    assert (tmp_path / "state" / "api-key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "words",
    [
        ["caovand.cli.main", "plan"],
        ["caovand.cli.main", "plan", "--json"],
        ["caovand.cli.main", "doctor"],
        ["caovand.cli.main", "inventory", "--json"],
        ["caovand.cli.doctor"],
    ],
)
def test_a_reader_that_went_away_is_no_traceback(
    words: list[str], model: Path, saved: Path
) -> None:
    argv = [sys.executable, "-m", *words, "--inventory", str(saved)]
    argv += [] if "inventory" in words else [str(model)]
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as pipe:
        done = subprocess.run(argv, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert done.stderr == b""
    assert done.returncode in (Exit.DONE, Exit.FAILED)


def test_a_folder_whose_name_is_no_text_is_shown_all_the_same(tmp_path: Path, saved: Path) -> None:
    argv = [sys.executable, "-m", "caovand.cli.doctor", "--inventory", str(saved)]
    folder = os.fsencode(tmp_path) + b"/\xff"
    done = subprocess.run([*argv, folder], capture_output=True, check=False)
    assert done.stderr == b""
    assert b"\\udcff: there is no such folder" in done.stdout


def test_each_offline_verb_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("plan", "inventory", "doctor", "serve"):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert "example:" in capsys.readouterr().out


def test_a_process_that_has_outlived_its_engine_is_an_orphan_whichever_engine_it_is_of() -> None:
    library = "/usr/local/lib/ollama/cuda_v13/llama-server --model m"
    engine = "/srv/engines/llamacpp-11434.0.0-cuda/bin/llama-server -m m.gguf"
    rows = {  # parent, session, command line; each engine first under its server, then without
        1: (0, 1, "/sbin/init"),
        5: (1, 5, "/usr/bin/python3 -m caovand"),
        10: (1, 10, "vllm serve m"),
        11: (10, 10, "VLLM::EngineCore"),
        12: (11, 10, "VLLM::Worker_TP0"),
        21: (1, 20, "VLLM::EngineCore"),
        22: (21, 20, "VLLM::Worker_TP0"),
        23: (5, 20, "VLLM::Worker_TP1"),  # caovan's: it adopts what its children leave
        30: (5, 30, "python -m sglang.launch_server"),
        31: (30, 30, "sglang::scheduler_TP0"),
        41: (1, 40, "sglang::detokenizer"),
        50: (1, 50, "/usr/local/bin/ollama serve"),
        51: (50, 50, "/usr/local/bin/ollama runner --model m"),
        52: (50, 50, library),
        61: (1, 60, "ollama runner --model m"),
        62: (1, 60, library),
        70: (5, 70, engine),
        71: (1, 71, "/usr/bin/llama-server -m m.gguf"),  # somebody's own service
        81: (1, 81, engine),
    }
    table = {pid: Process(pid, 1, parent, of, 0, "") for pid, (parent, of, _) in rows.items()}
    commands = {pid: command for pid, (_, _, command) in rows.items()}
    found = [one.pid for one in orphans.orphans_in(table, commands)]
    assert found == [21, 22, 23, 41, 61, 62, 81]


def test_the_manual_names_every_key_of_an_inventory_and_its_example_is_one() -> None:
    page = Path(__file__).parents[2] / "packaging" / "man" / "caovan-inventory.5"
    text = page.read_text()
    for kind in (Gpu, Host, EngineInfo):
        for entry in fields(kind):
            assert entry.name in text, entry.name
    example = text.split(".SH EXAMPLE\n.nf\n")[1].split(".fi")[0]
    gpus, _, engine = parse(json.loads(example))
    assert len(gpus) == 1
    assert engine is not None


@pytest.mark.skipif(os.getuid() != 0, reason="only root has anything to lose here")
def test_root_reads_no_file_of_another_because_a_daemon_names_it(tmp_path: Path) -> None:
    path = tmp_path / "caovan.toml"
    path.write_text("")
    answer = {"daemon": {"config": str(path)}}
    assert survey.daemon_config(answer) == path
    os.chown(path, 12345, 12345)
    with pytest.raises(
        CommandError, match=r"which the running daemon names: .* belongs to uid 12345"
    ):
        survey.daemon_config(answer)


@pytest.mark.parametrize(
    ("confine", "abi", "user", "verdict", "words"),
    [
        (True, 7, "", "PASS", "files, keys and processes"),
        (
            True,
            4,
            "",
            "WARN",
            "before Linux 6.12 an engine that runs as the daemon's user can kill",
        ),
        (True, 4, "caovan-engine", "PASS", "files, keys and processes"),
        (True, 1, "", "WARN", "no usable Landlock"),
        (False, 7, "", "WARN", "confine is off"),
    ],
)
def test_the_doctor_names_what_keeps_the_engine_from_caovan(
    confine: bool, abi: int, user: str, verdict: str, words: str
) -> None:
    found = own_machine.confinement_check(confine, abi, user)
    assert (found.group, found.verdict) == ("confinement", verdict)
    assert words in found.text


@pytest.mark.parametrize(
    ("user", "why", "words"),
    [
        ("caovan-engine", "", "run as the user caovan-engine"),
        (
            "",
            "the user caovan-engine does not exist",
            "user (the user caovan-engine does not exist)",
        ),
    ],
)
def test_the_doctor_names_the_engines_user(user: str, why: str, words: str) -> None:
    found = own_machine.user_check(user, why)
    assert (found.group, found.verdict) == ("confinement", "PASS")
    assert words in found.text


def test_the_doctor_says_what_keeps_the_page_from_being_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on, page = "127.0.0.1:9480", {"url": "http://127.0.0.1:9480/", "problem": ""}
    assert list(own_machine.server_checks(PAGE, "", None)) == []
    (served,) = own_machine.server_checks(PAGE, on, page)
    assert (served.verdict, served.text) == ("PASS", f"the page is served on {page['url']}")
    (warned,) = own_machine.server_checks(
        PAGE,
        on,
        {**page, "problem": "cannot serve the page: it is taken; set another [page] listen"},
    )
    assert (warned.verdict, warned.text) == ("WARN", "cannot serve the page: it is taken")
    assert warned.remedy == "set another [page] listen"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (warned,) = own_machine.server_checks(PAGE, f"127.0.0.1:{port}", None)
        assert (warned.verdict, warned.remedy) == ("WARN", "set another [page] listen")
        assert str(port) in warned.text
    monkeypatch.setattr(server_process, "has_library", lambda: False)
    (warned,) = own_machine.server_checks(PAGE, on, None)
    assert "aiohttp" in warned.text
    assert "python3-aiohttp" in warned.remedy
    (warned,) = own_machine.server_checks(GATEWAY, on, None)
    assert (warned.group, warned.text[:24]) == ("gateway", "cannot serve the gateway")


def test_the_verbs_follow_the_running_daemon_s_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = tmp_path / "engines/vllm-9.9.9-cpu"
    engine.mkdir(parents=True)
    places.finish(
        places.InstalledEngine(
            "vllm-9.9.9-cpu", engine, "9.9.9", "cpu", "3.11.2", None, None, None, "", ""
        )
    )
    config = tmp_path / "daemon.toml"
    config.write_text(f'[model]\npath = "/m"\n[engine]\npython = "{engine}/bin/python"\n')
    asked: list[Any] = []

    def look(config: Config, saved: Path | None, source: Path) -> survey.SurveyedMachine:
        asked.append((config.engine.python, source))
        return survey.SurveyedMachine((), HOST, CUDA)

    monkeypatch.setattr(inventory_verb, "inspect", look)
    monkeypatch.delenv(places.ROOT_VARIABLE, raising=False)
    with tempfile.TemporaryDirectory(prefix="caovan-") as folder:
        daemon = FakeDaemon(Path(folder))
        try:
            daemon.answers["status"] = status(
                daemon={"version": "1", "pid": 7, "config": str(config)}
            )
            assert main(["--runtime", folder, "inventory"]) == Exit.DONE
            assert asked == [(f"{engine}/bin/python", config)]
            capsys.readouterr()
            assert main(["--runtime", folder, "check-config"]) == Exit.DONE
            assert capsys.readouterr().out == f"{config}: valid\n"
            assert main(["--runtime", folder, "engine", "list", "--json"]) == Exit.DONE
            found = printed(capsys)
            assert found["root"] == str(tmp_path / "engines")
            assert [one["name"] for one in found["engines"]] == ["vllm-9.9.9-cpu"]
        finally:
            daemon.stop()
