"""Without nvcc nothing is planned that has to be built, and each plan says what it does instead."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caovand.core.facts.inventory import Gpu, ModelCard
from caovand.engines.vllm.doctor import checkup
from caovand.engines.vllm.machine.attention import remedy
from caovand.engines.vllm.planning.decisions import forecast
from caovand.engines.vllm.probe import VERSIONS
from tests.cli.test_offline_verbs import GOOD
from tests.core.machines import (
    A100,
    CPU,
    CUDA,
    GEMMA_4,
    GPT_OSS,
    H200,
    QWEN_27B,
    QWEN_27B_AWQ,
    TINY_HYBRID,
    cards,
    inventory,
    plan,
    turing,
)
from tests.engines.test_ladder_ends import nvcc

BARREN = replace(CUDA, python_version="3.12.1", cuda="13.0", compiler="/usr/bin/gcc")
"""An engine from the lock file on a machine with the driver only."""
EXPERTS = replace(GEMMA_4, vision=False)
FP8 = replace(EXPERTS, quantization="fp8")
PRO_6000 = cards(1, "NVIDIA RTX PRO 6000", (12, 0), 97887)


def test_two_2080_ti_with_the_driver_only_serve_on_triton_with_a_float16_cache() -> None:
    machine = inventory(engine=BARREN)
    found = plan(machine)
    assert forecast(found, machine).fits
    assert found.value("attention_backend") == "TRITON_ATTN"
    assert found.value("kv_cache_dtype") is None
    assert found.value("max_model_len") > 150_000
    assert found.env["VLLM_USE_FLASHINFER_SAMPLER"].value == "0"
    (warning,) = [text for text in found.warnings if "nvcc" in text]
    assert "attention runs on Triton, slower and with a float16 cache" in warning
    assert "sudo apt install cuda-toolkit-13-0" in warning


@pytest.mark.parametrize(
    ("model", "gpus"),
    [
        (QWEN_27B_AWQ, turing(2)),
        (QWEN_27B, H200),
        (EXPERTS, H200),
        (GPT_OSS, H200),
        (GPT_OSS, A100),
        (EXPERTS, PRO_6000),
    ],
)
@pytest.mark.parametrize("version", ["0.21.0", "0.33.0"])
def test_what_is_planned_without_nvcc_needs_none(
    version: str, model: ModelCard, gpus: tuple[Gpu, ...]
) -> None:
    machine = inventory(model, gpus, replace(BARREN, version=version))
    found = plan(machine)
    assert not nvcc(found, machine, found)
    for setting in found.env.values():
        assert setting.reason


@pytest.mark.parametrize(
    "change",
    [
        {"nvcc": "/usr/local/cuda/bin/nvcc"},
        {"jit_cache": "0.6.8.post1"},
        {"python_version": ""},
    ],
    ids=["nvcc", "prebuilt kernels", "a saved inventory"],
)
def test_kernels_that_can_be_had_are_used(change: dict[str, str]) -> None:
    found = plan(inventory(engine=replace(BARREN, **change)))  # type: ignore[arg-type]
    assert found.value("attention_backend") == "FLASHINFER"
    assert "VLLM_USE_FLASHINFER_SAMPLER" not in found.env


def test_a_toolkit_that_the_operator_names_is_believed() -> None:
    own = {"engine": {"env": {"CUDA_HOME": "/opt/cuda-13"}}}
    found = plan(inventory(engine=BARREN), **own)
    assert found.value("attention_backend") == "FLASHINFER"
    assert "VLLM_USE_FLASHINFER_SAMPLER" not in found.env


def test_an_attention_given_verbatim_that_cannot_be_built_is_warned_of() -> None:
    words = {"engine": {"extra_args": ["--attention-backend", "FLASHINFER"]}}
    found = plan(inventory(engine=BARREN), **words)
    assert found.value("attention_backend") == "FLASHINFER"
    assert any("FLASHINFER cannot start here: FlashInfer has" in text for text in found.warnings)


def test_a_variable_of_the_operator_wins() -> None:
    own = {"engine": {"env": {"VLLM_USE_FLASHINFER_SAMPLER": "1"}}}
    assert plan(inventory(engine=BARREN), **own).env["VLLM_USE_FLASHINFER_SAMPLER"].value == "1"


def test_a_cpu_build_is_told_nothing_of_nvcc() -> None:
    found = plan(inventory(TINY_HYBRID, (), replace(CPU, python_version="3.11.7")))
    assert not any("FLASHINFER" in name for name in found.env)


@pytest.mark.parametrize(
    ("model", "gpus", "change", "variable"),
    [
        (EXPERTS, H200, {"nvcc": "nvcc"}, "VLLM_USE_FLASHINFER_MOE_FP16"),
        (EXPERTS, H200, {}, "VLLM_USE_FLASHINFER_MOE_FP16"),
        (FP8, H200, {"nvcc": "nvcc"}, "VLLM_USE_FLASHINFER_MOE_FP8"),
        (EXPERTS, PRO_6000, {}, "VLLM_USE_FLASHINFER_MOE_FP16"),
        (EXPERTS, PRO_6000, {"nvcc": "nvcc"}, None),  # vLLM's own choice, and it can be built
        (EXPERTS, H200, {"jit_cache": "0.6.8.post1"}, None),
        (EXPERTS, H200, {"version": "0.33.0"}, None),
        (EXPERTS, A100, {}, None),  # FlashInfer has none for older cards
        (QWEN_27B, H200, {}, None),  # no experts
    ],
)
def test_expert_kernels_that_are_not_ready_are_planned_against(
    model: ModelCard, gpus: tuple[Gpu, ...], change: dict[str, Any], variable: str | None
) -> None:
    found = plan(inventory(model, gpus, replace(BARREN, **change)))
    planned = {name for name in found.env if name.startswith("VLLM_USE_FLASHINFER_MOE")}
    assert planned == ({variable} if variable else set())
    if variable:
        assert found.env[variable].value == "0"
        assert "FlashInfer's expert kernels" in found.env[variable].reason


def test_weights_quantised_while_they_are_loaded_have_the_kernels_of_that_type() -> None:
    words = {"engine": {"extra_args": ["--quantization", "fp8"]}}
    found = plan(inventory(EXPERTS, H200, BARREN), **words)
    assert "VLLM_USE_FLASHINFER_MOE_FP8" in found.env


def test_the_doctor_names_a_package_that_is_new_enough() -> None:
    found = checkup(replace(GOOD, engine=replace(BARREN, plugin="0.1"), as_root=True))
    (told,) = [finding for finding in found if "nvcc" in finding.text]
    assert told.verdict == "WARN"  # the plan goes without
    assert "attention falls back to Triton" in told.text
    assert "then: apt install cuda-toolkit-13-0" in told.remedy
    assert "apt install nvidia-cuda-toolkit" not in told.remedy


def test_of_an_engine_that_tells_no_cuda_the_newest_toolkit_is_named() -> None:
    assert "apt install cuda-toolkit (" in remedy(replace(BARREN, cuda=None))


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH", "PATH"])
def test_nvcc_is_looked_for_where_flashinfer_does(tmp_path: Path, variable: str) -> None:
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    (home / "bin/nvcc").write_text("#!/bin/sh\n")
    (home / "bin/nvcc").chmod(0o755)
    place = home / "bin" if variable == "PATH" else home
    environ = {k: v for k, v in os.environ.items() if k not in ("CUDA_HOME", "CUDA_PATH")}
    done = subprocess.run(
        [sys.executable, "-c", 'MARK = ""\n' + VERSIONS],
        env={**environ, variable: str(place)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f'"nvcc": "{home}/bin/nvcc"' in done.stdout
