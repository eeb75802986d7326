"""Plans as command lines of `vllm serve`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from caovand.core.facts.inventory import EngineInfo
from caovand.core.plan import Plan, Setting, Taken
from caovand.engines.vllm.command import SERVE, build, cache_key
from tests.core.machines import CPU, CUDA, H200, SMALL_HYBRID, TINY_HYBRID, inventory, plan

CACHE = Path("/var/cache/caovan")
ON_CPU = inventory(TINY_HYBRID, (), CPU)


def value_of(argv: tuple[str, ...], flag: str) -> str:
    assert argv.count(flag) == 1
    return argv[argv.index(flag) + 1]


def test_the_engines_own_python_serves_the_model() -> None:
    argv = build(plan(), CUDA).argv
    assert argv[:5] == (CUDA.python, *SERVE, "/srv/models/Qwen3.6-27B-AWQ")
    assert json.loads(value_of(argv, "--speculative-config"))["num_speculative_tokens"] == 3
    assert json.loads(value_of(argv, "--additional-config"))["caovan"] is True
    assert value_of(argv, "--gpu-memory-utilization").startswith("0.8")
    assert "--enable-server-load-tracking" in argv
    assert value_of(argv, "--shutdown-timeout") == "10"


def test_a_switch_that_is_off_is_said() -> None:
    argv = build(plan(ON_CPU, policy={"mtp": 3}), CPU).argv
    assert "--no-enable-prefix-caching" in argv
    assert not any(word.startswith("--additional") for word in argv)


def test_verbatim_flags_come_once_and_last() -> None:
    words = ["--max-model-len", "4096", "--additional-config", '{"x":1}', "--seed=3"]
    argv = build(plan(engine={"extra_args": words}), CUDA).argv
    assert argv[-3:] == ("--max-model-len", "4096", "--seed=3")
    assert value_of(argv, "--max-model-len") == "4096"
    merged = json.loads(value_of(argv, "--additional-config"))
    assert merged == {"caovan": True, "caovan_mode": "auto", "x": 1}


def test_no_flag_is_passed_that_the_engine_does_not_take() -> None:
    flags = frozenset({"--host", "--port", "--dtype"})
    bare = replace(CUDA, flags=flags)
    argv = build(plan(), bare).argv
    assert {word for word in argv if word.startswith("--")} <= flags


@pytest.mark.parametrize(
    ("key", "variable"), [("--api-key", "VLLM_API_KEY"), ("--hf-token", "HF_TOKEN")]
)
def test_a_secret_goes_by_environment(key: str, variable: str) -> None:
    command = build(plan(engine={"extra_args": [key, "hunter2", "--seed", "3"]}), CUDA)
    assert not {key, "hunter2"} & set(command.argv)
    assert command.argv[-2:] == ("--seed", "3")
    assert command.env[variable] == "hunter2"


def test_several_keys_stay_as_they_are_and_are_not_shown() -> None:
    command = build(plan(engine={"extra_args": ["--api-key", "hunter2", "hunter3"]}), CUDA)
    assert command.argv[-3:] == ("--api-key", "hunter2", "hunter3")
    assert "hunter" not in " ".join(command.shown)


def test_caches_are_kept_apart_by_what_they_are_compiled_for() -> None:
    kinds = [
        cache_key(plan(), CUDA),
        cache_key(plan(how={"mode": "fast"}), CUDA),
        cache_key(plan(), replace(CUDA, version="0.21.1")),
        cache_key(plan(ON_CPU), CPU),
    ]
    assert len(set(kinds)) == len(kinds)
    assert kinds[0] == "0.21.0-sm75-Qwen3.6-27B-AWQ-mtp3"
    assert build(plan(), CUDA, CACHE).env["VLLM_CACHE_ROOT"].startswith(f"{CACHE}/{kinds[0]}")


BUILT = "FLASHINFER_WORKSPACE_BASE"


def built(found: Plan, engine: EngineInfo = CUDA) -> str:
    """Where FlashInfer keeps the kernels it builds for this plan."""
    return build(found, engine, CACHE).env[BUILT]


def test_flashinfers_kernels_are_built_once_for_all_depths_models_and_rungs() -> None:
    usual = built(plan())
    assert usual.startswith(f"{CACHE}/flashinfer/engine-0.6.8.post1-torch2.11.0-cuda")
    fresh = {"CAOVAN_CACHE": Setting("2", "ladder", "")}
    for other in (
        plan(how={"mode": "fast"}),
        plan(policy={"mtp": 0}),
        plan(inventory(SMALL_HYBRID)),
        replace(plan(), env={**plan().env, **fresh}, taken=(Taken("fresh-cache", degrades=False),)),
    ):
        assert built(other) == usual


def test_flashinfers_kernels_are_apart_for_what_they_are_built_against() -> None:
    engines = [CUDA, replace(CUDA, python="/engine.2/bin/python")] + [
        replace(CUDA, **{name: "9.9"}) for name in ("flashinfer", "torch", "cuda")
    ]
    kinds = [built(plan(), engine) for engine in engines] + [built(plan(inventory(gpus=H200)))]
    assert len(set(kinds)) == len(kinds)


def fresh(found: Plan) -> Plan:
    """The plan after the rung that takes a new cache."""
    return replace(found, env={**found.env, "CAOVAN_CACHE": Setting("2", "ladder", "")})


BY_SOURCE = ("TRITON_CACHE_DIR", "DG_JIT_CACHE_DIR", "CUDA_CACHE_PATH", "TVM_FFI_CACHE_DIR")


@pytest.mark.parametrize("name", BY_SOURCE)
def test_kernels_known_by_their_source_are_shared_until_they_are_in_doubt(name: str) -> None:
    def place(found: Plan, engine: EngineInfo = CUDA) -> str:
        return build(found, engine, CACHE).env[name]

    usual = place(plan())
    for same in (plan(how={"mode": "fast"}), plan(inventory(SMALL_HYBRID))):
        assert place(same) == usual
    others = [place(fresh(plan())), place(plan(inventory(gpus=H200)))]
    others.append(place(plan(), replace(CUDA, torch="9.9")))
    assert len({usual, *others}) == 4


def test_every_plan_of_an_engine_has_its_inspected_models_and_no_other_engine() -> None:
    def link(found: Plan, engine: EngineInfo = CUDA) -> tuple[str, str]:
        command = build(found, engine, CACHE)
        ((place, folder),) = command.links
        assert place == f"{command.env['VLLM_CACHE_ROOT']}/modelinfos"
        return place, folder

    usual, fast, renewed = (link(p) for p in (plan(), plan(how={"mode": "fast"}), fresh(plan())))
    assert len({usual[0], fast[0], renewed[0]}) == 3
    assert usual[1] == fast[1] == renewed[1]
    engines = (replace(CUDA, version="0.21.1"), replace(CUDA, python="/other/bin/python"))
    others = {link(plan(), engine)[1] for engine in engines}
    assert len({usual[1], *others}) == 3


def test_a_root_of_the_operators_own_is_left_alone() -> None:
    found = plan(engine={"env": {"VLLM_CACHE_ROOT": "/mine"}})
    assert build(found, CUDA, CACHE).links == ()
    assert build(plan(), CUDA).links == ()


def test_the_operators_environment_wins() -> None:
    found = plan(engine={"env": {"VLLM_CACHE_ROOT": "/mine", "NCCL_DEBUG": "INFO"}})
    env = build(found, CUDA, CACHE).env
    assert env["VLLM_CACHE_ROOT"] == "/mine"
    assert env["NCCL_DEBUG"] == "INFO"


def test_turing_needs_a_stack_without_limit() -> None:
    assert build(plan(), CUDA).unlimited_stack
    assert not build(plan(ON_CPU), CPU).unlimited_stack
