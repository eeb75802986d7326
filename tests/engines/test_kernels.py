"""What is built before any start, and that plans, starts and the doctor know what is built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caovand.core.facts.checks import CheckResult
from caovand.core.facts.inventory import EngineInfo, Gpu
from caovand.core.plan import Plan
from caovand.engines.vllm import kernels
from caovand.engines.vllm.command import build
from caovand.engines.vllm.doctor import checkup
from caovand.engines.vllm.machine.attention import FLASHINFER_HEADS
from tests.cli.test_offline_verbs import GOOD
from tests.core.machines import CPU, CUDA, H200, inventory, plan, turing

HOME = "/engine/cuda"
OWN = replace(
    CUDA, python_version="3.12.1", cuda="13.0", compiler="gcc", cxx="c++",
    cuda_home=HOME, nvcc=f"{HOME}/bin/nvcc",
)  # fmt: skip
"""An engine from the lock file, whose compiler came with it, on a machine with the driver only."""
ALL_SM86 = ("sampling", "attention-128-bfloat16-fp8", "attention-256-bfloat16-fp8")
ALL_SM75 = (
    "sampling", "attention-128-float16", "attention-128-fp8",
    "attention-256-float16", "attention-256-fp8",
)  # fmt: skip
BUILT = replace(OWN, kernels=(("sm75", ALL_SM75),))


def labels(release: tuple[int, ...], capability: tuple[int, int]) -> tuple[str, ...]:
    return tuple(kernel.label for kernel in kernels.kernels(release, capability))


def test_every_card_needs_the_sampler_and_most_need_attention() -> None:
    assert labels((0, 21, 0), (7, 5)) == ALL_SM75
    for capability in ((8, 0), (8, 6), (8, 9), (11, 0), (12, 0), (12, 1)):
        assert labels((0, 21, 0), capability) == ALL_SM86
    for capability in ((10, 0), (10, 3)):
        assert labels((0, 21, 0), capability) == ("sampling", "all-reduce")
    assert labels((0, 21, 0), (9, 0)) == ("sampling", "gated-delta-net", "all-reduce")
    assert labels((0, 33, 0), (9, 0)) == ("sampling", "all-reduce")


def test_one_card_alone_needs_no_all_reduce() -> None:
    assert kernels.missing(OWN, (9, 0), 1) == ("sampling", "gated-delta-net")
    assert kernels.missing(OWN, (9, 0), 2) == ("sampling", "gated-delta-net", "all-reduce")


def test_attention_is_built_as_the_plans_of_these_cards_use_it() -> None:
    attention = kernels.kernels((0, 21, 0), (7, 5))[1:]
    for kernel in attention:
        asked = kernel.arguments
        assert asked["head_dim_qk"] == asked["head_dim_vo"]
        assert asked["head_dim_qk"] in FLASHINFER_HEADS
        assert asked["dtype_q"] == asked["dtype_o"] == "torch.float16"
    assert {kernel.arguments["dtype_kv"] for kernel in attention} == {
        "torch.float16",
        "torch.float8_e4m3fn",
    }


def test_an_fp8_cache_from_ampere_on_is_read_by_queries_of_bfloat16() -> None:
    for kernel, width in zip(kernels.kernels((0, 21, 0), (8, 6))[1:], (128, 256), strict=True):
        asked = kernel.arguments
        assert asked["backend"] == "fa2"
        assert asked["head_dim_qk"] == asked["head_dim_vo"] == width
        assert asked["dtype_q"] == asked["dtype_o"] == "torch.bfloat16"
        assert asked["dtype_kv"] == "torch.float8_e4m3fn"


@given(st.integers(1, 512), st.integers(0, 1 << 22))
def test_compilers_fit_cores_and_memory_and_there_is_always_one(cpus: int, free_mib: int) -> None:
    count = kernels.compilers(cpus, free_mib)
    assert 1 <= count <= cpus
    assert count == 1 or count * kernels.COMPILER_MIB <= free_mib
    assert count == cpus or (count + 1) * kernels.COMPILER_MIB > free_mib


def test_what_is_missing_is_what_was_not_built_for_these_cards() -> None:
    assert kernels.missing(OWN, (7, 5), 2) == ALL_SM75
    assert kernels.missing(BUILT, (7, 5), 2) == ()
    assert kernels.missing(BUILT, (8, 6), 2) == ALL_SM86
    half = replace(OWN, kernels=(("sm75", ALL_SM75[:3]),))
    assert kernels.missing(half, (7, 5), 2) == ALL_SM75[3:]
    for needless in (CPU, replace(OWN, flashinfer=None), replace(OWN, jit_cache="0.6.8.post1")):
        assert kernels.missing(needless, (7, 5), 2) == ()


def test_two_2080_ti_with_the_driver_only_serve_on_flashinfer_with_an_fp8_cache() -> None:
    found = plan(inventory(engine=OWN))
    assert found.value("attention_backend") == "FLASHINFER"
    assert found.value("kv_cache_dtype") == "fp8"
    assert found.env["CUDA_HOME"].value == HOME
    assert "for the CUDA version of its torch" in found.env["CUDA_HOME"].reason


def test_a_toolkit_of_the_operator_comes_before_the_engines_own() -> None:
    def planned(**env: str) -> Plan:
        return plan(inventory(engine=OWN), engine={"env": env})

    assert planned(CUDA_HOME="/opt/cuda").env["CUDA_HOME"].value == "/opt/cuda"
    assert "CUDA_HOME" not in planned(CUDA_PATH="/opt/cuda").env  # it would hide CUDA_PATH


def environment(engine: EngineInfo, found: Plan | None = None) -> dict[str, str]:
    return dict(build(found or plan(inventory(engine=engine)), engine, "/cache").env)


def test_a_start_is_led_to_the_kernels_for_its_cards() -> None:
    assert environment(BUILT)[kernels.FOLDER] == "/engine/kernels/sm75"
    assert kernels.FOLDER not in environment(OWN)
    on_hopper = plan(inventory(gpus=H200, engine=BUILT))
    assert kernels.FOLDER not in environment(BUILT, on_hopper)


@pytest.mark.parametrize("how", [{"how": {"mode": "fast"}}, {"policy": {"mtp": 0}}])
def test_every_depth_and_mode_is_led_to_the_same(how: dict[str, Any]) -> None:
    other = environment(BUILT, plan(inventory(engine=BUILT), **how))
    for name in (kernels.FOLDER, "FLASHINFER_WORKSPACE_BASE"):
        assert other[name] == environment(BUILT)[name]


def told(engine: EngineInfo, gpus: tuple[Gpu, ...] = turing(2)) -> list[CheckResult]:
    found = checkup(replace(GOOD, engine=engine, gpus=gpus))
    return [one for one in found if "FlashInfer" in one.text and "kernels" in one.text]


def test_the_doctor_names_what_is_not_built_and_the_command() -> None:
    (lack,) = told(replace(OWN, kernels=(("sm75", ALL_SM75[:4]),)))
    assert (lack.verdict, lack.remedy) == ("WARN", "sudo caovanctl engine build-kernels")
    assert lack.text.startswith("FlashInfer's kernels for SM75 are not built (attention-256-fp8)")
    (good,) = told(BUILT)
    assert (good.verdict, good.text) == (
        "PASS",
        "the FlashInfer kernels that most models need on SM75 are built",
    )
    sampler = replace(OWN, kernels=(("sm86", ("sampling",)),))
    (lack,) = told(sampler, (replace(turing(1)[0], compute_capability=(8, 6)),))
    assert lack.verdict == "WARN"
    assert "(attention-128-bfloat16-fp8, attention-256-bfloat16-fp8)" in lack.text
    mixed = (*turing(1), replace(H200[0], index=1))
    assert [one.verdict for one in told(BUILT, mixed)] == ["PASS", "WARN"]
    assert told(replace(OWN, cuda_home=None)) == []  # nothing of ours could build them


def test_the_doctor_names_a_compiler_that_nvcc_lacks() -> None:
    (lack,) = told(replace(BUILT, cxx=None))[:1]
    assert (lack.verdict, lack.remedy) == ("FAIL", "sudo apt install g++")


def test_the_doctor_names_the_headers_that_triton_lacks() -> None:
    facts = replace(GOOD, engine=replace(BUILT, python_h=None), gpus=turing(2))
    (lack,) = [one for one in checkup(facts) if "Python.h" in one.text]
    assert (lack.verdict, lack.remedy) == ("FAIL", "sudo apt install python3.12-dev")
